"""Progress on a terminal, in a log, as JSON, and disabled; messages about waiting."""

from __future__ import annotations

import io
import json
import re
import sys
import time

import pytest

from polypool.infra.process import progress
from polypool.infra.process.output import LOG
from polypool.infra.process.progress import Progress, say, waiting


@pytest.fixture
def clock(monkeypatch):
    """A manual clock that starts at 0."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_log_shows_rate_and_time_left_at_intervals(capsys, clock):
    bar = Progress(desc="demo", total=140, unit="step", delay=0.0, resumes=True)
    bar.update(40)  # a resumed run: earlier steps do not count in the rate
    for clock[0], n in ((4.0, 1), (10.0, 19), (12.0, 1), (200.0, 1), (209.0, 1), (211.0, 77)):
        bar.update(n)
    bar.set_description("demo epoch 2")
    bar.close()
    first, second, third, last = capsys.readouterr().err.splitlines()
    assert first == "████████▌            60/140  2.00 step/s, 00:40 left  demo"
    assert second.startswith("████████▊            62/140  0.11 step/s")
    assert third.split()[1] == "140/140", "after 200 seconds, lines must be 10 seconds apart"
    assert last.endswith("140/140  0.47 step/s, 00:00 left  demo epoch 2")


def test_progress_under_two_seconds_is_not_shown(capsys, clock):
    assert [*Progress(range(3), desc="rows")] == [0, 1, 2]
    assert capsys.readouterr().err == ""
    bar = Progress(desc="rows", unit="row")
    clock[0] = 3.0
    bar.update(30)
    bar.close()
    assert capsys.readouterr().err == "30 10.00 row/s  rows\n"
    with Progress(desc="training", total=2, delay=0.0) as short:
        short.update(2)
    assert "2/2" in capsys.readouterr().err


def test_json_format_prints_json_lines(capsys, clock, monkeypatch):
    monkeypatch.setenv(LOG, "json")
    bar = Progress(desc="rows", total=40, unit="row")
    clock[0] = 10.0
    bar.update(10)
    clock[0] = 20.0
    bar.update(10)
    bar.close()
    first, last = map(json.loads, capsys.readouterr().err.splitlines())
    expected = {"event": "progress", "what": "rows", "total": 40, "unit": "row", "rate": 1.0}
    assert first == expected | {"done": 10, "seconds_left": 30.0}
    assert last == expected | {"done": 20, "seconds_left": 20.0}


@pytest.mark.parametrize("way", ["quiet", "disabled"])
def test_quiet_or_disabled_progress_prints_nothing(capsys, clock, monkeypatch, way):
    if way == "quiet":
        monkeypatch.setenv(LOG, "quiet")
    bar = Progress(desc="rows", total=40, disable=way == "disabled")
    clock[0] = 10.0
    bar.update(10)
    bar.close()
    if way == "quiet":
        say("waiting for it", what="it")
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_bar_uses_same_format_as_log(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress(desc="rows", total=4, unit="row", delay=0.0) as bar:
        bar.update(4)
        bar.set_description("all rows")
    last = terminal.getvalue().split("\r")[-1]
    assert "4/4" in last
    assert last.rstrip().endswith("left  all rows")
    assert "row/s" in last


def test_terminal_rate_excludes_resumed_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress(desc="rows", total=2000, unit="row", delay=0.0, resumes=True) as bar:
        bar.update(1000)
        time.sleep(0.2)
        bar.update(1)
    done, rate = re.search(r"(\d+)/2000 +([\d.]+) row/s", terminal.getvalue().split("\r")[-1]).groups()
    assert (done, float(rate) < 10) == ("1001", True)


def test_only_long_waits_are_reported(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_REPEAT_SECONDS", 0.05)
    with waiting("nothing long", after=5.0):
        pass
    assert capsys.readouterr().err == ""
    with waiting("a\x1bserver", after=0.01):
        time.sleep(0.3)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "waiting for a\\x1bserver"
    assert second.startswith(first)
    monkeypatch.setenv(LOG, "json")
    say("waiting for it", what="it", seconds=3.14159)
    assert json.loads(capsys.readouterr().err) == {"event": "waiting", "what": "it", "seconds": 3.1}
