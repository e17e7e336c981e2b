"""Logs that workers send to the driver's machine: in order, without waiting, and losses are reported."""

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from polypool.infra.errors import InputError
from polypool.infra.ray import remote_log
from polypool.infra.ray.remote_log import RemoteLog
from polypool.infra.tracking.journal import Journal


class Queue:
    """Stands in for Ray's handle: what is asked is done when somebody lets it, in order."""

    def __init__(self, served: remote_log._Queue) -> None:
        self._served, self.waiting, self.held = served, [], False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._served, name)

        class Method:
            @staticmethod
            def remote(*arguments: object, **options: object) -> Future:
                call = partial(method, *arguments, **options)
                self.waiting.append((future := Future(), call))
                if not self.held:
                    self.work()
                return future

        return Method

    def work(self) -> None:
        for future, call in self.waiting:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
        self.waiting = []


@pytest.fixture
def queue(tmp_path, monkeypatch) -> Queue:
    def wait(futures: list[Future], *, timeout: float, num_returns: int = 1) -> tuple[list, list]:
        assert (timeout, num_returns) == (0, len(futures))
        done = [future for future in futures if future.done()]
        return done, [future for future in futures if not future.done()]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda future: future.result(timeout=0))

    def journal() -> Journal:
        return Journal(tmp_path / "run" / "outbox", nobody)

    return Queue(remote_log._Queue(journal, tmp_path / "run" / "whole", tmp_path / "stop"))


def nobody() -> Journal:
    raise InputError("nobody answers")


def log_all(log: RemoteLog | Journal, folder: Path) -> None:
    log.log({"loss": 0.5}, step=1)
    log.tags({"a": "b"})
    log.artifact(folder, "model")
    log.artifact(folder / "weights", "model/inner")
    log.log({"loss": 0.25}, step=2)


def test_it_keeps_what_a_journal_beside_the_worker_would(queue, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "weights").write_bytes(b"\0weights")
    (folder / "run.json").write_text("{}")
    plain, sent = Journal(tmp_path / "plain", nobody), RemoteLog(queue)
    for log in (plain, sent):
        log_all(log, folder)
    kept = Journal(tmp_path / "run" / "outbox", nobody)
    entries = [
        [{**vars(entry), "time": 0} for entry, _ in log.entries() if entry is not None]
        for log in (plain, kept)
    ]
    assert entries[0] == entries[1]
    assert sent.history("loss") == [(1, 0.5), (2, 0.25)]
    copy = sent.download("model")
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {
        *("weights", "run.json", "inner/weights")
    }
    assert (copy / "weights").read_bytes() == b"\0weights"
    with pytest.raises(InputError, match="nobody answers"):
        sent.download("other")
    members = [log.member("vqa", {"name": "n"}) for log in (plain, sent)]
    for member in members:
        log_all(member, folder)
    sent.close()
    assert not copy.exists()
    places = [place / "members" / "vqa" for place in (tmp_path / "plain", tmp_path / "run" / "outbox")]
    assert len({(place / "described.json").read_bytes() for place in places}) == 1
    assert len({len([*Journal(place, nobody).entries()]) for place in places}) == 1
    assert [*Journal(places[1], nobody).entries()], "it is its own"


def test_what_comes_with_a_run_is_waited_for_as_well(queue):
    sent = RemoteLog(queue)
    member = sent.member("vqa", {})
    sent.flush()
    queue.held = True
    member.log({"loss": 0.5}, step=1)
    with pytest.raises(TimeoutError):
        sent.flush()


def test_nothing_waits_but_flush_which_says_what_went_wrong(queue):
    sent = RemoteLog(queue)
    queue.held = True
    sent.log({"loss": 0.5}, step=1)
    sent.log({"loss": 0.25}, step=2)
    with pytest.raises(TimeoutError):
        sent.flush()
    queue.work()
    sent.log({"loss": 0.5}, step=3)
    queue.work()
    sent.flush()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    queue._served._journals[""].log = full
    sent.log({"loss": 0.5}, step=4)
    queue.work()
    for act in (sent.flush, lambda: sent.log({"loss": 0.5}, step=5)):
        queue.held = False
        with pytest.raises(OSError, match="No space left"):
            act()


def test_whether_to_stop_is_asked_now_and_then_and_not_waited_for(queue, tmp_path, monkeypatch):
    sent = RemoteLog(queue)
    assert not sent.stopping()
    (tmp_path / "stop").touch()
    assert not sent.stopping(), "it was asked just now"
    monkeypatch.setattr(remote_log, "_STOP_SECONDS", 0)
    queue.held, sent._next = True, 0.0
    assert not sent.stopping()
    assert not sent.stopping()
    assert len(queue.waiting) == 1
    queue.work()
    assert sent.stopping()


def test_the_last_checkpoint_is_told_on_the_machine_of_the_driver(queue, tmp_path):
    RemoteLog(queue).note_checkpoint("checkpoint_7_ab")
    assert (tmp_path / "run" / "whole").read_text() == "checkpoint_7_ab"
