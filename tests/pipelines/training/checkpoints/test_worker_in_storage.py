"""A checkpoint in storage counts after all that was logged before it is kept, and only for who holds the run."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import ray
import ray.train
from object_storage import Bucket
from toy import Taken

from polypool.infra.lease.in_bucket import BucketLease
from polypool.infra.lease.on_disk import HeldError
from polypool.infra.storage import remote
from polypool.infra.storage.places import Url, place
from polypool.pipelines.training.checkpoints.in_storage import InStorage, newest


class Queue:
    """Stands in for Ray's handle: notes what it is told, and does what is logged when it is let."""

    def __init__(self) -> None:
        self.told, self.kept = [], Future()
        self.call = self._method("call", self.kept)
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
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr(remote, "_PAUSE", 0)
    monkeypatch.setattr(ray, "get", lambda future: future.result(60))
    monkeypatch.setattr(ray, "wait", lambda futures, **_: ([], futures))
    monkeypatch.setattr(ray.train, "report", lambda metrics: None)
    return Queue()


@pytest.fixture
def at(bucket: Bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def kept(at: Url, claim: BucketLease, queue: Queue, folder: Path) -> InStorage:
    return InStorage(run_id="1", at=at, token=claim.token, folder=folder, queue=queue)


def test_a_checkpoint_waits_for_what_was_logged_before_it(at: Url, queue: Queue, tmp_path: Path) -> None:
    with BucketLease.take(at, of="it") as claim:
        worker = kept(at, claim, queue, tmp_path)
        worker.log().log({"loss": 1.0}, step=1)
        worker.report({}, Taken())
        ends = threading.Thread(target=worker.close)
        ends.start()
        ends.join(0.5)
        assert ends.is_alive()
        assert newest(at) is None
        queue.kept.set_result(None)
        ends.join(60)
        assert queue.told == [("call", "", "log", {"loss": 1.0}), ("note_checkpoint", newest(at))]
        assert worker.progress() == newest(at)


def test_who_has_lost_the_run_writes_no_checkpoint(at: Url, queue: Queue, tmp_path: Path) -> None:
    with BucketLease.take(at, of="it") as before:
        pass
    with BucketLease.take(at, of="it"):
        worker = kept(at, before, queue, tmp_path)
        worker.report({}, Taken())
        with pytest.raises(HeldError, match="run 1 is being trained by another process"):
            worker.close()
    assert newest(at) is None


def test_storage_that_is_away_is_no_progress(
    at: Url, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.kept.set_result(None)
    with BucketLease.take(at, of="it") as claim:
        worker = kept(at, claim, queue, tmp_path)
        worker.report({}, Taken())
        worker.close()
        before = worker.progress()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert worker.progress() == before
        monkeypatch.undo()
