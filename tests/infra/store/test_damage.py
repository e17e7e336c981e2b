"""A store that was damaged is refused with a message wherever the damage is; none of it is used, nothing crashes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import ROOT
from stores import DIM, make_sets, write

from polypool.infra.batches import Order, load
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.store.ids import IdSet
from polypool.infra.store.shard import write_shard

VERSION_1 = Path(__file__).with_name("version1")  # written before there were checks

FLIP = """
import hashlib, json, sys
from pathlib import Path
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore

def read():
    store = FeatureStore.open(path.parent)
    manifest = store.manifest
    ids = store.ids.to_pylist()
    said = (ids, store.rows(ids).tolist(), store.dim, store.dtype, manifest.source, manifest.statistics)
    sets = [store[row].tobytes() for row in range(len(store))]
    return hashlib.sha256(repr((said, sets)).encode()).hexdigest()

path, step = Path(sys.argv[1]), int(sys.argv[2])
whole, good = path.read_bytes(), read()
outcomes = []
for place in range(0, len(whole), step):
    for flip in (1, 0x80):
        path.unlink()
        path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1:])
        try:
            outcome = "the same" if read() == good else "used"
        except InputError as error:
            outcome = "refused" if str(path) in str(error) else f"without its file: {error}"
        except BaseException as error:
            outcome = repr(error)
        outcomes.append((place, outcome))
