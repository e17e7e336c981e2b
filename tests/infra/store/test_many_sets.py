"""What a writer holds of each set, of which there may be millions, and that it forgets none for it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from places import ROOT
from stores import DIM, SHARD_BYTES, contents, crash_after, make_sets, write

from polypool.infra.errors import InputError
from polypool.infra.store import StoreWriter, statistics
from polypool.infra.store.shard import check_of, write_shard
from polypool.infra.store.unfinished import OpenShard


def test_an_open_shard_is_written_as_arrays_of_the_same_sets_are(tmp_path: Path) -> None:
    names = ["a", "größer", "图片 7", "x" * 1000]
    for number, taken in enumerate((names, names[:1], names[::-1])):
        shard = OpenShard(dim=DIM, dtype="float16", rows=9)
        shard.put("of the shard before", np.ones((3, DIM)))
        shard.clear()
        sets = [np.full((1 + len(name) % 4, DIM), at, np.float16) for at, name in enumerate(taken)]
        stored = [shard.put(name, x_ND) for name, x_ND in zip(taken, sets, strict=True)]
        assert all(np.array_equal(kept, x_ND) for kept, x_ND in zip(stored, sets, strict=True))
        assert len(shard) == len(taken)
        write_shard(tmp_path / f"{number}.open", **shard.columns())
        write_shard(
            tmp_path / f"{number}.arrays",
            ids=pa.array(taken, pa.string()),
            offsets=np.cumsum([0, *map(len, sets)]),
            vectors_VD=np.concatenate(sets),
            checks=np.array([check_of(x_ND) for x_ND in sets], np.uint64),
        )
        paths = [tmp_path / f"{number}.{kind}" for kind in ("open", "arrays")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_an_open_shard_knows_when_it_is_full() -> None:
    shard = OpenShard(dim=2, dtype="float32", rows=3)
    assert shard.has_room(8), "a set larger than a shard has one to itself"
    shard.put("first", np.zeros((2, 2)))
    assert shard.has_room(1)
    assert not shard.has_room(2)
    shard.clear()
    assert shard.put("large", np.ones((8, 2))).shape == (8, 2)
    assert not shard.has_room(1)


def test_a_writer_holds_few_bytes_of_each_set_beside_its_vectors(tmp_path: Path) -> None:
    count, x_ND = 6_000, np.ones((1, 1), np.float32)
    ours = [tracemalloc.Filter(True, f"{ROOT}/infra/*")]

    def taken() -> int:  # other threads take memory, too
        found = tracemalloc.take_snapshot().filter_traces(ours)
        return sum(each.size for each in found.statistics("filename"))

    tracemalloc.start()
    try:
        with StoreWriter(tmp_path, dim=1, source={}, shard_bytes=1 << 17) as writer:
            before = taken()
            for n in range(count):
                writer.add(f"COCO_train2014_{n:012d}", x_ND)
            held = taken() - before
            writer.close()
    finally:
        tracemalloc.stop()
    assert 50 * count < held < 110 * count, (
        "ids, offsets and checks as objects of Python take 250 bytes and more"
    )


def test_ids_of_finished_shards_stay_taken(tmp_path: Path) -> None:
    sets = make_sets(30)
    with StoreWriter(tmp_path / "new", dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        for id, x_ND in sets.items():
            writer.add(id, x_ND)
        assert len(list((tmp_path / "new").glob("shard-*"))) > 1
        assert all(id in writer for id in sets)
        with pytest.raises(InputError, match="set 'id0': duplicate id"):
            writer.add("id0", sets["id0"])
        assert writer.offer("id0", sets["id0"], where="again") == "duplicate id"
    crash_after(tmp_path / "old", sets, 23)
    with StoreWriter(tmp_path / "old", dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        assert 0 < len(writer.done) < 30
        with pytest.raises(InputError, match="set 'id0': duplicate id"):
            writer.add("id0", sets["id0"])
        assert writer.offer("id0", sets["id0"], where="id0") is None, "it was finished before"
        assert writer.offer("id0", sets["id0"], where="again") == "duplicate id"
        assert writer.offer("id29", sets["id29"], where="id29") is None
        assert writer.offer("id29", sets["id29"], where="again") == "duplicate id"


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_statistics_are_the_same_however_many_ids_are_looked_for_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    sets = make_sets(40)
    chosen = [*list(sets)[3:30:2], "skipped", "id3"]
    write(tmp_path / "usual", sets, statistics_of=chosen)
    monkeypatch.setattr(statistics, "_CHUNK", chunk)
    for name, ids in (("few", chosen), ("backwards", chosen[::-1])):
        write(tmp_path / name, sets, statistics_of=ids)
        assert contents(tmp_path / name) == contents(tmp_path / "usual"), "to the last bit"
