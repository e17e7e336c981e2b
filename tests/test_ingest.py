from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from infra.errors import InputError
from infra.store import FeatureStore
from pipelines import ingest
from tasks.datasets.corpus import Corpus, Item, Skipped, write_corpus
from tasks.datasets.features import Features, as_set
from tasks.datasets.hdf5 import read_hdf5
from tasks.datasets.karpathy import read_karpathy
from tasks.datasets.scan import write_scan

ROOT = Path(__file__).parents[1]
RANDOM = np.random.default_rng(0)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """Call the verb; return its exit code and what it printed."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ingest", *map(str, arguments)])
        code = 0
        try:
            ingest.main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def reasons(folder: Path, name: str = "skipped.jsonl") -> list[tuple[str, str]]:
    path = folder / name
    lines = path.read_text().splitlines() if path.exists() else []
    return [(case["where"], case["why"]) for case in map(json.loads, lines)]


def sets_of(folder: Path) -> dict[str, np.ndarray]:
    store = FeatureStore.open(folder)
    store.verify()
    return {id: store[row] for row, id in enumerate(store.ids.to_pylist())}


# Karpathy's JSON


def entry(number: int, **changes: object) -> dict:
    """One image as in dataset_coco.json."""
    sentences = [
        {"tokens": ["a", "cat"], "raw": f"A cat, number {number}.", "imgid": number, "sentid": 5 * number + i}
        for i in range(5)
    ]
    return {
        "filepath": "val2014",
        "sentids": [5 * number + i for i in range(5)],
        "filename": f"COCO_val2014_{number:012d}.jpg",
        "imgid": number,
        "split": "train",
        "sentences": sentences,
        "cocoid": 1000 + number,
    } | changes


def write_json(folder: Path, entries: list, *, place: str = "val2014") -> Path:
    (folder / "images" / place).mkdir(parents=True)
    for one in entries:
        if isinstance(one, dict) and isinstance(one.get("filename"), str):
            (folder / "images" / place / one["filename"]).touch()
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": entries, "dataset": "coco"}))
    return path


def test_karpathy_splits_ids_and_paths(tmp_path: Path, run: Callable) -> None:
    splits = ["train", "restval", "val", "test", "restval"]
    path = write_json(tmp_path, [entry(i, split=split) for i, split in enumerate(splits)])
    code, out, _ = run("karpathy", "--json", path, "--images", tmp_path / "images", "--out", tmp_path / "out")
    assert code == 0
    assert "5 items (train 3, val 1, test 1), 25 captions" in out
    assert "nothing skipped" in out
    corpus = Corpus.open(tmp_path / "out")
    items = corpus.items("train")
    assert [it.id for it in items] == ["1000", "1001", "1004"]
    assert items[1].captions == ("A cat, number 1.",) * 5
    assert corpus.image_path(items[1]).is_file()
    options = ("--json", path, "--images", tmp_path / "images", "--out", tmp_path / "out", "--keep-restval")
    assert run("karpathy", *options)[0] == 0
    assert Corpus.open(tmp_path / "out").splits == {"train": 1, "restval": 2, "val": 1, "test": 1}


def test_karpathy_flickr_has_imgids_and_one_folder(tmp_path: Path) -> None:
    entries = [entry(i, filename=f"{i}.jpg") for i in range(3)]
    for one in entries:
        del one["cocoid"], one["filepath"]
    path = write_json(tmp_path, entries, place=".")
    items = list(read_karpathy(path, images=tmp_path / "images"))
    assert [(it.id, it.path) for it in items] == [("0", "0.jpg"), ("1", "1.jpg"), ("2", "2.jpg")]


def test_karpathy_images_may_be_given_as_the_folder_or_its_parent(tmp_path: Path) -> None:
    path = write_json(tmp_path, [entry(0)])
    for images, expected in (
        ("images", f"val2014/{entry(0)['filename']}"),
        ("images/val2014", entry(0)["filename"]),
    ):
        (item,) = read_karpathy(path, images=tmp_path / images)
        assert item.path == expected


def test_karpathy_skips_and_lists_what_is_bad(tmp_path: Path, run: Callable) -> None:
    entries = [
        entry(0),
        entry(1, filename="gone.jpg"),
        entry(2, sentences=[{"raw": " "}, {"raw": "Fine."}]),
        entry(3, sentences=[]),
        entry(4, split="holdout"),
        entry(5, cocoid=1000),
        entry(6, sentences=[{"text": "no raw"}]),
        "not an object",
        entry(8, split=3),
    ]
    path = write_json(tmp_path, entries)
    (tmp_path / "images" / "val2014" / "gone.jpg").unlink()
    code, out, _ = run("karpathy", "--json", path, "--images", tmp_path / "images", "--out", tmp_path / "out")
    assert code == 0
    assert [it.id for it in Corpus.open(tmp_path / "out").items("train")] == ["1000", "1002"]
    listed = dict(reasons(tmp_path / "out", "corpus.skipped.jsonl"))
    assert len(listed) == 8
    assert listed["id 1001, val2014/gone.jpg"].startswith("no such image in ")
    assert listed["id 1002, caption 1"] == "empty caption"
    assert listed["id 1003"] == "no captions"
    assert listed["dataset.json, image 4"] == "unknown split 'holdout', expected train, restval, val, test"
    assert listed["id 1000"] == "duplicate id; the first is kept"
    assert "KeyError: 'raw'" in listed["dataset.json, image 6"]
    assert "not of the expected form" in listed["dataset.json, image 7"]
    assert "not a string" in listed["dataset.json, image 8"]
    assert "skipped 8:" in out
    assert str(tmp_path / "out" / "corpus.skipped.jsonl") in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON at line 1, character"),
        (lambda text: "[]", "not of the expected form"),
        (lambda text: '{"images": {}}', "not of the expected form"),
        (lambda text: "\x00", "not valid JSON"),
    ],
)
def test_karpathy_refuses_a_file_that_is_not_one(
    tmp_path: Path, run: Callable, change: Callable, message: str
) -> None:
    path = write_json(tmp_path, [entry(0)])
    path.write_text(change(path.read_text()))
    code, _, err = run("karpathy", "--json", path, "--images", tmp_path / "images", "--out", tmp_path / "out")
    assert code == 2
    assert f"error: {path}: {message}" in err
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_karpathy_with_no_image_found_exits_with_2(tmp_path: Path, run: Callable) -> None:
    path = write_json(tmp_path, [entry(0), entry(1)])
    code, _, err = run("karpathy", "--json", path, "--images", tmp_path, "--out", tmp_path / "out")
    assert code == 2
    assert "nothing usable was found" in err
    assert "2 x no such image in" in err
    for missing in (
        ("--json", tmp_path / "x", "--images", tmp_path),
        ("--json", path, "--images", tmp_path / "x"),
    ):
        code, _, err = run("karpathy", *missing, "--out", tmp_path / "out")
        assert code == 2
        assert "no such f" in err


def test_karpathy_reads_the_real_corpus(shared: Path, tmp_path: Path, run: Callable) -> None:
    data = shared / "data" / "coco_mini"
    code, out, _ = run(
        "karpathy", "--json", data / "dataset_coco_mini.json", "--images", data, "--out", tmp_path
    )
    assert code == 0
    assert "nothing skipped" in out
    corpus = Corpus.open(tmp_path)
    assert corpus.splits == {"train": 1359, "val": 195, "test": 1064}
    first = corpus.items("test")[0]
    assert first.id == "42"
    assert first.captions[1] == "A dog sleeping on a show rack in the shoes."
    assert corpus.image_path(first).is_file()
    assert sum(min(5, len(it.captions)) for split in corpus.splits for it in corpus.items(split)) == 13090


# SCAN's files


def write_split(
    folder: Path,
    name: str,
    *,
    images: int = 6,
    start: int = 0,
    each: int = 5,
    rows: str = "once",
    ids: str = "once",
) -> np.ndarray:
    """Write the three files of a split; `rows` and `ids` are there once an image, or for each caption."""
    folder.mkdir(exist_ok=True)
    features = RANDOM.standard_normal((images, 4, 8)).astype(np.float32)
    np.save(folder / f"{name}_ims.npy", np.repeat(features, each, axis=0) if rows == "each" else features)
    captions = [f"caption {i} of café {n}\u2028!" for n in range(start, start + images) for i in range(each)]
    (folder / f"{name}_caps.txt").write_text("\n".join(captions) + "\n", "utf-8")
    names = [str(n) for n in range(start, start + images) for _ in range(each if ids == "each" else 1)]
    (folder / f"{name}_ids.txt").write_text("\n".join(names))
    return features


@pytest.mark.parametrize("rows", ["once", "each"])
@pytest.mark.parametrize("ids", ["once", "each"])
@pytest.mark.parametrize("each", [1, 5])
def test_scan_rows_and_ids_once_or_for_each_caption(
    tmp_path: Path, run: Callable, rows: str, ids: str, each: int
) -> None:
    train = write_split(tmp_path / "in", "train", rows=rows, ids=ids, each=each)
    dev = write_split(tmp_path / "in", "dev", images=3, start=6, rows=rows, ids=ids, each=each)
    code, out, _ = run("scan", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert code == 0
    assert f"9 items (train 6, val 3), {9 * each} captions" in out
    corpus = Corpus.open(tmp_path / "out")
    assert [it.id for it in corpus.items("val")] == ["6", "7", "8"]
    assert corpus.items("train")[2].captions == tuple(f"caption {i} of café 2 !" for i in range(each))
    assert not any("b'" in text for it in corpus.items("train") for text in it.captions)
    found = sets_of(tmp_path / "out" / "regions")
    assert list(found) == [str(n) for n in range(9)]
    for n, x_ND in enumerate([*train, *dev]):
        assert np.array_equal(found[str(n)], x_ND.astype(np.float16))


def test_scan_reads_testall_and_not_its_first_fold(tmp_path: Path, run: Callable) -> None:
    write_split(tmp_path / "in", "test", images=2, rows="each")
    write_split(tmp_path / "in", "testall", images=10, rows="each")
    code, out, _ = run("scan", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--dtype", "float32")
    assert code == 0
    assert "the first fold of testall, which is read: test_*" in out
    assert Corpus.open(tmp_path / "out").splits == {"test": 10}
    assert FeatureStore.open(tmp_path / "out" / "regions").dtype == "float32"


def test_scan_leaves_bad_rows_out_of_both(tmp_path: Path, run: Callable) -> None:
    features = write_split(tmp_path / "in", "train")
    features[1, 2, 3] = np.nan
    features[4] = 1e6
    np.save(tmp_path / "in" / "train_ims.npy", features)
    caps = (tmp_path / "in" / "train_caps.txt").read_bytes().split(b"\n")
    caps[0], caps[10:15], caps[15] = b"", [b" "] * 5, b"caf\xe9"
    (tmp_path / "in" / "train_caps.txt").write_bytes(b"\n".join(caps))
    (tmp_path / "in" / "train_ids.txt").write_text("0\n1\n2\n3\n4\n3\n")
    code, _, _ = run("scan", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert code == 0
    items = Corpus.open(tmp_path / "out").items("train")
    assert [(it.id, len(it.captions)) for it in items] == [("0", 4), ("3", 4)]
    assert list(sets_of(tmp_path / "out" / "regions")) == ["0", "3"]
    listed = reasons(tmp_path / "out", "corpus.skipped.jsonl")
    assert ("id 1", "features: NaN or infinite values") in listed
    assert ("id 2", "no captions") in listed
    assert ("id 3, caption 1", "caption that is not valid UTF-8") in listed
    assert ("id 3", "features: duplicate id") in listed
    assert any(where == "id 4" and "limit of float16" in why for where, why in listed)
    assert len(reasons(tmp_path / "out" / "regions")) == 3


def spoil(folder: Path, name: str) -> None:
    ims, caps, ids = (folder / f"train_{part}" for part in ("ims.npy", "caps.txt", "ids.txt"))
    if name == "lengths":
        caps.write_text("one caption too many\n" + caps.read_text("utf-8"), "utf-8")
    elif name == "annotation ids":
        np.save(ims, np.repeat(np.load(ims), 5, axis=0))
        ids.write_text("\n".join(map(str, range(30))))
    elif name == "ids out of order":
        ids.write_text("\n".join(["0"] * 5 + ["1", "2"] * 12 + ["3"]))
    elif name == "rows that differ":
        np.save(ims, RANDOM.standard_normal((30, 4, 8)))
    elif name == "no ids":
        ids.write_text("")
    elif name == "missing":
        caps.unlink()
    elif name == "cut short":
        ims.write_bytes(ims.read_bytes()[:-100])
    elif name == "pickled":
        np.save(ims, np.array([{}, []], dtype=object), allow_pickle=True)
    elif name == "integers":
        np.save(ims, np.zeros((6, 4, 8), int))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lengths", "6 rows, 31 captions, 6 ids: these do not fit"),
        ("annotation ids", "the same image and their ids differ"),
        ("ids out of order", "expected each id 5 times in a row"),
        ("rows that differ", "expected each row 5 times"),
        ("no ids", "these do not fit"),
        ("missing", "train_caps.txt: no such file"),
        ("cut short", "cut short"),
        ("pickled", "cannot be read"),
        ("integers", "expected floats of shape"),
    ],
)
def test_scan_refuses_files_that_do_not_fit(tmp_path: Path, run: Callable, name: str, message: str) -> None:
    write_split(tmp_path / "in", "train")
    spoil(tmp_path / "in", name)
    code, _, err = run("scan", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_scan_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_split(tmp_path / "in", "train", images=60)
    write_scan(tmp_path / "in", out=tmp_path / "whole", shard_bytes=1024)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("infra.store_writer.StoreWriter.close", stop)
        with pytest.raises(KeyboardInterrupt):
            write_scan(tmp_path / "in", out=tmp_path / "torn", shard_bytes=1024)
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(tmp_path / "torn" / "regions")
    write_scan(tmp_path / "in", out=tmp_path / "torn", shard_bytes=1024)
    for name in (
        "corpus.arrow",
        "regions/manifest.json",
        *(f"regions/shard-{i:05d}.arrow" for i in range(4)),
    ):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


SCAN_IN_LITTLE_MEMORY = """
import sys, threading, time
from tasks.datasets.scan import write_scan

