"""The log of a run: sent during training and at the end, also after a restart or a server outage."""

import math
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import soon

from polypool.infra import tracking as module
from polypool.infra.errors import InputError
from polypool.infra.tracking import METRICS, Log, Sender, Tracker


class Refusal(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class Recorder:
    """Stub of a Tracker: records its arguments; fails unless `there`."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.there, self.deleted, self.requests = True, False, 0
        self.before: dict[str, list[tuple[int, float]]] = {}

    def history(self, name: str) -> list[tuple[int, float]]:
        return self.before.get(name, [])

    def points(self, points: list[tuple[str, float, int, int]]) -> None:
        self._answer()
        assert len(points) <= 1000, "MLflow refuses more than 1,000 metrics per request"
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
def opened(tmp_path, mlflow) -> Callable[[], Sender]:
    return lambda: Sender(tmp_path / "log", lambda: mlflow)


def log_all(log: Log, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for step in range(3):
        log.log({"loss": step / 3, "norm": math.inf}, step=step)
        (folder / "weights").write_text(f"after step {step}")
        (folder / "run.json").write_text("{}")
        log.artifact(folder, "model")
    log.tags({"version": 2})
    log.end("FINISHED")


def test_outage_is_noted_once_and_log_sent_in_order_later(opened, mlflow, tmp_path, capsys):
    mlflow.there = False
    log = opened()
    log_all(log, tmp_path / "made")
    soon(lambda: log.why, seconds=20)
    log.close(10)
    assert (mlflow.got, log.unsent, log.why) == ([], 8, "nobody answers")
    assert capsys.readouterr().err.count("note: the run goes on, and ") == 1
    assert log.history("loss") == [(0, 0.0), (1, 1 / 3), (2, 2 / 3)]
    assert (log.download("model") / "weights").read_text() == "after step 2"
    mlflow.there, mlflow.requests = True, 0
    later = opened()  # as `train resume` does
    later.close(10)
    points = [[("loss", step / 3, step), ("norm", math.inf, step)] for step in range(3)]
    files = [("model", "run.json", "{}"), ("model", "weights", "after step 2")]
    assert mlflow.got == [*points[0], *points[1], *points[2], *files, {"version": "2"}, "FINISHED"]
    assert (later.unsent, later.refused, mlflow.requests) == (0, [], 5), (
        "metrics of several steps must share one request"
    )
    opened().close(10)
    assert len(mlflow.got) == 10, "nothing must be sent twice"


def test_sender_retries_and_never_blocks_on_a_hung_server(opened, mlflow, monkeypatch):
    monkeypatch.setattr(module, "_RETRY", 0.1)
    mlflow.there = False
    log = opened()
    log.log({"loss": 1.0}, step=1)
    soon(lambda: log.why, seconds=20)
    mlflow.there = True
    time.sleep(0.1)
    log.log({"loss": 0.5}, step=2)
    soon(lambda: not log.unsent, seconds=20)
    assert mlflow.got == [("loss", 1.0, 1), ("loss", 0.5, 2)]

    hangs = threading.Event()
    monkeypatch.setattr(mlflow, "points", lambda points: hangs.wait(60))
    began = time.monotonic()
    for step in range(3, 503):
        log.log({"loss": 1.0}, step=step)
    log.close(0.2)
    assert time.monotonic() - began < 6, "logging must not wait for the server"
    assert log.unsent == 500
    hangs.set()


def test_metrics_are_sent_in_batches_of_1000(opened, mlflow):
    mlflow.there = False
    log = opened()
    for step in range(700):
        log.log({"a": 1.0, "b": 2.0}, step=step)
    log.close()
    mlflow.there, mlflow.requests = True, 0
    opened().close(20)
    assert mlflow.got == [each for step in range(700) for each in (("a", 1.0, step), ("b", 2.0, step))]
    assert mlflow.requests == 2


def test_repeated_steps_are_sent_once(opened, mlflow):
    first = opened()
    for step in (0, 2, 4, 4, 6):  # a worker was restarted at step 4
        first.log({"loss": step / 2}, step=step)
    first.close(10)
    again = opened()  # resumed from the checkpoint of step 2
    for step in (2, 4, 6, 4, 6, 8):  # with another restart
        again.log({"loss": step / 2, "other": 1.0}, step=step)
    again.close(10)
    assert [sent for sent in mlflow.got if sent[0] == "loss"] == [("loss", n / 2, n) for n in (0, 2, 4, 6, 8)]
    assert [step for name, _, step in mlflow.got if name == "other"] == [2, 4, 6, 8]


def test_steps_sent_by_another_machine_are_not_resent(tmp_path, mlflow):
    mlflow.before = {"loss": [(1, 0.5), (2, 0.25)]}
    log = Sender(tmp_path / "log", lambda: mlflow, remote=True)
    for step in (2, 3):
        log.log({"loss": step / 9, "new": 1.0}, step=step)
    log.close(10)
    assert sorted(mlflow.got) == [("loss", 3 / 9, 3), ("new", 1.0, 2), ("new", 1.0, 3)]


def test_remote_worker_notes_what_is_not_uploaded_in_time(tmp_path, mlflow, monkeypatch, capsys):
    hangs = threading.Event()
    monkeypatch.setattr(mlflow, "artifact", lambda path, folder: hangs.wait(60))
    (tmp_path / "weights").touch()
    log = Sender(tmp_path / "log", lambda: mlflow, remote=True)
    log.artifact(tmp_path / "weights", "model")
    log.end("FINISHED")
    log.close(0.5)
    hangs.set()
    assert capsys.readouterr().err == (
        f"note: not in MLflow: 2 entries, model/weights (no answer in 0.5 seconds); {tmp_path}/log on "
        f"{platform.node()} keeps them\n"
    )


def test_metrics_are_stored_once_after_partial_send_and_kill(tmp_path, monkeypatch):
    uri, points = f"sqlite:///{tmp_path}/mlflow.db", Tracker.points
    tracker = Tracker.start("e", uri=uri, home=tmp_path, name="n", tags={}, params={})

    def breaks(self: Tracker, batch: list[object]) -> None:
        points(self, batch[: len(batch) // 2])
        raise InputError("no answer")

    monkeypatch.setattr(Tracker, "points", breaks)
    worker = Log(tmp_path / "log")
    for step in range(6):
        worker.log({"loss": step / 7, "nan": math.nan}, step=step)
    first = Sender(tmp_path / "log", lambda: tracker)
    first.close(20)
    assert (first.unsent, len(tracker.history("loss"))) == (6, 3)
    with (tmp_path / "log" / METRICS).open("a") as file:
        file.write('{"time": 1, "step": 9, "metr')  # killed while writing a line
    monkeypatch.setattr(Tracker, "points", points)
    again = Sender(tmp_path / "log", lambda: tracker)
    for step in range(4, 7):
        again.log({"loss": step / 7}, step=step)
    again.end("FINISHED")
    again.close(20)
    found = tracker._call("get_metric_history", "loss")
    assert sorted((point.step, point.value) for point in found) == [(n, n / 7) for n in range(7)]
    assert [step for step, value in tracker.history("nan") if math.isnan(value)] == [*range(6)]
    assert tracker.status() == "FINISHED"


def test_refused_metrics_do_not_block_others(opened, mlflow, capsys):
    mlflow.there = False
    log = opened()
    for step, name in enumerate(("a", "R@1", "R@1", "b"), start=1):
        log.log({name: 1.0}, step=step)
    log.tags({"c": "1"})
    log.close()
    mlflow.there = True
    later = opened()
    later.close(10)
    assert mlflow.got == [("a", 1.0, 1), ("b", 1.0, 4), {"c": "1"}]
    assert (later.unsent, later.refused) == (0, ["no such name"] * 2)
    assert capsys.readouterr().err.count("note: not logged: no such name") == 1


def test_log_of_deleted_run_is_sent_after_its_restore(opened, mlflow):
    mlflow.deleted = True
    log = opened()
    log.log({"loss": 1.0}, step=1)
    log.end("FINISHED")
    log.close(10)
    assert (log.unsent, log.refused, log.why, mlflow.got) == (2, [], "it was deleted", [])
    mlflow.deleted = False
    opened().close(10)
    assert mlflow.got == [("loss", 1.0, 1), "FINISHED"]
