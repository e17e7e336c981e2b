from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, existing, existing_folder, make_folder
from polypool.infra.paths import absolute, home
from polypool.infra.storage.places import local, place
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.tasks.datasets.corpus import Corpus, Item, write_corpus
from polypool.tasks.run import Data


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("file:///data/coco", "/data/coco"),
        ("file://localhost/data/coco", "/data/coco"),
        ("file:/data/coco", "/data/coco"),
        ("FILE:///data/my%20coco", "/data/my coco"),
        (Path("file:///data/coco"), "/data/coco"),
        ("data/coco", "data/coco"),
        ("C:/data", "C:/data"),
        ("a:b/c", "a:b/c"),
        ("", "."),
    ],
)
def test_a_path_of_this_machine(given, meant):
    assert local(given) == place(given) == Path(meant)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://bucket/data/coco/", "s3://bucket/data/coco"),
        (Path("s3://bucket/data/coco"), "s3://bucket/data/coco"),
        ("S3://bucket", "s3://bucket"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("hf://datasets/me/coco@main/regions", "hf://datasets/me/coco@main/regions"),
    ],
)
def test_a_url_of_object_storage(given, meant):
    found = place(given)
    assert str(found) == meant
    assert place(found) is found
    assert (str(found / "a.json"), (found / "a.json").name) == (f"{meant}/a.json", "a.json")


NO_PASSWORD, NO_SETTINGS = "holds no user and no password", "holds no settings"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            "http://host/data",
            "http://host/data: nothing is read from or written to http://; give a path of this",
        ),
        ("file://host/data", "names no file of this machine"),
        ("s3://", "names no bucket"),
        ("s3:///", "names no bucket"),
        ("s3://user:hidden@bucket/data", NO_PASSWORD),
        (Path("s3://user:hidden@bucket/data"), NO_PASSWORD),
        ("s3://user:hid/hidden@bucket/data", NO_PASSWORD),
        ("hf://hidden:hidden@datasets/data", NO_PASSWORD),
        (
            "https://user:hidden@host/data",
            r"https://\.\.\.@host/data: nothing is read from or written to https://",
        ),
        ("http://localhost:8000/coco", "nothing is read .* give a path .*; download it, and give its folder"),
        ("s3://bucket/data?access_key=a&secret_key=hidden", NO_SETTINGS),
        ("https://host/data?signature=hidden", "nothing is read from"),
    ],
)
def test_a_url_that_is_refused_shows_no_secrets(given, why):
    for use in (place, lambda given: Data(dataset="mine", corpus="data", features=str(given))):
        with pytest.raises(InputError, match=why) as refused:
            use(given)
        assert "hidden" not in str(refused.value)


URL = "ftp://host/data"


@pytest.mark.parametrize(
    "use",
    [
        lambda url: existing(url, what="a file"),
        lambda url: existing_folder(url, what="a folder"),
        make_folder,
        lambda url: atomic(Path(url) / "x").__enter__(),
        lambda url: absolute(url, home),
        FeatureStore.open,
        Corpus.open,
        lambda url: StoreWriter(url, dim=2, source={}),
        lambda url: write_corpus(url, [Item(id="a", split="train", captions=("a",))], source={}),
        lambda url: write_corpus("x", [Item(id="a", split="train", captions=("a",))], source={}, images=url),
        lambda url: Data(dataset="mine", corpus=str(url)),
        lambda url: Data(dataset="mine", corpus="data", features=str(url)),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_every_door_refuses_a_url_and_makes_nothing(use, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="ftp://") as refused:
        use(kind(URL))
    assert "\n" not in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_a_home_is_a_folder(monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", "s3://bucket/home")
    with pytest.raises(InputError, match=r"s3://bucket/home: POLYPOOL_HOME, .* must be on this machine"):
        home()


def test_a_file_url_is_written_and_read(tmp_path):
    url = f"file://{tmp_path}/a/store"
    with StoreWriter(url, dim=2, dtype="float32", source={}) as writer:
        writer.add("a", np.ones((3, 2), np.float32))
    for name in (url, tmp_path / "a" / "store"):
        assert FeatureStore.open(name)[0].shape == (3, 2)
    write_corpus(url, [Item(id="a", split="train", captions=("a",))], source={})
    assert Corpus.open(url).splits == {"train": 1}
