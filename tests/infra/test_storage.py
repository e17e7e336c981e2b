"""Parsing of paths and URLs, cached copies of URLs, and uploads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from object_storage import Fault
from stores import contents, fill, make_sets, store_writer

from polypool.infra.errors import AbsentError, AwayError, InputError
from polypool.infra.files import atomic, existing, existing_folder, make_folder
from polypool.infra.paths import absolute, home
from polypool.infra.storage import Repository, cache_folder, fetch, local, place, read_json
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
def test_local_paths_and_file_urls_are_parsed(given, meant):
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
def test_object_storage_urls_are_normalised(given, meant):
    found = place(given)
    assert str(found) == meant
    assert place(found) is found
    assert (str(found / "a.json"), (found / "a.json").name) == (f"{meant}/a.json", "a.json")


NO_PASSWORD = NO_SETTINGS = "holds no user, password and settings"


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
def test_refused_url_message_hides_secrets(given, why):
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
def test_unsupported_url_is_refused_and_creates_nothing(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="ftp://") as refused:
        use(URL)
    assert "\n" not in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_files_are_downloaded_once_and_verified(bucket, tmp_path):
    contents_of = {"a": b"first", "b": b"second"}
    (tmp_path / "data").mkdir()
    for name, data in contents_of.items():
        (tmp_path / "data" / name).write_bytes(data)
    url = place(bucket.put(tmp_path / "data", "data"))
    files = {name: hashlib.sha256(data).hexdigest() for name, data in contents_of.items()}
    bucket.server.faults.append(Fault(spoil=lambda body: [bytes(len(body))], key="b", times=1))
    with pytest.raises(InputError, match=r"data/b: its SHA-256 differs"):
        fetch(url, files)
    asked = len(bucket.asked("/a"))
    for _ in range(2):
        folder = fetch(url, files)
        assert {name: (folder / name).read_bytes() for name in files} == contents_of
    assert len(bucket.asked("/a")) == asked
    (tmp_path / "data" / "a").write_bytes(b"other")
    bucket.put(tmp_path / "data", "data")
    changed = fetch(url, files | {"a": hashlib.sha256(b"other").hexdigest()})
    assert (changed / "a").read_bytes() == b"other", "a changed file must be downloaded again"


def test_missing_and_forbidden_files_raise_different_errors(bucket, monkeypatch):
    with pytest.raises(AbsentError, match=r"s3://.*/nowhere.json: no such file; expected it"):
        read_json(place(f"{bucket.url}/nowhere.json"), what="it")
    bucket.server.faults.append(Fault(key="b.json", status="403 Forbidden", method="HEAD", times=99))
    with pytest.raises(AwayError, match=r"b.json: cannot be read: .* and the credentials") as refused:
        read_json(place(f"{bucket.url}/b.json"), what="it")
    assert "\n" not in str(refused.value)


def test_remote_store_equals_local_store(bucket, tmp_path):
    sets = make_sets(40)
    for at in (f"{bucket.url}/store", tmp_path / "here"):
        with store_writer(at) as to:
            fill(to, sets)
            manifest = to.close()
    there = {key.removeprefix("store/"): bucket.read(key) for key in bucket.keys("store")}
    assert there == contents(tmp_path / "here")
    assert manifest.digest == FeatureStore.open(f"{bucket.url}/store").digest
    assert not [*(cache_folder() / "writing").glob("*/*")]
    with pytest.raises(InputError, match=r"s3://.*/store: is complete; delete it, or choose"):
        store_writer(f"{bucket.url}/store")


def test_failed_upload_can_be_resumed(bucket, tmp_path):
    sets, fault = make_sets(40), Fault(method="PUT", key="manifest.json", times=99)
    bucket.server.faults.append(fault)
    with pytest.raises(InputError, match="cannot be written"), store_writer(f"{bucket.url}/store") as to:
        fill(to, sets)
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(f"{bucket.url}/store")
    fault.times = 0
    with store_writer(f"{bucket.url}/store") as to:
        fill(to, sets)
    assert len(FeatureStore.open(f"{bucket.url}/store")) == len(sets)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://user/name", ("user/name", "model", None, "")),
        ("hf://user/name@v1/a/b", ("user/name", "model", "v1", "a/b")),
        ("hf://datasets/user/name@refs%2Fpr%2F1", ("user/name", "dataset", "refs/pr/1", "")),
    ],
)
def test_hub_url_is_parsed(url, expected):
    found = Repository.of(place(url))
    assert (found.id, found.options["repo_type"], found.options["revision"], found.folder) == expected