print(json.dumps(outcomes))
"""


def flipped(path: Path, *, step: int = 1) -> list[tuple[int, str]]:
    """Flip a bit in every byte of a store's file, in a process of its own; return what came of reading the store."""
    command = [sys.executable, "-c", FLIP, str(path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_flipped_bit_anywhere_in_a_shard_is_refused(small: Path) -> None:
    path = small / "shard-00000.arrow"
    outcomes = flipped(path, step=3)
    assert len(outcomes) == 2 * -(-path.stat().st_size // 3)
    assert Counter(outcome for _, outcome in outcomes) == {"refused": len(outcomes)}


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused_or_changes_nothing(small: Path) -> None:
    counts = Counter(outcome for _, outcome in flipped(small / "manifest.json", step=3))
    assert set(counts) <= {"refused", "the same"}
    assert counts["the same"] < 0.05 * counts["refused"]  # blanks


def test_a_flipped_bit_in_a_store_without_checks_never_ends_the_process(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "store")
    path = tmp_path / "store" / "shard-00000.arrow"
    found = flipped(path, step=2)
    assert {outcome for _, outcome in found} <= {"refused", "the same", "used"}
    data = path.read_bytes()
    buffers = range(
        data.index(b"id0id1") - 24, data.index((np.arange(4) / 8).astype("<f2").tobytes()) + 7 * 4 * 2
    )
    assert {place for place, outcome in found if outcome == "used"} <= set(
        buffers
    )  # ids, offsets that rise, values


def test_a_store_without_checks_is_read_as_before_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from polypool.pipelines.data.ingestion import verify

    store = FeatureStore.open(VERSION_1)
    assert not store.manifest.checked
    assert store.rows(["id4"]).tolist() == [4]
    assert store[1].tolist() == [[1, 1.125, 1.25, 1.375], [1.5, 1.625, 1.75, 1.875]]
    assert store.padded(np.array([5]))[0][0, 2].tolist() == [6, 6.125, 6.25, 6.375]
    assert store.digest == "8ffe2e7a737e6fb134bc4f2d17fed6ce8e7f3a7db405c9c54724b1908df7a4c3"
    verify(store=VERSION_1)
    assert "a store of version 1, without checks" in capsys.readouterr().out


def test_padded_refuses_a_damaged_set_whether_all_of_it_is_kept_or_a_part(small: Path) -> None:
    path = small / "shard-00000.arrow"
    row = int(FeatureStore.open(small).sizes(np.arange(7)).argmax())
    damage_last_number_of(path, make_sets(7)[f"id{row}"])
    store = FeatureStore.open(small)
    for keep in (None, [np.array([0])]):
        for _ in range(2):  # the second time too
            with pytest.raises(
                InputError, match=rf"shard-00000\.arrow: the vectors of 'id{row}' \(set {row} in it\)"
            ):
                store.padded(np.array([row]), keep=keep)
    others = np.delete(np.arange(7), row)
    assert len(store.padded(others)[0]) == 6
    with pytest.raises(InputError, match=rf"1 of its 7 sets changed .*: id{row}; copy this file again"):
        store.verify()


def damage_last_number_of(path: Path, x_ND: np.ndarray) -> None:
    """Change the last bit of a set that a shard holds."""
    data, bytes_ = bytearray(path.read_bytes()), x_ND.astype("<f2").tobytes()
    data[data.index(bytes_) + len(bytes_) - 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_damage_found_in_the_thread_that_loads_reaches_who_trains(small: Path) -> None:
    damage_last_number_of(small / "shard-00000.arrow", make_sets(7)["id4"])

    class Sets:
        def __init__(self) -> None:
            self.store = FeatureStore.open(small)

        def __len__(self) -> int:
            return 7

        def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> dict[str, torch.Tensor]:
            return {"visual": self.store.padded(index_B)[0]}

    order = Order(size=7, batch=2, unit=1, seed=0)
    with pytest.raises(InputError, match=r"the vectors of 'id4' .*`polypool ingest verify --store /"):
        list(load(Sets(), order, 0, torch.device("cpu")))


def test_a_set_is_checked_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polypool.infra.store import shard

    calls = []
    monkeypatch.setattr(shard, "check_of", lambda x_ND, real=shard.check_of: calls.append(1) or real(x_ND))
    store = FeatureStore.open(small)
    for _ in range(3):
        store.padded(np.arange(7))
        store[3]
    assert len(calls) == 7


def test_verify_lists_every_damaged_file_and_set(folder: Path, sets: dict[str, np.ndarray]) -> None:
    store = FeatureStore.open(folder)
    for row in (store._first[1], store._first[1] + 1, store._first[2]):
        shard = int(np.searchsorted(store._first, row, side="right")) - 1
        damage_last_number_of(folder / f"shard-{shard:05d}.arrow", sets[f"id{row}"])
    (folder / "shard-00003.arrow").write_bytes(bytes(store.manifest.shards[3].bytes))
    first, second, third = (
        f"id{store._first[1]}, id{store._first[1] + 1}",
        f"id{store._first[2]}",
        "its ids, offsets",
    )
    with pytest.raises(InputError) as caught:
        FeatureStore.open(folder).verify()
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0][-17:] for line in lines] == [f"shard-0000{i}.arrow" for i in (1, 2, 3)]
    for line, what in zip(lines, (first, second, third), strict=True):
        assert what in line


def test_verify_of_a_store_without_checks_names_the_file(tmp_path: Path) -> None:
    shutil.copytree(VERSION_1, tmp_path / "store")
    path = tmp_path / "store" / "shard-00001.arrow"
    data = bytearray(path.read_bytes())
    data[data.index(b"id5") + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"shard-00001\.arrow: its bytes changed .*SHA-256"):
        FeatureStore.open(tmp_path / "store").verify()


def test_verify_finds_values_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreWriter, "_refuse", lambda *_: None)  # a writer with a bug
    sets = make_sets(3)
    sets["id1"][0, 5] = np.inf
    write(tmp_path, sets)
    with pytest.raises(InputError, match=r"shard-00000\.arrow: NaN or infinite values"):
        FeatureStore.open(tmp_path).verify()


def test_a_writer_with_a_bug_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path, *, offsets: np.ndarray, **others: Any) -> None:
        write_shard(path, offsets=np.r_[offsets[:-2], offsets[-1:] - 1, offsets[-1:] - 1], **others)

    monkeypatch.setattr("polypool.infra.store.writer.write_shard", wrong)
    with pytest.raises(InputError, match="the offsets of its sets do not rise"):
        write(tmp_path / "offsets", make_sets(3))
    monkeypatch.undo()
    with StoreWriter(tmp_path / "ids", dim=DIM, source={}) as writer:
        writer.add("a", np.ones((1, DIM)))
        writer._seen = IdSet()
        writer.add("a", np.ones((1, DIM)))
    with pytest.raises(InputError, match="only 1 different ids"):
        FeatureStore.open(tmp_path / "ids").verify()
