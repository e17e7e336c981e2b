"""Logs of a run while MLflow is away: kept, in order, and sent when it is back."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import soon

from polypool.infra.errors import InputError
from polypool.infra.tracking import Outbox, Tracker
from polypool.infra.tracking import outbox as module
from polypool.infra.tracking.journal import JOURNAL, Journal
from polypool.infra.tracking.outbox import REFUSED, SENT


class Refusal(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class Recorder:
    """Stands in for a Tracker: keeps what it is sent, answers only while it is `there`."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.there, self.deleted, self.requests = True, False, 0
        self.before: dict[str, list[tuple[int, float]]] = {}

    def points(self, points: list[tuple[str, float, int, int]]) -> None:
        self._answer()
        assert len(points) <= 1000, "more are refused by MLflow"
        if any("@" in name for name, *_ in points):
            raise InputError("no such name") from Refusal()
        self.got += [(name, value, step) for name, value, _, step in points]

    def tags(self, tags: dict[str, str]) -> None:
        self._answer()
        self.got.append(dict(tags))

    def artifact(self, path: Path, folder: str = "") -> None:
        self._answer()
        self.got.append((folder, path.name, path.read_text()))

    def finish(self, status: str, *, at: int) -> None:
        self._answer()
        assert abs(at / 1000 - time.time()) < 60
        self.got.append(status)

    def history(self, name: str) -> list[tuple[int, float]]:
        self._answer()
        return self.before.get(name, [])

    def refuse_deleted(self) -> None:
        if self.deleted:
            raise InputError("it was deleted")

    def _answer(self) -> None:
        self.requests += 1
        if self.deleted:
            raise InputError("it must be active") from Refusal()
        if not self.there:
            raise InputError("nobody answers")


@pytest.fixture
def mlflow() -> Recorder:
    return Recorder()


@pytest.fixture
def opened(tmp_path, mlflow) -> Callable[[], Outbox]:
    return lambda: Outbox(tmp_path / "outbox", lambda: mlflow)


@pytest.fixture
def away(opened, mlflow) -> Outbox:
    """What is logged while nobody answers; whoever closes it lets MLflow answer again."""
    mlflow.there = False
    outbox = opened()
    close = outbox.close

    def closed() -> None:
        close(10)
        mlflow.there, mlflow.requests = True, 0

    outbox.close = closed
    return outbox


def wait_until_sent(outbox: Outbox) -> None:
    soon(lambda: not outbox.unsent, seconds=20)


