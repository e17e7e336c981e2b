"""A store whose files are not what a writer makes is refused: the manifest's fields, and the form of each shard."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from stores import DIM, make_sets, write

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore

VERSION_1 = Path(__file__).with_name("version1")  # written before there were checks


def test_shards_and_manifests_of_other_stores_are_refused(tmp_path: Path) -> None:
    for name, seed in {"a": 0, "b": 0}.items():
        sets = make_sets(7, seed=seed)
        write(tmp_path / name, {id: x_ND + (name == "b") for id, x_ND in sets.items()})
    for file in ("shard-00000.arrow", "manifest.json"):
        shutil.copytree(tmp_path / "a", tmp_path / "c", dirs_exist_ok=True)
        shutil.copy(tmp_path / "b" / file, tmp_path / "c" / file)
        with pytest.raises(InputError, match=r"shard-00000\.arrow: .* or it is of another store"):
            FeatureStore.open(tmp_path / "c").rows(["id0"])


def test_a_shard_cut_short_after_the_store_was_opened_is_refused(small: Path) -> None:
    store, path = FeatureStore.open(small), small / "shard-00000.arrow"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"shard-00000\.arrow: has [\d,]+ bytes, not"):
        store[0]
    path.unlink()
    with pytest.raises(InputError, match=r"shard-00000\.arrow: cannot be read"):
        store[0]


def fields(value: Any, name: str = "") -> Iterator[tuple[tuple, str]]:
    """Yield the way to every value in JSON data, and how messages spell it."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        spelled = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}" if name else key
        yield (key,), spelled
        for way, deeper in fields(inner, spelled):
            yield (key, *way), deeper


@pytest.mark.parametrize("version", [1, 2])
def test_a_value_of_another_type_in_the_manifest_is_named(tmp_path: Path, version: int) -> None:
    if version == 1:
        shutil.copytree(VERSION_1, tmp_path / "store")
    else:
        write(tmp_path / "store", make_sets(7), statistics_of=["id0"])
    path = tmp_path / "store" / "manifest.json"
    text, tried = path.read_text(), 0
    for way, name in fields(json.loads(text)):
        if way[0] == "source" and len(way) > 1:
            continue  # free; who reads it says what it is to be
        for other in (None, True, 7.5, "text", [], {}, ["text"], {"a": 1}):
            data = json.loads(text)
            inner = data
            for key in way[:-1]:
                inner = inner[key]
            if type(inner[way[-1]]) is type(other) or (name == "statistics" and other is None):
                continue
            if isinstance(inner[way[-1]], float) and other is True:
                other = False
            inner[way[-1]] = other
            path.write_text(json.dumps(data))
            with pytest.raises(InputError) as caught:
                FeatureStore.open(tmp_path / "store")
            assert str(caught.value).startswith(f"{path}: ")
            assert re.sub(r"^(statistics|skipped|flagged)\.", r"\1: ", name) in str(caught.value)
            tried += 1
    assert tried > 100


def test_a_store_without_manifest_is_unreadable(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(folder)


def test_a_folder_that_is_missing_or_of_another_version_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        FeatureStore.open(folder / "nowhere")
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"version": 2', '"version": 99'))
    with pytest.raises(InputError, match="version 99, expected at most 2"):
        FeatureStore.open(folder)
    path.write_text(text[:300])
    with pytest.raises(InputError, match="not valid JSON at line"):
        FeatureStore.open(folder)
    path.write_text(text.replace('"shards"', '"shreds"'))
    with pytest.raises(InputError, match=r"unknown field 'shreds'\. Did you mean 'shards'"):
        FeatureStore.open(folder)


def test_a_shard_cut_short_or_missing_is_found_at_once(folder: Path) -> None:
    path = folder / "shard-00001.arrow"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"shard-00001\.arrow: has [\d,]+ bytes, not"):
        FeatureStore.open(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"shard-00001\.arrow: is missing"):
        FeatureStore.open(folder)


def rewritten(folder: Path, batches: Any, **options: Any) -> None:
    """Replace the first shard of a store of version 1 with another Arrow file, and have the manifest say its size."""
    path, manifest = folder / "shard-00000.arrow", folder / "manifest.json"
    with pa.ipc.open_file(path.read_bytes()) as reader:
        made = batches(reader.get_batch(0))
    path.unlink()
    with (
        path.open("wb") as file,
        pa.ipc.new_file(file, made[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as to,
    ):
        for batch in made:
            to.write_batch(batch)
    data = json.loads(manifest.read_text())
    data["shards"][0]["bytes"] = path.stat().st_size
    manifest.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (lambda batch: [batch], {}, None),
        (lambda batch: [batch], {"compression": "lz4"}, "its vectors are compressed"),
        (lambda batch: [batch[:2], batch[2:]], {}, "expected one batch"),
        (lambda batch: [batch.rename_columns(["ID", "features"])], {}, "expected one batch"),
        (lambda batch: [batch[:3]], {}, r"\(3, 6\) sets and vectors, the manifest says \(4, 7\)"),
        (
            lambda batch: [batch.set_column(0, "id", pa.array(["id0", None, "id2", "id3"]))],
            {},
            "ids or vectors are missing",
        ),
        (
            lambda batch: [
                batch.set_column(1, batch.schema.field(1), pc.if_else([True, False] * 2, batch[1], None))
            ],
            {},
            "ids or vectors are missing",
        ),
    ],
)
def test_an_arrow_file_that_is_no_shard_is_refused(
    tmp_path: Path, batches: Any, options: dict, message: str | None
) -> None:
    shutil.copytree(VERSION_1, tmp_path / "store")
    rewritten(tmp_path / "store", batches, **options)
    store = FeatureStore.open(tmp_path / "store")
    if message is None:
        assert store[3].tolist() == [[3, 3.125, 3.25, 3.375]]
        return
    with pytest.raises(InputError, match=rf"shard-00000\.arrow: .*{message}.*; copy this file again"):
        store[3]


def test_a_manifest_whose_parts_do_not_fit_together_is_refused(small: Path) -> None:
    manifest = FeatureStore.open(small).manifest
    with pytest.raises(InputError, match=r"shards\[0\]\.check is missing"):
        replace(manifest, shards=(replace(manifest.shards[0], check=""),))
    for wrong in ([], [0.0] * (DIM + 1)):
        with pytest.raises(
            InputError, match=rf"statistics\.std must be a list of {DIM}, not of {len(wrong)}"
        ):
            replace(manifest, statistics={**manifest.statistics, "std": wrong})