def own():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile")))

before, peak, done = own(), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.01):
        peak = max(peak, own())
thread = threading.Thread(target=watch)
thread.start()
write_scan(sys.argv[1], out=sys.argv[2], shard_bytes=16 << 20)
done.set(); thread.join()
print(peak - before)
"""


def test_scan_takes_little_memory(tmp_path: Path) -> None:
    folder, images = tmp_path / "in", 700
    folder.mkdir()
    rows = np.lib.format.open_memmap(
        folder / "train_ims.npy", mode="w+", dtype="f4", shape=(images, 36, 2048)
    )
    rows[:] = RANDOM.standard_normal((36, 2048), dtype=np.float32)
    del rows
    (folder / "train_caps.txt").write_text("a caption\n" * 5 * images)
    (folder / "train_ids.txt").write_text("\n".join(map(str, range(images))))
    assert (folder / "train_ims.npy").stat().st_size > 200e6
    command = [sys.executable, "-c", SCAN_IN_LITTLE_MEMORY, str(folder), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < 150_000  # kB; a shard and a mapped block, not the 206,000 of the file


# BUTD's TSV


def encode(x: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(x, "<f4").tobytes()).decode()


def line(id: object, x_ND: np.ndarray) -> str:
    boxes = np.zeros((len(x_ND), 4))
    return "\t".join([str(id), "640", "480", str(len(x_ND)), encode(boxes), encode(x_ND)]) + "\n"


def test_butd_reads_several_files_with_bad_rows(tmp_path: Path, run: Callable) -> None:
    xs = [RANDOM.standard_normal((n, 8)).astype(np.float32) for n in (10, 36, 100, 2, 3)]
    nan = xs[3].copy()
    nan[0, 0] = np.nan
    good, rest = line(0, xs[0]), line(1, xs[1])
    first = [
        good,
        "just a few\tcolumns\n",
        line(5, xs[3])[:-2] + "\n",  # padding is gone
        line(6, xs[3]).replace("480\t2", "480\t3"),
        line(7, xs[3]).replace("480\t2", "480\ttwo"),
        line(8, nan),
        line(9, xs[3])[:-5] + "*&%$\n",
        "\n",
        rest,
    ]
    (tmp_path / "a.tsv").write_text("".join(first))
    (tmp_path / "b.tsv").write_text(line(2, xs[2]) + line(0, xs[4]) + line(4, xs[4])[:60])
    options = ("--dim", 8, "--dtype", "float32", "--out", tmp_path / "out")
    code, out, _ = run("butd", "--tsv", tmp_path / "a.tsv", tmp_path / "b.tsv", *options)
    assert code == 0
    found = sets_of(tmp_path / "out")
    assert list(found) == ["0", "1", "2"]
    for id, x_ND in zip(found, xs, strict=False):
        assert np.array_equal(found[id], x_ND)
    assert reasons(tmp_path / "out") == [
        ("a.tsv:2", "not 6 columns, such as a row that is cut short"),
        ("a.tsv:3 (id 5)", "features that are not valid base64"),
        ("a.tsv:4 (id 6)", "features of another size than boxes x 8 x 4 bytes"),
        ("a.tsv:5 (id 7)", "a number of boxes that is not a number"),
        ("a.tsv:6 (id 8)", "NaN or infinite values"),
        ("a.tsv:7 (id 9)", "features that are not valid base64"),
        ("a.tsv:8", "not 6 columns, such as a row that is cut short"),
        ("b.tsv:2 (id 0)", "duplicate id"),
        ("b.tsv:3", "not 6 columns, such as a row that is cut short"),
    ]
    assert "3 x not 6 columns, such as a row that is cut short: a.tsv:2, a.tsv:8, b.tsv:3" in out


def test_butd_cut_within_the_last_features(tmp_path: Path, run: Callable) -> None:
    x_ND = RANDOM.standard_normal((36, 8))
    (tmp_path / "a.tsv").write_text(line(1, x_ND) + line(2, x_ND)[:-41])
    assert run("butd", "--tsv", tmp_path / "a.tsv", "--dim", 8, "--out", tmp_path / "out")[0] == 0
    assert reasons(tmp_path / "out") == [
        ("a.tsv:2 (id 2)", "features of another size than boxes x 8 x 4 bytes")
    ]


def test_butd_of_the_wrong_width_or_missing_exits_with_2(
    tmp_path: Path, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tsv").write_text(line(1, np.ones((3, 8))))
    code, _, err = run("butd", "--tsv", tmp_path / "a.tsv", "--out", tmp_path / "out")
    assert code == 2
    assert "nothing usable was found; skipped 1:" in err
    assert "boxes x 2048 x 4 bytes: a.tsv:1 (id 1)" in err
    code, _, err = run("butd", "--tsv", tmp_path / "x.tsv", "--out", tmp_path / "out")
    assert code == 2
    assert "x.tsv: no such file" in err
    monkeypatch.setattr("tasks.datasets.butd._LINE_LIMIT", 100)
    code, _, err = run("butd", "--tsv", tmp_path / "a.tsv", "--dim", 8, "--out", tmp_path / "out")
    assert code == 2
    assert "a line of over 100 bytes" in err


# HDF5


def write_hdf5(folder: Path, **datasets: np.ndarray) -> Path:
    with h5py.File(folder / "train.hdf5", "w") as file:
        for name, data in datasets.items():
            file[name] = data
    return folder / "train.hdf5"


@pytest.mark.parametrize("form", ["map", "list", "npy", "txt", "inside", "inside-text"])
def test_hdf5_with_ids_in_every_form(
    tmp_path: Path, run: Callable, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.datasets.hdf5._BLOCK", 300)  # two rows at a time
    features = RANDOM.standard_normal((5, 3, 8)).astype(np.float32)
    ids = [9, 7, 5, 3, 1]
    inside = {"inside": np.array(ids), "inside-text": np.array([str(id) for id in ids], "S")}
    path = write_hdf5(
        tmp_path, image_features=features, **({"image_ids": inside[form]} if form in inside else {})
    )
    if form == "map":
        (tmp_path / "ids.json").write_text(
            json.dumps({str(id): row for row, id in reversed(list(enumerate(ids)))})
        )
    elif form == "list":
        (tmp_path / "ids.json").write_text(json.dumps(ids))
    elif form == "npy":
        np.save(tmp_path / "ids.npy", ids)
    elif form == "txt":
        (tmp_path / "ids.txt").write_text("\n".join(map(str, ids)))
    named = next(iter(tmp_path.glob("ids.*")), None)
    options = ("--ids", named) if named else ()
    code, out, _ = run("hdf5", "--file", path, *options, "--out", tmp_path / "out", "--dtype", "float32")
    assert code == 0
    assert "5 sets, 15 vectors of 8 x float32" in out
    found = sets_of(tmp_path / "out")
    assert list(found) == ["9", "7", "5", "3", "1"]
    assert np.array_equal(np.stack(list(found.values())), features)


def test_hdf5_adaptive_layout(tmp_path: Path) -> None:
    features = RANDOM.standard_normal((10, 8)).astype(np.float32)
    spans = np.array([[4, 10], [0, 3], [3, 4], [5, 5], [8, 11]])
    path = write_hdf5(tmp_path, image_features=features, pos_boxes=spans)
    (tmp_path / "ids.json").write_text('{"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 2, "h": "x"}')
    entries = list(read_hdf5(path, ids=tmp_path / "ids.json"))
    found = {one.id: one.x_ND for one in entries if isinstance(one, Features)}
    assert list(found) == ["b", "c", "a"]
    assert np.array_equal(found["a"], features[4:10])
    assert np.array_equal(found["b"], features[0:3])
    skipped = {one.where: one.why for one in entries if isinstance(one, Skipped)}
    assert skipped == {
        "id f": "an id whose row is not one of 0 to 4",
        "id h": "an id whose row is not one of 0 to 4",
        "id g": "an id whose row has another id already",
        "train.hdf5, row 3 (id d)": "pos_boxes beyond the vectors, or empty",
        "train.hdf5, row 4 (id e)": "pos_boxes beyond the vectors, or empty",
    }


def test_hdf5_rows_without_id_are_listed(tmp_path: Path, run: Callable) -> None:
    path = write_hdf5(tmp_path, image_features=np.ones((3, 2, 4)), image_ids=np.array([1, 2]))
    assert run("hdf5", "--file", path, "--out", tmp_path / "out")[0] == 0
    assert reasons(tmp_path / "out") == [("train.hdf5, row 2", "a row that has no id")]


def test_hdf5_refusals(tmp_path: Path, run: Callable) -> None:
    path = write_hdf5(tmp_path, features=np.ones((3, 2, 4)))
    (tmp_path / "ids.pkl").write_bytes(pickle.dumps({1: 0}))
    (tmp_path / "ids.json").write_text('"one"')
    np.save(tmp_path / "ids.npy", np.array([{}], dtype=object), allow_pickle=True)
    torn = tmp_path / "torn.hdf5"
    torn.write_bytes(path.read_bytes()[:-300])
    cases = {
        (path,): "no dataset 'image_features' of shape (n, N, D); --key names one of: features (3, 2, 4)",
        (path, "--key", "features"): "no dataset 'image_ids'; give a file of ids",
        (path, "--key", "features", "--ids", tmp_path / "ids.pkl"): "pickles are not read",
        (path, "--key", "features", "--ids", tmp_path / "ids.json"): "expected a list of ids, or {id: row}",
        (path, "--key", "features", "--ids", tmp_path / "ids.npy"): "cannot be read as an array of ids",
        (torn, "--key", "features"): "cannot be read as HDF5, it may be cut short",
        (tmp_path / "none.hdf5",): "no such file",
    }
    for options, message in cases.items():
        code, _, err = run("hdf5", "--file", *options, "--out", tmp_path / "out")
        assert code == 2
        assert message in err
    assert not (tmp_path / "out").exists()


def test_the_advice_on_pickled_ids_works(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path, image_features=np.ones((2, 2, 4)))
    (tmp_path / "ids.pkl").write_bytes(pickle.dumps({30: 0, 40: 1}))
    with pytest.raises(InputError) as caught:
        list(read_hdf5(path, ids=tmp_path / "ids.pkl"))
    advice = str(caught.value).partition("python -c ")[2]
    subprocess.run([sys.executable, "-c", advice.strip('"')], check=True, cwd=tmp_path)
    assert [one.id for one in read_hdf5(path, ids=tmp_path / "ids.json")] == ["30", "40"]


# folders of arrays


def test_arrays_of_many_shapes(tmp_path: Path, run: Callable) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    grid = RANDOM.standard_normal((7, 7, 8)).astype(np.float32)
    np.save(folder / "a.npy", grid[0])
    np.save(folder / "b.npy", grid[None, 0])
    np.save(folder / "c.npy", grid)
    np.savez(folder / "d.npz", features=grid[1], bbox=np.ones((7, 4)))
    np.savez_compressed(folder / "e.npz", x=grid[2], info=np.ones(1))
    np.savez(folder / "f.npz", anything=grid[3])
    np.save(folder / "g.npy", grid[0, 0])
    bad = {
        "k.npz": lambda path: np.savez(path, one=grid, two=grid),
        "l.npy": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
        "m.npz": lambda path: np.savez(path, x=np.array([{}], dtype=object)),
        "n.npy": lambda path: path.write_bytes((folder / "a.npy").read_bytes()[:-9]),
        "o.npz": lambda path: path.write_bytes((folder / "d.npz").read_bytes()[:-99]),
        "p.npy": lambda path: path.touch(),
        "q.txt": lambda path: path.touch(),
        "r.npy": lambda path: np.save(path, np.float32(1)),
        "s.npy": lambda path: np.save(path, grid[..., :5]),
        "t.npy": lambda path: np.save(path, grid[:0]),
        "u.npy": lambda path: np.save(path, grid.astype("c8")),
        "v.npy": lambda path: np.save(path, np.zeros((5, 0))),
        "a.npz": lambda path: np.savez(path, x=grid[5]),
    }
    for name, make in bad.items():
        make(folder / name)
    code, _, _ = run("arrays", "--dir", folder, "--out", tmp_path / "out", "--dtype", "float32")
    assert code == 0
    found = sets_of(tmp_path / "out")
    expected = {
        "a": grid[0],
        "b": grid[0],
        "c": grid.reshape(49, 8),
        "d": grid[1],
        "e": grid[2],
        "f": grid[3],
    }
    assert list(found) == [*expected, "g"]
    for id, x_ND in expected.items():
        assert np.array_equal(found[id], x_ND)
    listed = dict(reasons(tmp_path / "out"))
    assert set(listed) == set(bad)
    assert listed["k.npz"] == "2 arrays, none called features or x"
    assert "pickled" in listed["l.npy"]
    assert "pickled" in listed["m.npz"]
    assert listed["n.npy"] == listed["o.npz"] == listed["p.npy"] == "damaged or cut short"
    assert listed["q.txt"] == "not a .npy or .npz file"
    assert listed["s.npy"] == "vectors of width 5, expected 8"
    assert listed["t.npy"] == "an empty set"
    assert listed["a.npz"] == "duplicate id"


def test_channels_first() -> None:
    map_DHW = RANDOM.standard_normal((8, 2, 3))
    expected = map_DHW.reshape(8, 6).T
    assert np.array_equal(as_set(map_DHW, channels_first=True), expected)
    assert np.array_equal(as_set(map_DHW[None], channels_first=True), expected)
    assert as_set(map_DHW).shape == (16, 3)


def test_arrays_of_an_empty_or_missing_folder_exit_with_2(tmp_path: Path, run: Callable) -> None:
    (tmp_path / "in").mkdir()
    for folder, message in (("in", "nothing usable was found; nothing skipped"), ("x", "x: no such folder")):
        code, _, err = run("arrays", "--dir", tmp_path / folder, "--out", tmp_path / "out")
        assert code == 2
        assert message in err


# what is common to all


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of arrays with the ids 0 to 9."""
    (tmp_path / "in").mkdir()
    for i in range(10):
        np.save(tmp_path / "in" / f"{i}.npy", np.full((2, 4), i, np.float32))
    return tmp_path / "in"


