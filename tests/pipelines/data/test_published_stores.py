"""Feature stores on the Hugging Face hub: pushed, pulled, continued, and refused where a file is another one."""

import os
import re

import numpy as np
import pytest
from hub_server import READER
from huggingface_hub import DatasetCard, file_download
from stores import make_sets, write
from verbs import called, ingested, sets_of

import polypool as pp
from polypool.infra.errors import AwayError, InputError
from polypool.infra.store import FeatureStore
from polypool.infra.store.manifest import Manifest

URL = "hf://datasets/user/name"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(here):
    """A store of several shards."""
    assert len(write(here / "store", make_sets()).shards) > 3
    return here / "store"


@pytest.fixture
def boxes(here):
    """A store with a column."""
    (here / "in").mkdir()
    for number in range(4):
        x, boxes = np.ones((3, 5), np.float32) * (number + 1), np.array([[0, 0, 9, 9]] * 3)
        np.savez(here / "in" / f"{number}.npz", x=x, bbox=boxes, image_w=20, image_h=20)
    ingested("arrays", "--dir", here / "in", "--out", here / "boxes")
    assert FeatureStore.open(here / "boxes").columns
    return here / "boxes"


def refused(message: str, *words: object) -> None:
    code, _, err = called("data", *words)
    last = err.splitlines()[-1]
    assert (code, last.startswith("error: ")) == (2, True), err
    assert re.search(message, last), last


def same(left, right) -> None:
    assert Manifest.read(left) == Manifest.read(right)
    ours, theirs = sets_of(left), sets_of(right)
    assert [*ours] == [*theirs]
    for id, x_ND in ours.items():
        np.testing.assert_array_equal(x_ND, theirs[id])


def test_a_store_that_was_pushed_is_pulled_as_it_was(hub, store, here):
    (store / "skipped.jsonl").write_text("{}\n")
    code, said, err = called("data", "push", store, URL, "--license", "cc-by-4.0", "--private")
    assert code == 0, err
    manifest = Manifest.read(store)
    names = {shard.file for shard in manifest.shards} | {"manifest.json", "README.md", ".gitattributes"}
    assert {*hub.dataset().files} == names
    assert (hub.dataset().private, len(hub.dataset().titles)) == (True, 1)
    card = DatasetCard(hub.dataset().files["README.md"].decode())
    assert (card.data.license, card.data.viewer) == ("cc-by-4.0", False)
    assert manifest.digest in card.text
    assert f"polypool data pull {URL} --out" in card.text
    code, said, err = called("data", "pull", URL, "--out", here / "pulled")
    assert code == 0, err
    assert f"{len(make_sets())} sets of 12 numbers, digest {manifest.digest}" in said
    same(store, here / "pulled")
    assert {path.name for path in (here / "pulled").iterdir()} - {".lock"} == names - {
        "README.md",
        ".gitattributes",
    }
    fetched = len(hub.asked("GET", ".arrow"))
    pp.pull_store(URL, here / "pulled")
    assert len(hub.asked("GET", ".arrow")) == fetched == len(manifest.shards)


def test_columns_and_folders_travel_too(hub, boxes, here):
    pp.push_store(boxes, f"{URL}/visual/boxes")
    assert "visual/boxes/columns/boxes/manifest.json" in hub.dataset().files
    assert "Not stated" in hub.dataset().files["visual/boxes/README.md"].decode()
    pp.pull_store(f"{URL}/visual/boxes", here / "pulled")
    same(boxes, here / "pulled")
    same(boxes / "columns" / "boxes", here / "pulled" / "columns" / "boxes")
    assert FeatureStore.open(here / "pulled").column("boxes").dim == 4


def test_a_revision_is_pulled_after_another_store_was_pushed(hub, store, here):
    first = pp.push_store(store, URL)
    write(here / "fewer", make_sets(12, seed=1))
    pp.push_store(here / "fewer", URL)
    fewer = {shard.file for shard in Manifest.read(here / "fewer").shards}
    assert {name for name in hub.dataset().files if name.endswith(".arrow")} == fewer
    pp.pull_store(URL, here / "new")
    same(here / "fewer", here / "new")
    pp.pull_store(f"{URL}@{first}", here / "old")
    same(store, here / "old")
    refused("has another store; choose another folder", "pull", URL, "--out", here / "old")


