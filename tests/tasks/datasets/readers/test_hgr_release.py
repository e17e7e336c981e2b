import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from annotations import HGR_NAMES, write_hgr
from verbs import corpus_of, ingested, reasons, refused, sets_of

from polypool.infra.errors import InputError
from polypool.tasks.datasets.readers.hgr_release import Hgr

RANDOM = np.random.default_rng(0)


def files(captions: Path, splits: Path) -> tuple[object, ...]:
    return "hgr", "--captions", captions, "--splits", splits


def test_hgr_names_match_with_or_without_slashes(tmp_path):
    captions, splits = write_hgr(tmp_path)
    captions.write_text(captions.read_text().replace('"tumblr/one":', '"tumblr_one":'))
    (tmp_path / "videos" / "a" / "b").mkdir(parents=True)
    (tmp_path / "videos" / "a" / "b" / "c.mp4").touch()
    (tmp_path / "videos" / "tumblr_one.gif").touch()
    corpus = corpus_of(tmp_path / "out", *files(captions, splits), "--videos", tmp_path / "videos")[1]
    assert [item.path for item in corpus.items("train")] == ["tumblr_one.gif"]
    assert [item.path for item in corpus.items("test")] == ["a/b/c.mp4"]


def test_hgr_skips_and_lists_bad_captions_and_names(tmp_path):
    names = {"trn": ["x/y", "v1", "v1", "v2", "v3"], "val": ["x_y", "v4"], "tst": ["v2", "v5"]}
    captions, splits = write_hgr(tmp_path, names, v3="no list", v4=["fine", 3, ""], stray=["a"], v5=[])
    text = captions.read_text()
    captions.write_text(text[:-1] + ', "s/t": ["a"], "s_t": ["b"]}')
    _, corpus, listed = corpus_of(tmp_path / "out", *files(captions, splits))
    used = {split: [it.id for it in corpus.items(split)] for split in corpus.splits}
    assert used == {"train": ["x_y", "v1", "v2"], "val": ["v4"]}
    assert corpus.items("train")[0].captions[0] == "x/y is seen"
    assert corpus.items("val")[0].captions == ("fine",)
    second = "duplicate id; the first is kept"
    assert sorted(listed) == sorted(
        [
            ("val_names.npy, x_y", second),
            ("trn_names.npy, v1", second),
            ("tst_names.npy, v2", second),
            ("ref_captions.json, x_y", second),
            ("ref_captions.json, s_t", second),
            ("ref_captions.json, s_t", "captions of a video that no list has"),
            ("ref_captions.json, v3", "captions that are not a list"),
            ("id v4, caption 2", "a caption that is not a string"),
            ("ref_captions.json, stray", "captions of a video that no list has"),
            ("id v3", "no captions"),
            ("id v5", "no captions"),
            ("id v4, caption 3", "a caption that is empty"),
        ]
    )


def test_hgr_refuses_bad_files_and_pickle_advice_works(tmp_path):
    captions, splits = write_hgr(tmp_path)
    np.save(splits / "val_names.npy", np.array(["video3"], object), allow_pickle=True)
    with pytest.raises(InputError, match="pickles are not read, as they can run code") as caught:
        list(Hgr(captions=captions, splits=splits).read().rows)
    advice = str(caught.value).partition("anew as text: python ")[2]
    subprocess.run(f"{sys.executable} {advice}", shell=True, check=True, cwd=tmp_path)
    assert corpus_of(tmp_path / "out", *files(captions, splits))[1].items("val")[0].id == "video3"
    captions.write_text('["a"]')
    for message in ("not of the expected form: HGR's ref_captions.json", "no such file", "no such folder"):
        refused(message, *files(captions, splits), "--out", tmp_path / "out")
        if message.startswith("not"):
            (splits / "tst_names.npy").unlink()
        splits = tmp_path / "gone" if message == "no such file" else splits


