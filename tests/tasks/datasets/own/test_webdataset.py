"""Shards of WebDataset, as `ingest webdataset` reads them."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image
from verbs import corpus_of, refused

from polypool.infra import limits


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (2, 2), shade).save(buffer, "png")
    return buffer.getvalue()


def shard(path: Path, members: list[tuple[str, bytes | str]]) -> Path:
    """Write a tar file; one that is called so is compressed."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in members:
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def words(folder: Path, *shards: Path) -> tuple[object, ...]:
    return "webdataset", "--shards", *shards, "--images", folder / "pictures"


def samples(numbers: range) -> list[tuple[str, bytes | str]]:
    return [each for n in numbers for each in ((f"{n}.png", picture(n)), (f"{n}.txt", f"the picture {n}"))]


def test_samples_of_all_shards_become_files_with_captions(tmp_path):
    first = shard(tmp_path / "a.tar", samples(range(6)))
    told = [json.dumps({"caption": ["one", f"two {n}"], "url": "x"}) for n in range(6)]
    files = [each for n in range(6) for each in ((f"in/{n}.JSON", told[n]), (f"in/{n}.PNG", picture(90 + n)))]
    second = shard(tmp_path / "b.tar.gz", files)
    said, corpus, _ = corpus_of(tmp_path / "out", *words(tmp_path, first, second))
    assert "splits are random: train/val/test 80/10/10, seed 0" in said
    assert dict(corpus.splits) == {"train": 8, "val": 2, "test": 2}
    items = {item.id: item for split in corpus.splits for item in corpus.items(split)}
    assert items["a/4.png"].captions == ("the picture 4",)
    assert items["b.tar/in/3.png"].captions == ("one", "two 3")
    assert corpus.image_path(items["b.tar/in/3.png"]).read_bytes() == picture(93)
    before = (tmp_path / "out" / "corpus.arrow").read_bytes()
    corpus_of(tmp_path / "out", *words(tmp_path, first, second))
    assert (tmp_path / "out" / "corpus.arrow").read_bytes() == before, "again, over what is there"


def test_what_cannot_be_used_is_listed_and_nothing_leaves_the_folder(tmp_path):
    odd = [
        ("../away.png", picture(7)),
        ("../away.txt", "away"),
        ("/top.png", picture(7)),
        ("/top.txt", "away"),
        ("alone.txt", "no picture"),
        ("silent.png", picture(7)),
        ("latin.png", picture(7)),
        ("latin.txt", b"caf\xe9"),
        ("torn.png", picture(7)),
        ("torn.json", b'{"caption": '),
        ("deep.png", picture(7)),
        ("deep.json", "[" * 100_000),
        ("number.png", picture(7)),
        ("number.json", '{"caption": 5}'),
        ("1.png", picture(8)),
        ("1.txt", "again"),
    ]
    path = shard(tmp_path / "a.tar", samples(range(4)) + odd)
    assert corpus_of(tmp_path / "out", *words(tmp_path, path))[2] == [
        ("a.tar, ../away", "a name that leaves the folder of images"),
        ("a.tar, /top", "a name that leaves the folder of images"),
        ("a.tar, alone", "a sample without a picture, jpg, jpeg, png, webp"),
        ("a.tar, silent", "a sample without a text"),
        ("a.tar, latin", "a text that is not UTF-8, or no JSON"),
        ("a.tar, torn", "a text that is not UTF-8, or no JSON"),
        ("a.tar, deep", "a text that is not UTF-8, or no JSON"),
        ("a.tar, number", "a text that is not a string"),
        ("a.tar, number", "a sample without a text"),
        ("a.tar, 1", "a second sample of its name"),
    ]
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert files == [f"pictures/a/{n}.png" for n in range(4)]
    assert (tmp_path / "pictures/a/1.png").read_bytes() == picture(1)


def odd_header() -> bytes:
    """Return a header whose numbers are none."""
    member = tarfile.TarInfo("1.png")
    member.pax_headers = {"GNU.sparse.map": "x", "GNU.sparse.size": "9"}
    return member.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    "content",
    [b"no tar file", b"", None, b"\x1f\x8b\x08", odd_header()],
    ids=["another", "empty", "cut short", "gzip cut short", "odd header"],
)
def test_what_is_no_whole_tar_file_is_no_corpus(content, tmp_path):
    path = shard(tmp_path / "a.tar", samples(range(9)))
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    files, lines = (*words(tmp_path, path), "--out", tmp_path / "out"), None if content is None else 1
    refused("a.tar: cannot be read as a tar file", *files, lines=lines)
    assert not [*(tmp_path / "out").glob("*.arrow")]


def test_shards_of_one_name_are_refused(tmp_path):
    (tmp_path / "more").mkdir()
    both = [shard(folder / "a.tar", samples(range(1))) for folder in (tmp_path, tmp_path / "more")]
    files = (*words(tmp_path, *both), "--out", tmp_path / "out")
    refused("several shards are called a; rename all but one", *files)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_gigabytes_is_not_unpacked(tmp_path, kind):
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 6 << 30
    (tmp_path / "a.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(
        "a header of 6,442,450,944 bytes", *words(tmp_path, tmp_path / "a.tar"), "--out", tmp_path / "out"
    )


def test_what_unpacks_to_far_more_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_SMALL", 1 << 20)
    path = shard(tmp_path / "a.tar.gz", [*samples(range(3)), ("big.png", bytes(2 << 20))])
    refused("unpacks to over 100 times", *words(tmp_path, path), "--out", tmp_path / "out")
    assert not (tmp_path / "pictures" / "a.tar" / "big.png").exists()


def test_texts_and_pictures_are_bounded(tmp_path):
    large = [("long.png", picture(7)), ("long.txt", "x" * ((1 << 20) + 1))]
    path = shard(tmp_path / "a.tar", samples(range(4)) + large)
    assert corpus_of(tmp_path / "out", *words(tmp_path, path))[2] == [
        ("a.tar, long", "a sample without a text")
    ]


def test_a_key_twice_is_no_json(tmp_path):
    odd = [("twice.png", picture(7)), ("twice.json", '{"caption": "a", "caption": "b"}')]
    skipped = corpus_of(
        tmp_path / "out", *words(tmp_path, shard(tmp_path / "a.tar", samples(range(4)) + odd))
    )[2]
    assert skipped == [("a.tar, twice", "a text that is not UTF-8, or no JSON")]