def test_interrupted_travels_go_on_where_they_stopped(hub, store, here, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.http_get", broken := _breaking_off("shard-00002"))
    pp.push_store(store, URL)
    with pytest.raises(AwayError, match="goes on where it stopped"):
        pp.pull_store(URL, here / "pulled")
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(here / "pulled")
    monkeypatch.setattr("huggingface_hub.file_download.http_get", broken.whole)
    before = len(hub.asked("GET", ".arrow"))
    pp.pull_store(URL, here / "pulled")
    same(store, here / "pulled")
    assert 1 <= len(hub.asked("GET", ".arrow")) - before < len(Manifest.read(store).shards)
    uploads = len(hub.asked("PUT"))
    pp.push_store(store, "hf://datasets/user/again")
    assert len(hub.asked("PUT")) == uploads == len(Manifest.read(store).shards)


def _breaking_off(at: str):
    """Return the hub's download, which fails for one file; `.whole` does not."""
    whole = file_download.http_get

    def get(url, *args, **options):
        if at in url:
            raise ConnectionError("the connection broke off")
        return whole(url, *args, **options)

    get.whole = whole
    return get


def test_other_bytes_than_were_pushed_are_refused_and_fetched_anew(hub, store, here):
    pp.push_store(store, URL)
    good, name = hub.dataset().files, Manifest.read(store).shards[1].file
    bad = bytearray(good[name])
    bad[-9] ^= 1
    hub.dataset().commit(good | {name: bytes(bad)})
    refused(rf"{name}: is missing, or its bytes are not those", "pull", URL, "--out", here / "pulled")
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(here / "pulled")
    hub.dataset().commit(good, "mended")
    pp.pull_store(URL, here / "pulled")
    same(store, here / "pulled")
    (store / name).write_bytes(bytes(bad))
    refused("nothing was pushed", "push", store, "hf://datasets/user/damaged")
    assert ("dataset", "user/damaged") not in hub.repos


def test_a_file_that_came_damaged_is_fetched_anew(hub, store, here, monkeypatch):
    pp.push_store(store, URL)
    whole, name = file_download.http_get, Manifest.read(store).shards[1].file

    def damaging(url, file, **options):
        whole(url, file, **options)
        if name in url:
            file.seek(-9, os.SEEK_END)
            file.write(b"?")

    monkeypatch.setattr(file_download, "http_get", damaging)
    refused(rf"{name}: is missing, or its bytes are not those", "pull", URL, "--out", here / "pulled")
    monkeypatch.setattr(file_download, "http_get", whole)
    fetched = len(hub.asked("GET", ".arrow"))
    pp.pull_store(URL, here / "pulled")
    assert len(hub.asked("GET", ".arrow")) == fetched + 1
    same(store, here / "pulled")


def test_a_store_is_read_in_place(hub, store):
    pp.push_store(store, URL)
    there = FeatureStore.open(URL)
    np.testing.assert_array_equal(there[5], FeatureStore.open(store)[5])


def test_only_what_the_manifest_names_is_fetched(hub, store, here):
    pp.push_store(store, URL)
    hub.dataset().commit(
        hub.dataset().files | {"loader.py": b"raise SystemExit", "more.arrow": b"", "x.pkl": b""}
    )
    pp.pull_store(URL, here / "pulled")
    assert not [
        path
        for path in (here / "pulled").rglob("*")
        if path.suffix in (".py", ".pkl") or path.name == "more.arrow"
    ]


def test_what_cannot_travel_ends_with_one_line(hub, store, here, monkeypatch):
    refused("no such dataset repository", "pull", URL, "--out", here / "new")
    pp.push_store(store, URL)
    refused("has no revision 'v9'", "pull", f"{URL}@v9", "--out", here / "new")
    refused(
        "names no repository of datasets on the hub; expected hf://datasets/user/name",
        "push",
        store,
        "user/name",
    )
    refused(
        "name@[0-9a-f]{40}/other: has no manifest.json; check the name",
        "pull",
        f"{URL}/other",
        "--out",
        here / "new",
    )
    refused("no such folder|is missing|not a", "push", here / "absent", URL)
    (here / "full").mkdir()
    (here / "full" / "thesis.tex").touch()
    refused("has other files, such as thesis.tex", "pull", URL, "--out", here / "full")
    (store / "README.md").write_text("# Mine\n")
    refused("without --license", "push", store, URL, "--license", "mit")
    pp.push_store(store, URL)
    assert hub.dataset().files["README.md"] == b"# Mine\n"
    monkeypatch.setenv("HF_TOKEN", READER)
    refused("may not be written with the token", "push", store, URL)
    hub.down = True
    refused("does not answer", "pull", URL, "--out", here / "new")
    assert not (here / "new" / "manifest.json").exists()
