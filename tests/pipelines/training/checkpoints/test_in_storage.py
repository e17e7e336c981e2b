"""Checkpoints in object storage: whole or not there, the last one alone, each held to its check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from object_storage import Bucket, Fault, cut, damaged
from toy import Taken

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.storage import remote
from polypool.infra.storage.places import Url, place
from polypool.pipelines.training.checkpoints.in_storage import fetched, keep, lacking, newest, write

WEIGHTS = b"weights" * 1000


def taken(samples: int, weights: bytes = WEIGHTS) -> Taken:
    return Taken(samples, {"model.safetensors": weights, "state.pt": b"state"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAUSE", 0)


@pytest.fixture
def run(bucket: Bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def put(bucket: Bucket, key: str, content: bytes) -> None:
    with bucket.system.open_output_stream(f"{bucket.name}/{key}") as file:
        file.write(content)


def test_the_last_one_by_progress_is_there_and_the_others_are_not(run: Url, bucket: Bucket) -> None:
    assert newest(run) is None
    put(bucket, "runs/1/lease.json", b"{}")
    names = [write(run, taken(samples, str(samples).encode())) for samples in (9, 10, 100)]
    assert names == sorted(names)
    assert bucket.keys() == sorted(
        [
            *(f"runs/1/{names[-1]}{end}" for end in (".json", "/model.safetensors", "/state.pt")),
            "runs/1/lease.json",
        ]
    )
    assert newest(run) == names[-1]
    assert lacking(run, names[-1]) == []
    with fetched(run, names[-1]) as folder:
        assert (folder / "model.safetensors").read_bytes() == b"100"
        assert (folder / "state.pt").read_bytes() == b"state"
    assert not folder.exists()


def test_one_that_is_not_whole_is_never_read(run: Url, bucket: Bucket) -> None:
    whole = write(run, taken(5))
    put(bucket, "runs/1/checkpoint_000000000007_ab/model.safetensors", b"half")

    def refuse() -> None:
        raise InputError("another has it")

    with pytest.raises(InputError, match="another has it"):
        write(run, taken(8), before=refuse)
    assert newest(run) == whole
    keep(run, newest(run))
    left = bucket.keys()
    assert {key.split("/")[2].removesuffix(".json") for key in left} == {whole}
    keep(run, None)
    assert bucket.keys() == []


def test_faults_cost_attempts(run: Url, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MAX_PAUSE", 0)
    for key in ("model.safetensors", ".json"):
        bucket.server.faults.append(Fault(method="PUT", key=key, times=2 * remote.ATTEMPTS))
    bucket.server.faults.append(Fault(key="model.safetensors", times=3, spoil=cut(100)))
    name = write(run, taken(5))
    with fetched(run, name) as folder:
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not any(fault.times for fault in bucket.server.faults)


def test_a_checkpoint_is_whole_though_the_one_before_cannot_be_deleted_now(run: Url, bucket: Bucket) -> None:
    write(run, taken(5))
    bucket.server.faults.append(Fault(method="DELETE", times=remote.ATTEMPTS))
    later = write(run, taken(6))
    assert newest(run) == later
    assert len(bucket.keys()) == 2 * 3
    write(run, taken(7))
    assert len(bucket.keys()) == 3


def test_one_that_lost_a_file_or_was_damaged_is_refused(run: Url, bucket: Bucket) -> None:
    name = write(run, taken(5))
    bucket.server.faults.append(Fault(spoil=damaged(3000), key="model.safetensors", times=2))
    with pytest.raises(InputError, match="SHA-256 differs"), fetched(run, name):
        pass
    remote.delete(run / name / "state.pt")
    put(bucket, f"runs/1/{name}/model.safetensors", b"short")
    assert lacking(run, name) == ["model.safetensors", "state.pt"]
    with pytest.raises(InputError), fetched(run, name):
        pass
    with pytest.raises(AbsentError, match="the manifest of a checkpoint"):
        lacking(run, "checkpoint_0_0")


@pytest.mark.parametrize(
    "manifest",
    [
        {"sha256": {"../x": "0"}, "bytes": {"../x": 1}},
        {"sha256": {"a": "0"}, "bytes": {"b": 1}},
        {"sha256": {"a": "0"}},
        [],
    ],
)
def test_what_is_no_manifest_is_refused(manifest: object, run: Url, bucket: Bucket) -> None:
    put(bucket, "runs/1/checkpoint_000000000007_ab.json", json.dumps(manifest).encode())
    assert newest(run) == "checkpoint_000000000007_ab"
    with pytest.raises(InputError, match=r"checkpoint_000000000007_ab\.json: "):
        lacking(run, newest(run))


def test_nothing_stays_in_the_cache_of_what_was_sent(run: Url, tmp_path: Path) -> None:
    write(run, taken(5))
    assert [*(tmp_path / "cache" / "writing").iterdir()] == []
