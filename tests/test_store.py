from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from infra import files
from infra.errors import InputError
from infra.manifest import Manifest
from infra.shard import write_shard
from infra.statistics import Moments
from infra.store import FeatureStore, StoreWriter

DIM = 12
SHARD_BYTES = 1200  # about ten sets of float16


def make_sets(count: int = 40, *, dim: int = DIM, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        f"id{i}": random.standard_normal((random.integers(1, 9), dim)).astype(np.float32)
        for i in range(count)
    }


def write(folder: Path, sets: dict[str, np.ndarray], *, dtype: str = "float16", **options) -> Manifest:
    with StoreWriter(
        folder, dim=DIM, dtype=dtype, source={"made": "here"}, shard_bytes=SHARD_BYTES
    ) as writer:
        for id, x_ND in sets.items():
            writer.add(id, x_ND)
        return writer.close(**options)


@pytest.fixture
def sets() -> dict[str, np.ndarray]:
    return make_sets()


@pytest.fixture
def folder(tmp_path: Path, sets: dict[str, np.ndarray]) -> Path:
    write(tmp_path / "store", sets)
    return tmp_path / "store"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_read_is_what_was_written(tmp_path: Path, sets: dict[str, np.ndarray], dtype: str) -> None:
    manifest = write(tmp_path / "store", sets, dtype=dtype)
    store = FeatureStore.open(tmp_path / "store")
    assert len(manifest.shards) > 3
    assert len(store) == manifest.sets == len(sets)
    assert store.ids.to_pylist() == list(sets)
    assert (store.dim, store.dtype) == (DIM, dtype)
    for row, x_ND in enumerate(sets.values()):
        assert store[row].dtype == dtype
        assert np.array_equal(store[row], x_ND.astype(dtype))
    assert store.sizes(np.arange(len(sets))).tolist() == [len(x_ND) for x_ND in sets.values()]
    store.verify()


def test_the_files_are_plain_arrow_of_bounded_size(folder: Path) -> None:
    manifest = FeatureStore.open(folder).manifest
    for shard in manifest.shards:
        with pa.ipc.open_file(folder / shard.file) as file:
            assert file.num_record_batches == 1
            assert str(file.schema.field("features").type).startswith(
                "large_list<item: fixed_size_list<item: halffloat>[12]"
            )
        assert shard.vectors * DIM * 2 <= SHARD_BYTES
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        *(s.file for s in manifest.shards),
    ]


def test_views_lie_in_the_mapped_file(folder: Path) -> None:
    store = FeatureStore.open(folder)
    x_ND = store[7]
    address = x_ND.__array_interface__["data"][0]
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            mapped.append(line.split()[-1])
    assert mapped[0].endswith(".arrow")
    assert Path(mapped[0]).parent == folder
    assert np.shares_memory(x_ND, store[7])
    assert not x_ND.flags.writeable
    offsets = store._shard(0).offsets
    assert not offsets.flags.owndata


def test_rows_follow_the_ids_asked_for(folder: Path, sets: dict[str, np.ndarray]) -> None:
    store = FeatureStore.open(folder)
    wanted = ["id31", "id0", "id31", "id17"]
    rows = store.rows(wanted)
    assert rows.dtype == np.int64
    assert rows.tolist() == [31, 0, 31, 17]
    assert store.rows([]).shape == (0,)
    with pytest.raises(InputError, match=r"2 of 3 ids have no features; the first: nobody, noone"):
        store.rows(["nobody", "id3", "noone"])


def test_rows_outside_the_store_are_refused(folder: Path) -> None:
    store = FeatureStore.open(folder)
    for row in (-1, len(store)):
        with pytest.raises(IndexError):
            store[row]
        with pytest.raises(IndexError):
            store.sizes(np.array([row]))


def test_padded_is_the_sets_and_zeros(folder: Path, sets: dict[str, np.ndarray]) -> None:
    store = FeatureStore.open(folder)
    rows = np.random.default_rng(1).permutation(len(sets))[:16]
    np.full((16, 8, DIM), np.nan, "float16")  # freed memory that must not shine through the pads
    x_BND, mask_BN = store.padded(rows)
    assert x_BND.dtype == torch.float16
    assert mask_BN.dtype == torch.bool
    assert x_BND.shape[:2] == mask_BN.shape
    assert mask_BN.sum(1).tolist() == store.sizes(rows).tolist()
    assert mask_BN.sum(1).max() == mask_BN.shape[1]
    for x_ND, mask_N, row in zip(x_BND, mask_BN, rows, strict=True):
        assert np.array_equal(x_ND[mask_N].numpy(), store[row])
        assert (x_ND[~mask_N] == 0).all()


