from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from stores import flip, make_sets, write

from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, shard
from polypool.pipelines.data.ingestion import verify


def read(folder: Path) -> object:
    """Return the contents of a store."""
    store = FeatureStore.open(folder)
    ids, manifest = store.ids.to_pylist(), store.manifest
    said = ids, store.rows(ids).tolist(), store.dim, store.dtype, manifest.source, manifest.statistics
    return said, [store[row].tobytes() for row in range(len(store))]


def flipped(path: Path, *, step: int) -> list[tuple[int, str]]:
    """Flip single bits of a store's file; return the offset of each and the outcome of reading the store."""
    whole, good, outcomes = path.read_bytes(), read(path.parent), []
    for place in range(0, len(whole), step):
        for bit in (1, 0x80):
            flip(path, place, bit)
            try:
                outcome = "the same" if read(path.parent) == good else "used"
            except InputError as error:
                outcome = "refused" if str(path) in str(error) else f"without its file: {error}"
            outcomes.append((place, outcome))
            path.unlink()
            path.write_bytes(whole)
    return outcomes


def test_flipped_bit_in_shard_is_refused(small):
    path = small / "shard-00000.arrow"
    outcomes = flipped(path, step=11)
    assert len(outcomes) == 2 * -(-path.stat().st_size // 11)
    assert Counter(outcome for _, outcome in outcomes) == {"refused": len(outcomes)}


def test_flipped_bit_in_manifest_is_refused_or_harmless(small):
    counts = Counter(outcome for _, outcome in flipped(small / "manifest.json", step=5))
    assert set(counts) <= {"refused", "the same"}
    assert counts["the same"] < 0.05 * counts["refused"]  # whitespace


@pytest.mark.parametrize(
    ("journal", "message"),
    [
        (
            {"job": {"version": 2}},
            "a half-written store, 1 shards; repeat the command that writes it to resume",
        ),
        (None, "1 shards without manifest.json and writing.json; remove this folder"),
    ],
)
def test_verify_explains_an_unfinished_store(small, journal, message):
    (small / "manifest.json").unlink()
    if journal is not None:
        (small / "writing.json").write_text(json.dumps(journal))
    with pytest.raises(InputError, match=message):
        verify(store=small)
    for path in small.glob("*"):
        path.unlink()
    with pytest.raises(InputError, match="not a complete feature store: it has no manifest"):
        verify(store=small)


def test_padded_refuses_damaged_set_read_whole_or_in_part(small):
    path = small / "shard-00000.arrow"
    row = int(FeatureStore.open(small).sizes(np.arange(7)).argmax())
    damage_last_number_of(path, make_sets(7)[f"id{row}"])
    store = FeatureStore.open(small)
    for keep in (None, [np.array([0])]):
        for _ in range(2):  # a second read must fail, too
            with pytest.raises(
                InputError, match=rf"shard-00000\.arrow: the vectors of 'id{row}' \(set {row} in it\)"
            ):
                store.padded(np.array([row]), keep=keep)
    others = np.delete(np.arange(7), row)
    assert len(store.padded(others)[0]) == 6
    with pytest.raises(InputError, match=rf"1 of its 7 sets changed .*: id{row}; copy this file again"):
        store.verify()


def damage_last_number_of(path: Path, x_ND: np.ndarray) -> None:
    """Flip a bit of the last number of a set in a shard."""
    data = x_ND.astype("<f2").tobytes()
    flip(path, path.read_bytes().index(data) + len(data) - 2)


def test_each_set_is_checksummed_once(small, monkeypatch):
    calls = []
    monkeypatch.setattr(shard, "check_of", lambda x_ND, real=shard.check_of: calls.append(1) or real(x_ND))
    store = FeatureStore.open(small)
    for _ in range(3):
        store.padded(np.arange(7))
        store[3]
    assert len(calls) == 7


def test_verify_lists_every_damaged_file_and_set(folder, sets):
    store = FeatureStore.open(folder)
    first, third = store._first[1], store._first[2]
    for row, file in ((first, 1), (first + 1, 1), (third, 2)):
        damage_last_number_of(folder / f"shard-0000{file}.arrow", sets[f"id{row}"])
    (folder / "shard-00003.arrow").write_bytes(bytes(store.manifest.shards[3].bytes))
    with pytest.raises(InputError) as caught:
        FeatureStore.open(folder).verify()
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0][-17:] for line in lines] == [f"shard-0000{i}.arrow" for i in (1, 2, 3)]
    for line, what in zip(
        lines, (f"id{first}, id{first + 1}", f"id{third}", "its ids, offsets"), strict=True
    ):
        assert what in line


def test_shards_and_manifests_of_other_stores_are_refused(tmp_path):
    for name, seed in {"a": 0, "b": 0}.items():
        sets = make_sets(7, seed=seed)
        write(tmp_path / name, {id: x_ND + (name == "b") for id, x_ND in sets.items()})
    for file in ("shard-00000.arrow", "manifest.json"):
        shutil.copytree(tmp_path / "a", tmp_path / "c", dirs_exist_ok=True)
        shutil.copy(tmp_path / "b" / file, tmp_path / "c" / file)
        with pytest.raises(InputError, match=r"shard-00000\.arrow: .* or it is of another store"):
            FeatureStore.open(tmp_path / "c").rows(["id0"])


def test_open_refuses_missing_truncated_or_newer_files(folder):
    def refused(message: str, place: Path = folder) -> None:
        with pytest.raises(InputError, match=message):
            FeatureStore.open(place)

    manifest, path = (folder / "manifest.json").read_text(), folder / "shard-00001.arrow"
    path.write_bytes(path.read_bytes()[:-10])
    refused(r"shard-00001\.arrow: has [\d,]+ bytes, not")
    path.unlink()
    refused(r"shard-00001\.arrow: is missing")
    (folder / "manifest.json").write_text(manifest.replace('"version": 2', '"version": 99'))
    refused("store version 99, expected 2")
    (folder / "manifest.json").write_text(manifest[:300])
    refused("not valid JSON at line")
    (folder / "manifest.json").unlink()
    refused("not a complete feature store")
    refused("no such folder", folder / "nowhere")
