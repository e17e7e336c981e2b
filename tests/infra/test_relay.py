"""What workers leave with the machine of their driver: in order, without waiting, and nothing is lost unsaid."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ray

from infra.errors import InputError
from infra.ray import relay
from infra.ray.checkpoints import told
from infra.ray.relay import Relay
from infra.tracking.journal import Journal


class Desk:
    """Stands in for Ray's handle: what is asked is done when somebody lets it, in order."""

    def __init__(self, desk: relay._Desk) -> None:
        self._desk, self.waiting, self.held = desk, [], False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._desk, name)

        class Method:
            @staticmethod
            def remote(*arguments: object) -> Future:
                self.waiting.append((future := Future(), method, arguments))
                if not self.held:
                    self.work()
                return future

        return Method

    def work(self) -> None:
        for future, method, arguments in self.waiting:
            try:
                future.set_result(method(*arguments))
            except Exception as error:
                future.set_exception(error)
        self.waiting = []


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    def wait(futures: list[Future], *, timeout: float, num_returns: int = 1) -> tuple[list, list]:
        assert (timeout, num_returns) == (0, len(futures))
        done = [future for future in futures if future.done()]
        return done, [future for future in futures if not future.done()]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda future: future.result(timeout=0))

    def journal() -> Journal:
        return Journal(tmp_path / "run" / "outbox", nobody)

    return Desk(relay._Desk(journal, tmp_path / "run", tmp_path / "stop"))


def nobody() -> Journal:
    raise InputError("nobody answers")


def log_all(log: Relay | Journal, folder: Path) -> None:
    log.log({"loss": 0.5}, step=1)
    log.tags({"a": "b"})
    log.artifact(folder, "model")
    log.artifact(folder / "weights", "model/inner")
    log.log({"loss": 0.25}, step=2)


def test_it_keeps_what_a_journal_beside_the_worker_would(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "weights").write_bytes(b"\0weights")
    (folder / "run.json").write_text("{}")
    plain, sent = Journal(tmp_path / "plain", nobody), Relay(desk)
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


def test_what_comes_with_a_run_is_waited_for_as_well(desk: Desk) -> None:
    sent = Relay(desk)
    member = sent.member("vqa", {})
    sent.flush()
    desk.held = True
    member.log({"loss": 0.5}, step=1)
    with pytest.raises(TimeoutError):
        sent.flush()


def test_nothing_waits_but_flush_which_says_what_went_wrong(desk: Desk) -> None:
    sent = Relay(desk)
    desk.held = True
    sent.log({"loss": 0.5}, step=1)
    sent.log({"loss": 0.25}, step=2)
    with pytest.raises(TimeoutError):
        sent.flush()
    desk.work()
    sent.log({"loss": 0.5}, step=3)
    desk.work()
    sent.flush()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    desk._desk._journal.log = full
    sent.log({"loss": 0.5}, step=4)
    desk.work()
    for act in (sent.flush, lambda: sent.log({"loss": 0.5}, step=5)):
        desk.held = False
        with pytest.raises(OSError, match="No space left"):
            act()


def test_whether_to_stop_is_asked_now_and_then_and_not_waited_for(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Relay(desk)
    assert not sent.stopping()
    (tmp_path / "stop").touch()
    assert not sent.stopping(), "it was asked just now"
    monkeypatch.setattr(relay, "_ASKS", 0)
    desk.held, sent._next = True, 0.0
    assert not sent.stopping()
    assert not sent.stopping()
    assert len(desk.waiting) == 1
    desk.work()
    assert sent.stopping()


def test_the_last_checkpoint_is_told_on_the_machine_of_the_driver(desk: Desk, tmp_path: Path) -> None:
    assert told(tmp_path / "run") is None
    Relay(desk).whole("checkpoint_7_ab")
    assert told(tmp_path / "run") == "checkpoint_7_ab"
