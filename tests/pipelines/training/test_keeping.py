"""A checkpoint in storage counts after all that was logged before it is kept, and only for who holds the run."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import ray
import ray.train
from object_storage import Bucket

from infra.process.lease import HeldError
from infra.storage import remote
from infra.storage.checkpoints import newest
from infra.storage.claim import Claim
from infra.storage.places import Url, place
from pipelines.training.keeping import InStorage


class Taken:
    """Stands in for a snapshot."""

    samples = 7

    def write(self, into: Path) -> None:
        (into / "state.pt").write_bytes(b"state")


class Desk:
    """Stands in for Ray's handle: notes what it is told, and does what is logged when it is let."""

    def __init__(self) -> None:
        self.told, self.kept = [], Future()
        self.log = self._method("log", self.kept)
        self.whole = self._method("whole", Future())
        self.whole.done.set_result(None)

    def _method(self, name: str, done: Future) -> type:
        class Method:
            @staticmethod
            def remote(*arguments: object) -> Future:
                self.told.append((name, *arguments))
                return done

        Method.done = done
        return Method


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(remote, "_PAUSE", 0)
    monkeypatch.setattr(ray, "get", lambda future: future.result(60))
    monkeypatch.setattr(ray, "wait", lambda futures, **_: ([], futures))
    monkeypatch.setattr(ray.train, "report", lambda metrics: None)
    return Desk()


@pytest.fixture
def at(bucket: Bucket) -> Url:
    return place(f"{bucket.url}/runs/1")


def kept(at: Url, claim: Claim, desk: Desk, folder: Path) -> InStorage:
    return InStorage(run_id="1", at=at, token=claim.token, folder=folder, desk=desk)


def test_a_checkpoint_waits_for_what_was_logged_before_it(at: Url, desk: Desk, tmp_path: Path) -> None:
    with Claim.take(at, of="it") as claim:
        worker = kept(at, claim, desk, tmp_path)
        worker.log().log({"loss": 1.0}, step=1)
        worker.report({}, Taken())
        ends = threading.Thread(target=worker.close)
        ends.start()
        ends.join(0.5)
        assert ends.is_alive()
        assert newest(at) is None
        desk.kept.set_result(None)
        ends.join(60)
        assert desk.told == [("log", "", {"loss": 1.0}, 1), ("whole", newest(at))]
        assert worker.progress() == newest(at)


def test_who_has_lost_the_run_writes_no_checkpoint(at: Url, desk: Desk, tmp_path: Path) -> None:
    with Claim.take(at, of="it") as before:
        pass
    with Claim.take(at, of="it"):
        worker = kept(at, before, desk, tmp_path)
        worker.report({}, Taken())
        with pytest.raises(HeldError, match="run 1 is being trained by another process"):
            worker.close()
    assert newest(at) is None


def test_storage_that_is_away_is_no_progress(
    at: Url, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.kept.set_result(None)
    with Claim.take(at, of="it") as claim:
        worker = kept(at, claim, desk, tmp_path)
        worker.report({}, Taken())
        worker.close()
        before = worker.progress()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert worker.progress() == before
        monkeypatch.undo()