def test_padded_keeps_the_elements_asked_for(folder: Path) -> None:
    store = FeatureStore.open(folder)
    rows = np.flatnonzero(store.sizes(np.arange(len(store))) >= 4)[:2]
    mask = np.zeros(store.sizes(rows)[1], bool)
    mask[[1, 3]] = True
    x_BND, mask_BN = store.padded(rows, keep=[np.array([2, 0, 3]), mask])
    assert mask_BN.tolist() == [[True, True, True], [True, True, False]]
    assert np.array_equal(x_BND[0].numpy(), store[rows[0]][[2, 0, 3]])
    assert np.array_equal(x_BND[1, :2].numpy(), store[rows[1]][[1, 3]])
    assert (x_BND[1, 2] == 0).all()


@pytest.mark.parametrize("keep", [[], [99], [-1], np.zeros(3, bool)])
def test_padded_refuses_to_keep_nothing_or_what_is_not_there(folder: Path, keep: object) -> None:
    store = FeatureStore.open(folder)
    with pytest.raises(ValueError, match=r"mask of|at least one element"):
        store.padded(np.array([0]), keep=[np.asarray(keep, None if len(keep) else int)])


def test_a_pickled_store_is_its_path(folder: Path) -> None:
    store = FeatureStore.open(folder)
    store[0]
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data)[5], store[5])


def test_a_store_without_manifest_is_unreadable(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(folder)


def test_a_folder_that_is_missing_or_of_another_version_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        FeatureStore.open(folder / "nowhere")
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"version": 1', '"version": 99'))
    with pytest.raises(InputError, match="version 99, expected 1"):
        FeatureStore.open(folder)
    path.write_text(text[:300])
    with pytest.raises(InputError, match="not valid JSON at line"):
        FeatureStore.open(folder)
    path.write_text(text.replace('"shards"', '"shreds"'))
    with pytest.raises(InputError, match="damaged"):
        FeatureStore.open(folder)


def test_a_flipped_byte_is_found_and_its_file_named(folder: Path) -> None:
    path = folder / "shard-00002.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"shard-00002\.arrow: its bytes changed"):
        FeatureStore.open(folder).verify()


def test_a_shard_cut_short_or_missing_is_found_at_once(folder: Path) -> None:
    path = folder / "shard-00001.arrow"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"shard-00001\.arrow: has [\d,]+ bytes, not"):
        FeatureStore.open(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"shard-00001\.arrow: is missing"):
        FeatureStore.open(folder)


def test_verify_finds_values_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreWriter, "_refuse", lambda *_: None)  # a writer with a bug
    sets = make_sets(3)
    sets["id1"][0, 5] = np.inf
    write(tmp_path, sets)
    with pytest.raises(InputError, match=r"shard-00000\.arrow: NaN or infinite values"):
        FeatureStore.open(tmp_path).verify()


def test_verify_finds_offsets_and_ids_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path, *, ids: list[str], offsets: np.ndarray, vectors_VD: np.ndarray) -> None:
        write_shard(
            path,
            ids=ids,
            offsets=np.r_[offsets[:-2], offsets[-1:] - 1, offsets[-1:] - 1],
            vectors_VD=vectors_VD,
        )

    monkeypatch.setattr("infra.store_writer.write_shard", wrong)
    write(tmp_path / "offsets", make_sets(3))
    with pytest.raises(InputError, match="offsets"):
        FeatureStore.open(tmp_path / "offsets").verify()
    monkeypatch.undo()
    with StoreWriter(tmp_path / "ids", dim=DIM, source={}) as writer:
        writer.add("a", np.ones((1, DIM)))
        writer._seen.clear()
        writer.add("a", np.ones((1, DIM)))
    with pytest.raises(InputError, match="only 1 different ids"):
        FeatureStore.open(tmp_path / "ids").verify()


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.ones((2, DIM + 1)), f"width {DIM + 1}, expected {DIM}"),
        (np.ones((0, DIM)), "an empty set"),
        (np.full((2, DIM), np.nan), "NaN or infinite"),
        (np.where(np.arange(DIM) == 3, -np.inf, np.ones((2, DIM))), "NaN or infinite"),
        (np.full((2, DIM), -70000.0), "values beyond 65504, the limit of float16"),
        (np.ones(DIM), "expected numbers of shape"),
        (np.full((2, DIM), "x"), "expected numbers of shape"),
    ],
)
def test_a_set_that_cannot_be_stored_names_its_id(tmp_path: Path, x: np.ndarray, why: str) -> None:
    writer = StoreWriter(tmp_path, dim=DIM, source={})
    with pytest.raises(InputError, match=f"'bad': .*{why}"):
        writer.add("bad", x)
    assert why in writer.offer("bad", x, where="line 3")
    writer.add("bad", np.ones((1, DIM)))
    with pytest.raises(InputError, match="'bad': duplicate id"):
        writer.add("bad", np.ones((1, DIM)))
    with pytest.raises(InputError, match="empty or not printable"):
        writer.add("\ud800", np.ones((1, DIM)))
    manifest = writer.close()
    assert manifest.sets == 1
    assert manifest.skipped["count"] == 1
    assert (tmp_path / "skipped.jsonl").read_text().startswith('{"where": "line 3", "why": ')


