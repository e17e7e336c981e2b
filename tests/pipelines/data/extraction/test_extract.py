from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from fake_extractor import bytes_of, corpus_of_files, in_this_process, interrupted
from pictures import write_odd
from PIL import Image
from verbs import reasons

from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data import extraction
from polypool.tasks.datasets.corpus import Corpus, Item, Tolerance, write_corpus

extract = functools.partial(verb.extract, tolerance=Tolerance(allow_skipped=True))


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (20 + seed, 30, 3), np.uint8)).convert(mode)


@pytest.fixture(scope="module")
def bad() -> dict[str, str]:
    """The names of unusable images, with parts of the reasons."""
    return {}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, bad: dict[str, str]) -> Path:
    """Images of several modes in two splits, with unusable ones among them."""
    folder, names = tmp_path_factory.mktemp("corpus"), []
    images = folder / "images"
    images.mkdir()
    for seed in range(40):
        mode = ("RGB", "L", "RGBA", "CMYK", "P")[seed % 5]
        names.append(f"{seed:02d}.{'tif' if mode == 'CMYK' else 'png'}")
        picture(seed, mode).save(images / names[-1])
    odd = write_odd(images)  # ids are names without the extension
    bad |= {name: why for name, why in odd.items() if name.isprintable() and "large." not in name}
    for at, name in enumerate(bad):
        names.insert(9 * at, name)  # most go to the end
    return corpus_of_files(folder, images, names)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return in_this_process(monkeypatch)


def wanted(corpus: Path) -> list[Item]:
    opened = Corpus.open(corpus)
    return [item for split in opened.splits for item in opened.items(split) if item.id.isdigit()]


@pytest.fixture(scope="module")
def store(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        extract(corpus=corpus, out=folder, backbone="cells(grid=3)", batch=3)
    return folder


def test_features_match_backbone_and_bad_images_are_listed(corpus, bad, store):
    opened, items = FeatureStore.open(store), wanted(corpus)
    opened.verify()
    assert opened.ids.to_pylist() == [item.id for item in items]
    cells = Cells(grid=3)
    for row, item in enumerate(items):
        with Image.open(Corpus.open(corpus).image_path(item)) as image:
            np.testing.assert_array_equal(opened[row], cells([image])[0].astype(np.float16))
    manifest = opened.manifest
    assert manifest.source["extractor"] == Cells(grid=3).describe()
    assert manifest.source["corpus"] == Corpus.open(corpus).digest
    train = [item.id for item in items if item.split == "train"]
    vectors = np.concatenate([opened[row] for row in opened.rows(train)]).astype(float)
    assert manifest.statistics["sets"] == len(train)
    np.testing.assert_allclose(manifest.statistics["mean"], vectors.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(manifest.statistics["std"], vectors.std(0), rtol=1e-6, atol=1e-9)
    found = {where.split("/")[-1]: why for where, why in reasons(store)}
    assert set(found) == set(bad)
    assert all(bad[name] in why for name, why in found.items())
    assert manifest.skipped["count"] == len(bad)


def test_extract_needs_images_and_statistics_need_train_split(tmp_path, here):
    items = [Item(id=str(i), split="train", captions=("a",), path=f"{i}.jpg") for i in range(3)]
    write_corpus(tmp_path / "gone", items, source={}, images=tmp_path)
    with pytest.raises(InputError, match="3 x no such file"):
        extract(corpus=tmp_path / "gone", out=tmp_path / "store")
    assert not (tmp_path / "store" / "manifest.json").exists()
    write_corpus(tmp_path / "without", [Item(id="a", split="train", captions=("a",))], source={})
    with pytest.raises(InputError, match="has no file"):
        extract(corpus=tmp_path / "without", out=tmp_path / "store")
    picture(0).save(tmp_path / "good.png")
    items[1:] = [Item(id="b", split="test", captions=("b",), path="good.png")]
    write_corpus(tmp_path / "test", items, source={}, images=tmp_path)
    extract(corpus=tmp_path / "test", out=tmp_path / "store")
    assert FeatureStore.open(tmp_path / "store").manifest.statistics is None


def test_changed_and_missing_images_are_listed(tmp_path, here):
    names = [f"{n}.bmp" for n in range(4)]  # a format without checksums
    for n, name in enumerate(names):
        picture(n).save(tmp_path / name)
    corpus_of_files(tmp_path, tmp_path, names)
    changed = bytearray((tmp_path / names[1]).read_bytes())
    changed[500] ^= 1
    (tmp_path / names[1]).write_bytes(changed)
    (tmp_path / names[2]).unlink()
    extract(corpus=tmp_path, out=tmp_path / "store")
    assert dict(reasons(tmp_path / "store")) == {
        f"id 1, {tmp_path / names[1]}": "changed since it was ingested: its SHA-256 differs",
        f"id 2, {tmp_path / names[2]}": "no such file",
    }


def test_store_stays_readable_while_splits_are_added(corpus, tmp_path, monkeypatch, here):
    nine_sets = 9 * 9 * Cells.dim * 2
    monkeypatch.setattr(
        extraction, "StoreWriter", functools.partial(extraction.StoreWriter, shard_bytes=nine_sets)
    )
    what = {"corpus": corpus, "backbone": "cells(grid=3)", "batch": 3, "out": tmp_path / "store"}
    extract(**what, splits=("test",), limit=5)
    first = FeatureStore.open(tmp_path / "store").ids.to_pylist()
    assert first == [item.id for item in wanted(corpus) if item.split == "test"][: len(first)]
    here.clear()
    with interrupted(after=20):
        extract(**what, splits=("train",))
    assert FeatureStore.open(tmp_path / "store").ids.to_pylist() == first
    extract(**what, splits=("train",))
    opened = FeatureStore.open(tmp_path / "store")
    opened.verify()
    train = [item.id for item in wanted(corpus) if item.split == "train"]
    assert opened.ids.to_pylist() == first + train
    assert opened.manifest.source["splits"] == ["test", "train"]
    assert opened.manifest.source["limit"] == {"test": 5, "train": None}
    assert opened.manifest.statistics["sets"] == len(train)
    assert sum(id in first for id in here) <= 4  # at most the rest of a batch, in each of two attempts
    extract(**what, splits=("test",))
    assert set(FeatureStore.open(tmp_path / "store").ids.to_pylist()) == {it.id for it in wanted(corpus)}
    assert FeatureStore.open(tmp_path / "store").manifest.source["limit"] is None


def test_store_on_the_hub_is_private_and_created(corpus, tmp_path, hub):
    what = {"corpus": corpus, "splits": ("test",)}
    extract(**what, out="hf://datasets/me/cells")
    extract(**what, out=tmp_path)
    assert hub.repos["me/cells"].private
    assert hub.repos["me/cells"].files == bytes_of(tmp_path)


def test_incompatible_extension_is_refused_and_store_kept(corpus, tmp_path):
    what = {"corpus": corpus, "out": tmp_path, "splits": ("test",)}
    extract(**what, limit=5)
    before = bytes_of(tmp_path)
    for other, message in {
        "limit": r"complete store of test \(first 5\): --splits or a larger --limit adds to it",
        "batch": "store with another batch, which cannot be extended",
        "backbone": "store with another extractor",
        "dtype": "complete store of dtype float16, and the new sets have float32",
    }.items():
        value = {"limit": 5, "batch": 3, "backbone": "cells(grid=3)", "dtype": "float32"}[other]
        with pytest.raises(InputError, match=message):
            extract(**what | {"splits": ("test",) if other == "limit" else ("train",), other: value})
    assert bytes_of(tmp_path) == before
