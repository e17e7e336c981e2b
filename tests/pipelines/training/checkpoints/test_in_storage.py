"""Checkpoints in object storage: whole or not there, after all that was logged before, for who holds the run."""

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
import ray.train
from object_storage import Bucket, Fault, cut, damaged
from toy import Taken

from polypool.infra.errors import AbsentError, AwayError, InputError
from polypool.infra.lease.in_bucket import BucketLease
from polypool.infra.lease.on_disk import HeldError
from polypool.infra.storage import remote
from polypool.infra.storage.places import Url, place
from polypool.pipelines.training.checkpoints import in_storage
from polypool.pipelines.training.checkpoints.in_storage import (
    InStorage,
    fetched,
    keep,
    lacking,
    newest,
    write,
)

WEIGHTS = b"weights" * 1000


def taken(samples: int, weights: bytes = WEIGHTS) -> Taken:
    return Taken(samples, {"model.safetensors": weights, "state.pt": b"state"})


@pytest.fixture
def run(bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def put(bucket: Bucket, key: str, content: bytes) -> None:
    with bucket.system.open_output_stream(f"{bucket.name}/{key}") as file:
        file.write(content)


def test_the_last_one_by_progress_is_there_and_the_others_are_not(run, bucket):
    assert newest(run) is None
    put(bucket, "runs/1/lease.json", b"{}")
    names = [write(run, taken(samples, str(samples).encode())) for samples in (9, 10, 100)]
    assert names == sorted(names)
    last = [f"runs/1/{names[-1]}{end}" for end in (".json", "/model.safetensors", "/state.pt")]
    assert bucket.keys() == sorted([*last, "runs/1/lease.json"])
    assert newest(run) == names[-1]
    assert lacking(run, names[-1]) == []
    with fetched(run, names[-1]) as folder:
        assert (folder / "model.safetensors").read_bytes() == b"100"
        assert (folder / "state.pt").read_bytes() == b"state"
    assert not folder.exists()


def test_one_that_is_not_whole_is_never_read(run, bucket):
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


def test_faults_cost_attempts(run, bucket, monkeypatch):
    monkeypatch.setattr(remote, "_MAX_PAUSE", 0)
    for key in ("model.safetensors", ".json"):
        bucket.server.faults.append(Fault(method="PUT", key=key, times=2 * remote.ATTEMPTS))
    bucket.server.faults.append(Fault(key="model.safetensors", times=3, spoil=cut(100)))
    name = write(run, taken(5))
    with fetched(run, name) as folder:
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not any(fault.times for fault in bucket.server.faults)


def test_a_checkpoint_is_whole_though_the_one_before_cannot_be_deleted_now(run, bucket):
    write(run, taken(5))
    bucket.server.faults.append(Fault(method="DELETE", times=remote.ATTEMPTS))
    later = write(run, taken(6))
    assert newest(run) == later
    assert len(bucket.keys()) == 2 * 3
    write(run, taken(7))
    assert len(bucket.keys()) == 3


def test_one_that_lost_a_file_or_was_damaged_is_refused(run, bucket):
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
def test_what_is_no_manifest_is_refused(manifest, run, bucket):
    put(bucket, "runs/1/checkpoint_000000000007_ab.json", json.dumps(manifest).encode())
    assert newest(run) == "checkpoint_000000000007_ab"
    with pytest.raises(InputError, match=r"checkpoint_000000000007_ab\.json: "):
        lacking(run, newest(run))


def test_nothing_stays_in_the_cache_of_what_was_sent(run, tmp_path):
    write(run, taken(5))
    assert [*(tmp_path / "cache" / "writing").iterdir()] == []


class Queue:
    """Stands in for Ray's handle: notes what it is told, and does what is logged when it is let."""

    def __init__(self) -> None:
        self.told, self.worker_of = [], Future()
        self.call = self._method("call", self.worker_of)
        self.note_checkpoint = self._method("note_checkpoint", Future())
        self.note_checkpoint.done.set_result(None)

    def _method(self, name: str, done: Future) -> type:
        class Method:
            @staticmethod
            def remote(*arguments: object, **_: object) -> Future:
                self.told.append((name, *arguments))
                return done

        Method.done = done
        return Method


@pytest.fixture
def queue(monkeypatch) -> Queue:
    monkeypatch.setattr(ray, "get", lambda future: future.result(60))
    monkeypatch.setattr(ray, "wait", lambda futures, **_: ([], futures))
    monkeypatch.setattr(ray.train, "report", lambda metrics: None)
    return Queue()


def worker_of(run: Url, claim: BucketLease, queue: Queue, folder: Path) -> InStorage:
    return InStorage(run_id="1", at=run, token=claim.token, folder=folder, queue=queue)


def test_a_checkpoint_waits_for_what_was_logged_before_it(run, queue, tmp_path):
    with BucketLease.take(run, of="it") as claim:
        worker = worker_of(run, claim, queue, tmp_path)
        worker.log().log({"loss": 1.0}, step=1)
        worker.report({}, Taken())
        ends = threading.Thread(target=worker.close)
        ends.start()
        ends.join(0.5)
        assert ends.is_alive()
        assert newest(run) is None
        queue.worker_of.set_result(None)
        ends.join(60)
        assert queue.told == [("call", "", "log", {"loss": 1.0}), ("note_checkpoint", newest(run))]
        assert worker.progress() == newest(run)


def test_who_has_lost_the_run_writes_no_checkpoint(run, queue, tmp_path):
    with BucketLease.take(run, of="it") as before:
        pass
    with BucketLease.take(run, of="it"):
        worker = worker_of(run, before, queue, tmp_path)
        worker.report({}, Taken())
        with pytest.raises(HeldError, match="run 1 is being trained by another process"):
            worker.close()
    assert newest(run) is None


def test_storage_that_is_away_is_no_progress(run, queue, tmp_path, monkeypatch):
    queue.worker_of.set_result(None)
    with BucketLease.take(run, of="it") as claim:
        worker = worker_of(run, claim, queue, tmp_path)
        worker.report({}, Taken())
        worker.close()
        before = worker.progress()
        with monkeypatch.context() as away:
            away.setattr(in_storage, "newest", Mock(side_effect=AwayError("nobody answers")))
            assert worker.progress() == before