def test_integers_are_numbers_too(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, dim=2, source={}) as writer:
        writer.add("a", np.array([[0, 255]], np.uint8))
    assert FeatureStore.open(tmp_path)[0].tolist() == [[0, 255]]


def test_a_set_larger_than_a_shard_has_one_to_itself(tmp_path: Path) -> None:
    sets = make_sets(3)
    sets["id1"] = np.ones((SHARD_BYTES // (DIM * 2) + 50, DIM), np.float32)
    manifest = write(tmp_path, sets)
    assert [shard.sets for shard in manifest.shards] == [1, 1, 1]
    assert np.array_equal(FeatureStore.open(tmp_path)[1], sets["id1"])


def test_unknown_dtype_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'float16'"):
        StoreWriter(tmp_path, dim=2, dtype="flaot16", source={})


def test_nothing_to_store_is_an_error(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, dim=2, source={})
    writer.skip("line 1", "bad luck")
    with pytest.raises(InputError, match="1 x bad luck: line 1"):
        writer.close()
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(tmp_path)


def crash_after(folder: Path, sets: dict[str, np.ndarray], count: int) -> None:
    """Write in a process that is killed after `count` sets."""
    child = os.fork()
    if not child:
        writer = StoreWriter(folder, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES)
        for id in list(sets)[:count]:
            writer.add(id, sets[id])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("count", [0, 5, 23, 40])
def test_a_killed_writer_is_resumed_byte_for_byte(
    folder: Path, sets: dict[str, np.ndarray], count: int
) -> None:
    other = folder.parent / "other"
    crash_after(other, sets, count)
    with pytest.raises(InputError, match="not a complete feature store"):
        FeatureStore.open(other)
    with StoreWriter(other, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        assert writer.done == set(list(sets)[: len(writer.done)])
        assert (count < 20) or writer.done
        for id, x_ND in sets.items():
            if id not in writer.done:
                writer.add(id, x_ND)
    assert contents(other) == contents(folder)


def test_offering_everything_again_resumes_too(folder: Path, sets: dict[str, np.ndarray]) -> None:
    other = folder.parent / "other"
    crash_after(other, sets, 23)
    with StoreWriter(other, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
        for id, x_ND in sets.items():
            assert writer.offer(id, x_ND, where=id) is None
        assert writer.offer("id0", sets["id0"], where="again") == "duplicate id"
    manifest = FeatureStore.open(other).manifest
    assert manifest.digest == FeatureStore.open(folder).digest
    assert manifest.skipped["reasons"] == {"duplicate id": {"count": 1, "examples": ["again"]}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 5}, "dim was 12, is 5"),
        ({"dtype": "float32"}, "dtype was float16, is float32"),
        ({"source": {"made": "elsewhere"}}, "source was .*here.*, is .*elsewhere"),
    ],
)
def test_another_job_does_not_go_on_with_it(tmp_path: Path, options: dict, message: str) -> None:
    crash_after(tmp_path, make_sets(), 23)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=f"another job .*{message}.*remove this folder"):
        StoreWriter(tmp_path, **{"dim": DIM, "source": {"made": "here"}} | options)
    assert contents(tmp_path) == before


