"""The table: what a row says of its target, and how the command ends."""

import math
import os
import re
import signal
import sys
import time
from contextlib import redirect_stdout
from functools import partial

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import run as bench_run
from benchmarks import table
from benchmarks.measure import Measurement
from polypool.infra.errors import InputError


@pytest.fixture(autouse=True)
def threads():
    """What is quick leaves torch one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def row(**changes) -> Measurement:
    base = {"name": "a", "measured": "b", "unit": "ms", "ours": 2.0, "reference": 3.0, "ratio": 1.5}
    return Measurement(**(base | changes))


@pytest.mark.parametrize(
    ("changes", "met", "target", "ratio"),
    [
        ({"target": 1.5}, "met", ">= 1.50x", "1.50x"),
        ({"target": 1.6}, "MISSED", ">= 1.60x", "1.50x"),
        ({"target": 1.6, "goal": "at most", "spread": (1.0, 2.0)}, "met", "<= 1.60x", "1.50x (1.00-2.00)"),
        ({"target": 0.05, "goal": "at most", "ratio": 0.06, "percent": True}, "MISSED", "<= 5.0%", "6.0%"),
        ({"target": 1.0, "goal": "at most", "ratio": math.nan}, "MISSED", "<= 1.00x", "nanx"),
        ({}, "-", "-", "1.50x"),
    ],
)
def test_a_row_knows_whether_its_target_is_met(changes, met, target, ratio):
    assert row(**changes).entries() == ("a", "2.0 ms", "3.0 ms", ratio, target, met)


@pytest.mark.parametrize(
    ("ratio", "goal", "met"),
    [
        (4.0, "at least", "met"),
        (2.1, "at least", "within 2x"),
        (1.9, "at least", "MISSED"),
        (4.0, "at most", "met"),
        (7.9, "at most", "within 2x"),
        (8.1, "at most", "MISSED"),
    ],
)
def test_a_target_may_be_eased(ratio, goal, met):
    found = row(ratio=ratio, goal=goal, target=4.0)
    assert found.entries(2.0)[-1] == met
    assert found.misses(2.0) is (met == "MISSED")


def test_one_number_a_side_is_ours_over_the_reference_and_better_when_small():
    found = Measurement.of_two(2.0, 4.0, name="a", measured="b", unit="MB", target=0.5)
    assert (found.ours, found.reference, found.ratio, found.spread) == (2.0, 4.0, 0.5, None)
    assert not found.misses()
    assert Measurement.of_two(4.0, 2.0, name="a", measured="b", unit="MB", target=0.5).misses()


def run_main(monkeypatch, *words: str) -> int:
    """Return the exit code."""
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    try:
        bench.main()
    except SystemExit as end:
        return end.code
    return 0


def refuse(scale):
    raise InputError("this machine has no /proc")


def break_down(scale):
    raise ZeroDivisionError("no rounds")


def test_a_missed_target_ends_with_one_and_the_last_lines_say_which(monkeypatch, capsys):
    slow = row(name="slow", target=9.0, note="word " * 60)
    made_up = {"slow": lambda scale: [slow, row(name="plain", target=1.5)], "odd": refuse}
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch) == 1
    out, err = capsys.readouterr()
    assert "cores" in out.splitlines()[0]
    assert any(line.startswith("slow ") and line.endswith("MISSED") for line in out.splitlines())
    assert "odd: not measured: this machine has no /proc" in out
    assert max(map(len, out.splitlines())) <= 110
    assert err.splitlines()[-2:] == ["missed:", "slow: 1.50x, wanted >= 9.00x"]


def test_without_a_missed_target_it_ends_with_none(monkeypatch, capsys):
    made_up = {"good": lambda scale: [row(target=1.5)], "odd": refuse}
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch) == 0
    assert "missed" not in capsys.readouterr().err


def test_quick_ends_with_one_only_where_a_target_is_missed_by_more_than_twice(monkeypatch, capsys):
    near, off = row(name="near", target=2.9), row(name="off", target=3.1)
    monkeypatch.setattr(table, "QUICK", ("near",))
    monkeypatch.setattr(table, "BENCHMARKS", {"near": lambda scale: [near], "off": lambda scale: [off]})
    assert run_main(monkeypatch, "--quick") == 0
    assert run_main(monkeypatch, "--only", "near") == 1
    capsys.readouterr()
    assert run_main(monkeypatch, "--quick", "--only", "near", "off") == 1
    out, err = capsys.readouterr()
    assert next(line for line in out.splitlines() if line.startswith("near ")).endswith("within 2x")
    assert "near: 2.0 ms against 3.0 ms, 1.50x, target >= 2.90x: within 2x" in out.splitlines()
    assert err.splitlines()[-2:] == ["missed:", "off: 1.50x, wanted >= 1.55x"]


def test_a_benchmark_that_fails_keeps_no_other_from_being_measured(monkeypatch, capsys):
    made_up = {"broken": break_down, "good": lambda scale: [row(name="good", target=1.0)]}
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch) == 1
    out, err = capsys.readouterr()
    assert any(line.startswith("good ") and line.endswith("met") for line in out.splitlines())
    assert err.splitlines()[-1] == "broken: failed: ZeroDivisionError('no rounds')"
    assert "break_down" in err, "the traceback says where"


def test_markdown_has_a_line_for_each_row_that_is_no_detail(monkeypatch, capsys):
    made_up = {
        "costs": lambda scale: [row(name="cost of gpo", detail=True)],
        "one": lambda scale: [row(name="one", target=1.0), row(name="two", spread=(1.0, 2.0))],
    }
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch, "--markdown") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")] == [
        "| row | what | ours | reference | ratio | target |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| one | b | 2.0 ms | 3.0 ms | 1.50x | >= 1.00x |",
        "| two | b | 2.0 ms | 3.0 ms | 1.50x (1.00-2.00) | - |",
    ]


def test_only_the_named_benchmarks_run(monkeypatch, capsys):
    def measured(scale, name):
        return [row(name=f"{name} {scale}", note=f"by {torch.get_num_threads()}")]

    made_up = {name: partial(measured, name=name) for name in ("one", "two", "three")}
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch, "--quick", "--only", "three", "one", "three") == 0
    out = capsys.readouterr().out
    assert [*dict.fromkeys(re.findall(r"\w+ quick", out))] == ["three quick", "one quick"]
    assert out.count("by 1") == 2, "one thread"


def test_an_unknown_benchmark_ends_with_a_suggestion(monkeypatch, capsys):
    assert run_main(monkeypatch, "--only", "worker") == 2
    assert "Did you mean 'workers'?" in capsys.readouterr().err


def test_what_is_quick_is_a_benchmark():
    assert set(table.QUICK) <= set(table.BENCHMARKS)


def test_help_names_every_benchmark(monkeypatch, capsys):
    assert run_main(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in table.BENCHMARKS)


def test_rows_are_in_a_file_as_soon_as_they_are_measured(monkeypatch, tmp_path):
    path, seen = tmp_path / "out", []

    def two(scale):
        yield row(name="one")
        seen.append(path.read_text().splitlines()[-1])
        yield row(name="two", target=1.0)
        seen.append(path.read_text().splitlines()[-1])

    monkeypatch.setattr(table, "BENCHMARKS", {"two": two})
    with path.open("w") as file, redirect_stdout(file):
        assert run_main(monkeypatch) == 0
    assert seen == [
        "one: 2.0 ms against 3.0 ms, 1.50x",
        "two: 2.0 ms against 3.0 ms, 1.50x, target >= 1.00x: met",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_shows_what_was_measured(number, monkeypatch, capfd):
    def stopped(scale):
        yield row(name="slow", target=9.0)
        os.kill(os.getpid(), number)
        time.sleep(60)
        yield row(name="never")

    monkeypatch.setattr(table, "BENCHMARKS", {"stopped": stopped, "later": lambda scale: [row(name="later")]})
    assert run_main(monkeypatch) == 128 + number
    out, err = capfd.readouterr()
    assert any(line.startswith("slow ") and line.endswith("MISSED") for line in out.splitlines())
    assert "missed:\nslow: 1.50x, wanted >= 9.00x" in err
    assert "stopped by" in err
    assert not {"never", "later"} & set((out + err).split())


def test_what_is_quick_begins_nothing_when_its_time_is_over(monkeypatch, capsys):
    monkeypatch.setattr(table, "BENCHMARKS", {"one": lambda scale: [row(name="one")]})
    monkeypatch.setitem(bench_run.LAST_START, "quick", -1.0)
    assert run_main(monkeypatch, "--quick", "--only", "one") == 0
    assert "one: not measured: the time was over" in capsys.readouterr().out
    assert run_main(monkeypatch, "--only", "one") == 0
    assert "not measured" not in capsys.readouterr().out


def test_a_clean_up_that_fails_after_a_signal_stops_all_the_same(monkeypatch, capfd):
    def stopped(scale):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            raise OSError("no such folder")

    monkeypatch.setattr(table, "BENCHMARKS", {"stopped": stopped, "later": lambda scale: [row(name="later")]})
    assert run_main(monkeypatch) == 128 + signal.SIGTERM
    assert "later:" not in capfd.readouterr().out