def write_frames(folder: Path, names: dict[str, list[str]] = HGR_NAMES) -> dict[str, np.ndarray]:
    """Write the frame features (SA); return the set of each id."""
    folder.mkdir(parents=True)
    sets = {}
    for split, listed in names.items():
        with h5py.File(folder / f"{split}_ft.hdf5", "w") as file:
            for frames, name in enumerate(listed, start=2):
                key = name.replace("/", "_")
                file[key] = sets[key] = RANDOM.standard_normal((frames, 8)).astype(np.float32)
    return sets


def ingest_features(folder: Path, splits: Path, out: Path) -> str:
    read = ("hgr-features", "--dir", folder, "--splits", splits, "--out", out)
    return ingested(*read, "--dtype", "float32", "--allow-skipped")


def test_hgr_reads_frames_captions_and_splits(tmp_path):
    captions, splits = write_hgr(tmp_path)
    sets = write_frames(tmp_path / "SA" / "resnet152.pth")
    out = ingest_features(tmp_path / "SA" / "resnet152.pth", splits, tmp_path / "store")
    assert "6 sets, 16 vectors of 8 x float32" in out
    assert "nothing skipped" in out
    found = sets_of(tmp_path / "store")
    assert list(found) == ["tumblr_one", "video2", "video10", "video3", "video5", "a_b_c"]
    assert all(np.array_equal(x_ND, sets[id]) for id, x_ND in found.items())
    out, corpus, skipped = corpus_of(tmp_path / "out", *files(captions, splits))
    assert "6 items (train 3, val 1, test 2), 12 captions" in out
    assert [item.id for split in corpus.splits for item in corpus.items(split)] == list(found)
    assert corpus.items("test")[1].captions == ("a/b/c is seen", "someone looks at it")
    assert not skipped


def test_hgr_reads_mean_pooled_features(tmp_path):
    _, splits = write_hgr(tmp_path, HGR_NAMES | {"val": ["video3", "video3", "video7"]})
    (tmp_path / "MP").mkdir()
    rows = {split: RANDOM.standard_normal((n, 8)).astype(np.float32) for split, n in (("trn", 3), ("val", 3))}
    for split, x_MD in rows.items():
        np.save(tmp_path / "MP" / f"{split}_ft.npy", x_MD)
    assert "5 sets, 5 vectors" in ingest_features(tmp_path / "MP", splits, tmp_path / "store")
    assert reasons(tmp_path / "store") == [
        ("val_names.npy, video3", "duplicate id; the first is kept"),
        ("tst_ft", "no such .hdf5 or .npy file"),
    ]
    found = sets_of(tmp_path / "store")
    assert list(found) == ["tumblr_one", "video2", "video10", "video3", "video7"]
    expected = np.concatenate([rows["trn"], rows["val"][[0, 2]]])
    assert np.array_equal(np.stack(list(found.values())), expected[:, None])


def test_hgr_skips_and_lists_bad_features(tmp_path):
    _, splits = write_hgr(tmp_path, {"trn": ["a", "b", "c", "d", "x/y"], "val": ["e"], "tst": ["x_y"]})
    with h5py.File(tmp_path / "trn_ft.hdf5", "w") as file:
        file["a"] = np.ones((2, 8))
        file["b"] = np.ones((0, 8))
        file["c"] = np.float32(1)
        file["d"] = np.full((1, 8), np.nan)
        file["stray"] = np.ones((2, 8))
    with h5py.File(tmp_path / "val_ft.hdf5", "w") as file:
        file.create_group("e")
    ingest_features(tmp_path, splits, tmp_path / "store")
    assert list(sets_of(tmp_path / "store")) == ["a"]
    assert sorted(reasons(tmp_path / "store")) == sorted(
        [
            ("tst_names.npy, x_y", "duplicate id; the first is kept"),
            ("trn_ft.hdf5, x_y", "a listed video that has no features"),
            ("trn_ft.hdf5, b", "an empty set"),
            ("trn_ft.hdf5, c", "not a data set (frames, D)"),
            ("trn_ft.hdf5, d", "NaN or infinite values"),
            ("trn_ft.hdf5, stray", "features of a video that the list does not have"),
            ("val_ft.hdf5, e", "a listed video that has no features"),
            ("tst_ft", "no such .hdf5 or .npy file"),
        ]
    )