def test_a_gap_in_the_shards_or_a_lost_journal_is_refused(tmp_path: Path) -> None:
    crash_after(tmp_path / "a", make_sets(), 35)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / "shard-00001.arrow").unlink()
    (tmp_path / "b" / "writing.json").unlink()
    for name, message in {"a": "no shard-00001", "b": "neither manifest.json nor writing.json"}.items():
        with pytest.raises(InputError, match=message):
            StoreWriter(tmp_path / name, dim=DIM, source={"made": "here"})


def test_a_complete_store_is_not_written_over(folder: Path, sets: dict[str, np.ndarray]) -> None:
    before = contents(folder)
    with pytest.raises(InputError, match="complete store; remove this folder"):
        write(folder, sets)
    assert contents(folder) == before


def test_an_exception_leaves_finished_shards_and_no_manifest(
    tmp_path: Path, sets: dict[str, np.ndarray]
) -> None:
    def fail() -> None:
        with StoreWriter(tmp_path, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES) as writer:
            for id, x_ND in sets.items():
                writer.add(id, x_ND)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "shard-00000.arrow"
    assert names[-1] == "writing.json"
    assert "manifest.json" not in names


def test_no_space_left_says_what_is_needed_and_leaves_nothing(
    tmp_path: Path, sets: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = StoreWriter(tmp_path, dim=DIM, source={"made": "here"}, shard_bytes=SHARD_BYTES)
    monkeypatch.setattr(files.os, "fsync", full)
    writer.add("first", sets["id0"])
    with pytest.raises(InputError, match=r"shard-00000\.arrow: no space left: [\d,]+ bytes are needed"):
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["writing.json"]
    monkeypatch.undo()
    write(tmp_path, sets)
    FeatureStore.open(tmp_path).verify()


LIMITED = """
import resource, sys, numpy as np
from infra.errors import InputError
from infra.store_writer import StoreWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with StoreWriter(sys.argv[1], dim=256, source={}, shard_bytes=1 << 20) as writer:
        for i in range(1000):
            writer.add(str(i), np.ones((10, 256)))
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100, 4096, 500_000])
def test_a_limit_on_the_size_of_files_ends_in_a_message(tmp_path: Path, limit: int) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert "shard-00000.arrow: no space left: 1," in done.stdout
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["writing.json"]


def test_statistics_are_those_of_the_chosen_sets(tmp_path: Path, sets: dict[str, np.ndarray]) -> None:
    chosen = list(sets)[3:30:2]
    manifest = write(tmp_path, sets, statistics_of=[*chosen, "an id that was skipped"])
    stored = np.concatenate([sets[id] for id in chosen]).astype(np.float16).astype(np.float64)
    found = Manifest.read(tmp_path).statistics
    assert found == manifest.statistics
    assert (found["sets"], found["vectors"]) == (len(chosen), len(stored))
    np.testing.assert_allclose(found["mean"], stored.mean(0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(found["std"], stored.std(0), rtol=1e-13)


def test_statistics_of_no_set_are_refused(tmp_path: Path, sets: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError, match="none of the ids"):
        write(tmp_path, sets, statistics_of=["nobody"])


def test_moments_survive_a_mean_that_dwarfs_the_spread() -> None:
    x = np.random.default_rng(0).standard_normal((5000, 3)) * 1e-3 + 1e6
    moments = Moments(3)
    for start in range(0, 5000, 7):
        moments.add(x[start : start + 7])
    np.testing.assert_allclose(moments.std, x.std(0), rtol=1e-6)
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-14)


READ_ALL = """
import sys
import numpy as np
from infra.store import FeatureStore

def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

for folder in sys.argv[1:]:
    store = FeatureStore.open(folder)
    store.padded(np.arange(16))
    before = own()
    for start in range(0, len(store), 16):
        store.padded(np.arange(start, min(start + 16, len(store))))
    print(own() - before)
"""


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    x_ND = np.random.default_rng(0).standard_normal((16, 512)).astype(np.float16)
    for count in (300, 3000):
        with StoreWriter(tmp_path / str(count), dim=512, source={}, shard_bytes=8 << 20) as writer:
            for i in range(count):
                writer.add(str(i), x_ND)
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "300"), str(tmp_path / "3000")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    small, large = (int(line) for line in done.stdout.split())
    assert large - small < 4096  # kB; the stores differ by 43,000
