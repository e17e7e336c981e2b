from pathlib import Path

import numpy as np
import pytest
from verbs import corpus_of, reasons, refused, sets_of

from polypool.infra.store import FeatureStore

RANDOM = np.random.default_rng(0)


def write_split(
    folder: Path,
    name: str,
    *,
    images: int = 6,
    start: int = 0,
    each: int = 5,
    rows: str = "once",
    ids: str = "once",
    shape: tuple[int, ...] = (4, 8),
) -> np.ndarray:
    """Write the three files of a split; `rows` and `ids` are per image or per caption, `shape` is an image's."""
    folder.mkdir(exist_ok=True)
    features = RANDOM.standard_normal((images, *shape)).astype(np.float32)
    np.save(folder / f"{name}_ims.npy", np.repeat(features, each, axis=0) if rows == "each" else features)
    captions = [f"caption {i} of café {n}\u2028!" for n in range(start, start + images) for i in range(each)]
    (folder / f"{name}_caps.txt").write_text("\n".join(captions) + "\n", "utf-8")
    names = [str(n) for n in range(start, start + images) for _ in range(each if ids == "each" else 1)]
    (folder / f"{name}_ids.txt").write_text("\n".join(names))
    return features


@pytest.mark.parametrize(
    ("rows", "ids", "each", "shape"),
    [
        ("once", "once", 5, (4, 8)),
        ("each", "once", 5, (4, 8)),
        ("once", "each", 5, (4, 8)),
        ("each", "each", 1, (4, 8)),
        ("once", "once", 5, (8,)),
    ],
)
def test_scan_reads_rows_and_ids_per_image_or_caption(tmp_path, rows, ids, each, shape):
    how = {"rows": rows, "ids": ids, "each": each, "shape": shape}
    train = write_split(tmp_path / "in", "train", **how)
    dev = write_split(tmp_path / "in", "dev", images=3, start=6, **how)
    out, corpus, _ = corpus_of(tmp_path / "out", "scan", "--dir", tmp_path / "in")
    assert f"9 items (train 6, val 3), {9 * each} captions" in out
    assert [it.id for it in corpus.items("val")] == ["6", "7", "8"]
    assert corpus.items("train")[2].captions == tuple(f"caption {i} of café 2 !" for i in range(each))
    assert not any("b'" in text for it in corpus.items("train") for text in it.captions)
    found = sets_of(tmp_path / "out" / "regions")
    assert list(found) == [str(n) for n in range(9)]
    for n, x_ND in enumerate([*train, *dev]):
        assert np.array_equal(found[str(n)], np.atleast_2d(x_ND).astype(np.float16))


def test_scan_reads_testall_instead_of_its_first_fold(tmp_path):
    write_split(tmp_path / "in", "test", images=2, rows="each")
    write_split(tmp_path / "in", "testall", images=10, rows="each")
    out, corpus, _ = corpus_of(tmp_path / "out", "scan", "--dir", tmp_path / "in", "--dtype", "float32")
    assert "the first fold of testall, which is read: test_*" in out
    assert corpus.splits == {"test": 10}
    assert FeatureStore.open(tmp_path / "out" / "regions").dtype == "float32"


def test_scan_skips_bad_rows_in_corpus_and_features(tmp_path):
    features = write_split(tmp_path / "in", "train")
    features[1, 2, 3] = np.nan
    features[4] = 1e6
    np.save(tmp_path / "in" / "train_ims.npy", features)
    caps = (tmp_path / "in" / "train_caps.txt").read_bytes().split(b"\n")
    caps[0], caps[10:15], caps[15] = b"", [b" "] * 5, b"caf\xe9"
    (tmp_path / "in" / "train_caps.txt").write_bytes(b"\n".join(caps))
    (tmp_path / "in" / "train_ids.txt").write_text("0\n1\n2\n3\n4\n3\n")
    files = ("scan", "--dir", tmp_path / "in")
    refused("4 of 6 items (66.7%) were skipped", *files, "--out", tmp_path / "out", code=1)
    assert not (tmp_path / "out" / "corpus.json").exists()
    assert not (tmp_path / "out" / "regions" / "manifest.json").exists()
    _, corpus, listed = corpus_of(tmp_path / "out", *files)
    assert [(it.id, len(it.captions)) for it in corpus.items("train")] == [("0", 4), ("3", 4)]
    assert list(sets_of(tmp_path / "out" / "regions")) == ["0", "3"]
    assert {
        ("id 1", "features: NaN or infinite values"),
        ("id 2", "no captions"),
        ("id 3, caption 1", "a caption that is not valid UTF-8"),
        ("id 3", "features: duplicate id"),
    } <= {*listed}
    assert any(where == "id 4" and "limit of float16" in why for where, why in listed)
    assert len(reasons(tmp_path / "out" / "regions")) == 3


OBJECTS = np.array([{}, []], dtype=object)


def ids_of_annotations(ims: Path, caps: Path, ids: Path) -> None:
    np.save(ims, np.repeat(np.load(ims), 5, axis=0))
    ids.write_text("\n".join(map(str, range(30))))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda ims, caps, ids: caps.write_text("one too many\n" + caps.read_text("utf-8"), "utf-8"),
            "6 rows, 31 captions, 6 ids: these do not fit",
        ),
        (
            lambda ims, caps, ids: ids.write_text("\n".join(["0"] * 5 + ["1", "2"] * 12 + ["3"])),
            "expected each id 5 times in a row",
        ),
        (lambda ims, *_: np.save(ims, RANDOM.standard_normal((30, 4, 8))), "expected each row 5 times"),
        (lambda ims, caps, ids: ids.write_text(""), "these do not fit"),
        (ids_of_annotations, "the same image and their ids differ"),
        (lambda ims, caps, ids: caps.unlink(), "train_caps.txt: no such file"),
        (lambda ims, *_: ims.write_bytes(ims.read_bytes()[:-100]), "cut short"),
        (lambda ims, *_: np.save(ims, OBJECTS, allow_pickle=True), "cannot be read"),
        (lambda ims, *_: np.save(ims, np.zeros((6, 4, 8), int)), "expected floats of shape"),
    ],
)
def test_scan_refuses_mismatched_or_damaged_files(tmp_path, spoil, message):
    write_split(tmp_path / "in", "train")
    spoil(*(tmp_path / "in" / f"train_{part}" for part in ("ims.npy", "caps.txt", "ids.txt")))
    refused(message, "scan", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