def log_all(outbox: Outbox, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for step in range(3):
        outbox.log({"loss": step / 3, "norm": math.inf}, step=step)
        (folder / "weights").write_text(f"after step {step}")
        (folder / "run.json").write_text("{}")
        outbox.artifact(folder, "model")
    outbox.tags({"version": 2})
    outbox.end("FINISHED")


def test_it_arrives_in_order_and_a_file_that_is_replaced_is_sent_once(opened, away, mlflow, tmp_path):
    log_all(away, tmp_path / "made")
    away.close()
    assert (mlflow.got, away.unsent, away.why) == ([], 8, "nobody answers")
    later = opened()  # as another process does
    later.close(10)
    points = [[("loss", step / 3, step), ("norm", math.inf, step)] for step in range(3)]
    files = [("model", "run.json", "{}"), ("model", "weights", "after step 2")]
    assert mlflow.got == [*points[0], *points[1], *points[2], *files, {"version": "2"}, "FINISHED"]
    assert (later.unsent, later.refused) == (0, 0)
    opened().close(10)
    assert len(mlflow.got) == 10, "nothing is sent twice"


def test_a_server_that_comes_back_is_found_and_one_that_hangs_is_not_waited_for(
    opened, mlflow, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_PAUSES", (0.05, 0.05))
    mlflow.there = False
    outbox = opened()
    outbox.log({"loss": 1.0}, step=1)
    time.sleep(0.2)
    assert outbox.why == "nobody answers"
    mlflow.there = True
    wait_until_sent(outbox)
    assert mlflow.got == [("loss", 1.0, 1)]

    hangs = threading.Event()
    monkeypatch.setattr(mlflow, "points", lambda points: hangs.wait(60))
    began = time.monotonic()
    for step in range(1000):
        outbox.log({"loss": 1.0}, step=step)
    assert time.monotonic() - began < 5, "a step waits for nobody"
    outbox.close(0.2)
    assert time.monotonic() - began < 6
    assert outbox.unsent == 1000
    hangs.set()


def test_numbers_of_many_steps_are_sent_together(opened, away, mlflow):
    for step in range(700):
        away.log({"a": 1.0, "b": 2.0}, step=step)
    away.close()
    opened().close(20)
    assert mlflow.got == [each for step in range(700) for each in (("a", 1.0, step), ("b", 2.0, step))]
    assert mlflow.requests < 10


def test_steps_that_are_trained_again_are_logged_once(opened, mlflow):
    first = opened()
    for step in (0, 2, 4):
        first.log({"loss": step / 2, "lr": 0.5}, step=step)
    wait_until_sent(first)
    for step in (4, 6):  # of a worker that was begun again
        first.log({"loss": step / 2, "lr": 0.5}, step=step)
    first.close(10)
    again = opened()  # after a checkpoint of step 2, which is known to have been sent
    for step in (2, 4, 6, 4, 6, 8):  # and after another fault
        again.log({"loss": step / 2, "other": 1.0}, step=step)
    again.close(10)
    assert again.unsent == 0
    losses = [(step, value) for name, value, step in mlflow.got if name == "loss"]
    assert losses == [(step, step / 2) for step in (0, 2, 4, 6, 8)]
    assert [step for name, _, step in mlflow.got if name == "other"] == [2, 4, 6, 8]


def test_steps_that_another_machine_had_sent_are_logged_once(opened, mlflow):
    mlflow.before = {"loss": [(1, 0.5), (2, 0.25)]}
    outbox = opened()
    for step in (2, 3):
        outbox.log({"loss": step / 9, "new": 1.0}, step=step)
    outbox.close(10)
    assert mlflow.got == [("new", 1.0, 2), ("loss", 3 / 9, 3), ("new", 1.0, 3)]


def test_what_is_refused_is_put_aside_and_holds_nothing_up(opened, away, mlflow, tmp_path):
    for step, name in enumerate(("a", "R@1", "b"), start=1):
        away.log({name: 1.0}, step=step)
    away.close()
    with (tmp_path / "outbox" / JOURNAL).open("a") as journal:
        journal.write('{"kind": "numbers", "time": "yesterday"}\n{"kind": "ta')  # and its process was killed
    later = opened()
    later.tags({"c": "1"})
    later.close(10)
    assert mlflow.got == [("a", 1.0, 1), ("b", 1.0, 3), {"c": "1"}]
    assert (later.unsent, later.refused) == (0, 3)
    cases = [json.loads(line) for line in (tmp_path / "outbox" / REFUSED).read_text().splitlines()]
    assert [case["why"] for case in cases] == ["no such name", *["this line cannot be read"] * 2]
    assert cases[0]["entry"]["values"] == {"R@1": "1.0"}


def test_what_a_deleted_run_refuses_is_sent_once_it_is_restored(opened, mlflow):
    mlflow.deleted = True
    outbox = opened()
    outbox.log({"loss": 1.0}, step=1)
    outbox.end("FINISHED")
    outbox.close(10)
    assert (outbox.unsent, outbox.refused, outbox.why, mlflow.got) == (2, 0, "it was deleted", [])
    mlflow.deleted = False
    opened().close(10)
    assert mlflow.got == [("loss", 1.0, 1), "FINISHED"]


def test_what_was_logged_can_be_read_while_nobody_answers(opened, mlflow, tmp_path):
    outbox = opened()
    mlflow.before = {"logged before": [(0, 9.0), (1, 9.0)]}
    log_all(outbox, tmp_path / "made")
    assert outbox.history("loss") == [(0, 0.0), (1, 1 / 3), (2, 2 / 3)]
    assert outbox.history("logged before") == [(0, 9.0), (1, 9.0)]
    assert (outbox.download("model") / "weights").read_text() == "after step 2"
    mlflow.there = False
    outbox.log({"other": 4.0, "loss": 5.0}, step=7)
    outbox.close(10)
    assert outbox.why
    assert outbox.history("other") == [(7, 4.0)]
    assert outbox.history("loss")[-1] == (7, 5.0)


def test_what_another_process_writes_is_sent_meanwhile(opened, mlflow, tmp_path):
    outbox = opened()
    outbox.begin()
    training = Journal(tmp_path / "outbox", nobody)
    training.log({"loss": 0.5}, step=1)
    training.log({"loss": 0.25}, step=2)
    wait_until_sent(outbox)
    assert mlflow.got == [("loss", 0.5, 1), ("loss", 0.25, 2)]
    training.close()
    with (tmp_path / "outbox" / JOURNAL).open("a") as journal:
        journal.write('{"kind": "num')  # the other one was killed
    outbox.end("FAILED")
    outbox.close(10)
    assert mlflow.got[2:] == ["FAILED"]
    assert (outbox.unsent, outbox.refused) == (0, 1)


def test_what_was_logged_before_is_asked_for_once_where_nobody_answers(tmp_path, mlflow):
    mlflow.there = False
    journal = Journal(tmp_path, lambda: mlflow)
    assert [journal.history(name) for name in ("loss", "norm", "loss")] == [[], [], []]
    assert mlflow.requests == 1
    journal.close()


def nobody() -> Tracker:
    raise AssertionError("nobody else is asked")


def test_a_run_that_began_here_knows_all_that_it_logged(tmp_path, mlflow):
    journal = Journal(tmp_path, nobody)
    journal.begin()
    journal.log({"loss": 1.0}, step=3)
    assert journal.history("loss") == [(3, 1.0)]
    assert journal.history("other") == []
    journal.close()
    later = Journal(tmp_path, nobody)  # after a restart
    later.log({"loss": 0.5}, step=4)
    assert later.history("loss") == [(3, 1.0), (4, 0.5)]


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind": "numbers", "time": 1, "values": {"loss": "many"}}',
        b'{"kind": "artifact", "time": 1, "names": ["../../journal.jsonl"]}',
        b'{"kind": "artifact", "time": 1, "folder": "/etc", "names": ["hostname"]}',
        b"[" * 50_000,
        b'{"kind": "numbers", "time": ' + b"9" * 5_000 + b"}",
        b"\xff",
    ],
)
def test_a_damaged_line_is_put_aside_and_a_damaged_position_sends_all(tmp_path, line):
    recorder = Recorder()
    (tmp_path / JOURNAL).write_bytes(line + b'\n{"kind": "tags", "time": 2, "values": {"a": "b"}}\n')
    (tmp_path / SENT).write_bytes(b"\xff3")
    outbox = Outbox(tmp_path, lambda: recorder)
    outbox.close(10)
    assert recorder.got == [{"a": "b"}]
    assert (outbox.unsent, outbox.refused) == (0, 1)
