from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.process.beside import beside


def test_what_the_work_returns_comes_back_and_what_it_does_stays_there():
    held = [1, 2]

    def work() -> tuple[int, list[int]]:
        held.append(3)
        return os.getpid(), held

    with beside(work) as done:
        process, returned = done()
    assert returned == [1, 2, 3]
    assert held == [1, 2]
    assert process != os.getpid()


def test_what_the_work_raises_is_raised_here():
    def work() -> None:
        raise InputError("it cannot be drawn")

    with beside(work) as done, pytest.raises(InputError, match="it cannot be drawn"):
        done()


def test_what_cannot_be_sent_back_is_an_error():
    with beside(lambda: lambda: 1) as done, pytest.raises(Exception, match="pickle"):
        done()


def test_work_that_is_killed_is_an_error():
    with (
        beside(lambda: os.kill(os.getpid(), signal.SIGKILL)) as done,
        pytest.raises(RuntimeError, match="ended with signal 9"),
    ):
        done()
    with beside(lambda: os._exit(3)) as done, pytest.raises(RuntimeError, match="ended with exit code 3"):
        done()


def begun(file: Path) -> int:
    """Return what a process wrote to a file, once it is there."""
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)
    return int(file.read_text())


def test_work_that_nobody_waits_for_is_ended(tmp_path):
    def work() -> None:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(600)

    with beside(work):
        process = begun(tmp_path / "process")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_signals_to_all_processes_of_a_terminal_are_for_who_began_the_work(tmp_path):
    def work() -> str:
        (tmp_path / "process").write_text(str(os.getpid()))
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return "done"

    with beside(work) as done:
        process = begun(tmp_path / "process")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process, number)
        (tmp_path / "go").touch()
        assert done() == "done"