def test_ids_are_checked_against_a_corpus(folder: Path, tmp_path: Path, run: Callable) -> None:
    items = [Item(id=str(i), split="train", captions=("a",)) for i in range(3, 14)]
    write_corpus(tmp_path / "corpus", items, source={})
    code, out, _ = run("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", tmp_path / "corpus")
    assert code == 0
    assert "ids with captions only: 4 such as 10, 11, 12, all in" in out
    assert "ids with features only: 3 such as 0, 1, 2, all in" in out
    listed = json.loads((tmp_path / "out" / "unmatched.json").read_text())
    assert listed == {"captions only": ["10", "11", "12", "13"], "features only": ["0", "1", "2"]}


def test_a_missing_corpus_is_noticed_before_the_work(folder: Path, tmp_path: Path, run: Callable) -> None:
    code, _, err = run("arrays", "--dir", folder, "--out", tmp_path / "out", "--corpus", tmp_path / "x")
    assert code == 2
    assert "corpus.json: no such file" in err
    assert not (tmp_path / "out").exists()


def test_verify_good_and_bad(folder: Path, tmp_path: Path, run: Callable) -> None:
    run("arrays", "--dir", folder, "--out", tmp_path / "out")
    code, out, _ = run("verify", "--store", tmp_path / "out")
    assert code == 0
    assert "good: 10 sets, 20 vectors of 4 x float16" in out
    shard = tmp_path / "out" / "shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[200] ^= 4
    shard.write_bytes(data)
    code, _, err = run("verify", "--store", tmp_path / "out")
    assert code == 2
    assert f"error: {shard}: its bytes changed" in err


def test_a_complete_store_is_not_written_over(folder: Path, tmp_path: Path, run: Callable) -> None:
    assert run("arrays", "--dir", folder, "--out", tmp_path / "out")[0] == 0
    code, _, err = run("arrays", "--dir", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "holds a complete store; remove this folder" in err


def test_an_output_that_cannot_be_a_folder(folder: Path, run: Callable) -> None:
    code, _, err = run("arrays", "--dir", folder, "--out", folder / "0.npy" / "out")
    assert code == 2
    assert "cannot make this folder" in err


def test_wrong_usage_exits_with_2() -> None:
    command = [sys.executable, "-m", "pipelines.ingest", "karpathy", "--jsn", "x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "--json" in done.stderr + done.stdout
