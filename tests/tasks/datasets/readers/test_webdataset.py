"""Shards of WebDataset, as `ingest webdataset` reads them."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image
from verbs import corpus_of, refused

pytest.importorskip("datasets", reason="not installed (pip install 'polypool[hf]')")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


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
    files = [each for n in range(6) for each in ((f"in/{n}.json", told[n]), (f"in/{n}.png", picture(90 + n)))]
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
    ]
    path = shard(tmp_path / "a.tar", samples(range(5)) + odd)
    unusable = "a sample without a picture or a text"
    assert corpus_of(tmp_path / "out", *words(tmp_path, path))[2] == [
        ("a.tar, ../away", "a name that leaves the folder of images"),
        ("a.tar, /top", "a name that leaves the folder of images"),
        ("a.tar, alone", unusable),
        ("a.tar, silent", unusable),
    ]
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert files == [f"pictures/a/{n}.png" for n in range(5)]
    assert (tmp_path / "pictures/a/1.png").read_bytes() == picture(1)


@pytest.mark.parametrize("content", [b"no tar file", b"", None], ids=["another", "empty", "cut short"])
def test_what_is_no_whole_tar_file_is_no_corpus(content, tmp_path):
    path = shard(tmp_path / "a.tar", samples(range(9)))
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    refused("a.tar: cannot be", *words(tmp_path, path), "--out", tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*.arrow")]
