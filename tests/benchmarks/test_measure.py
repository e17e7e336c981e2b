"""Measurement of sides, processes and memory."""

import os

import pytest
import torch

from benchmarks import measure
from benchmarks.scoring.ranks import RankSize
from polypool.infra.errors import InputError


def test_the_ratio_is_the_median_over_rounds_and_the_sides_take_turns():
    order = []

    def side(name, times):
        return lambda number: order.append(name) or times[number]

    sides = measure.by_turns(side("ours", [2.0, 4.0, 5.0]), side("theirs", [8.0, 4.0, 10.0]), rounds=3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert sides.numbers(invert=True) == {"ours": 4, "reference": 8, "ratio": 2, "spread": (1, 4)}
    assert sides.numbers()["ratio"] == 0.5


@pytest.fixture
def threads():
    """Let a test choose the number of torch's threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_one_thread_is_timed_by_its_processor_and_several_by_the_clock(monkeypatch, threads):
    ticks = {"process_time": 0.0, "perf_counter": 0.0}
    for clock in ticks:
        monkeypatch.setattr(measure.time, clock, lambda clock=clock: ticks[clock])

    def work():
        ticks["process_time"] += 2
        ticks["perf_counter"] += 10

    threads(1)
    assert measure.seconds(work) == 2
    threads(2)
    assert measure.seconds(work) == 10
    assert (measure.processor_seconds(work), measure.elapsed(work)) == (2, 10)


def test_every_call_has_a_process_of_its_own():
    processes = measure.apart(os.getpid, [()] * 3)
    assert len({*processes, os.getpid()}) == 4


def hold(size):
    return (torch.ones(size),)


def copy_and_drop(x):
    x.clone().add_(1)


def test_peak_memory_counts_what_is_dropped_again_and_not_what_was_there():
    (peak,) = measure.apart(measure.growth, [(hold, copy_and_drop, 8_000_000)])
    assert 32 <= peak < 60


def test_without_proc_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "status")
    with pytest.raises(InputError, match="Linux"):
        measure.memory()


def test_a_tiny_size_differs_in_what_it_names():
    full, tiny = (RankSize.of(scale) for scale in ("full", "tiny"))
    assert (full.images, tiny.images) == (5000, 60)
    assert full.limit_MB == tiny.limit_MB
    assert tiny.captions == 300


@pytest.mark.parametrize(
    ("ours", "reference", "unit", "shown"),
    [
        (0, 13, "", ("0", "13")),
        (5, 1300, "", ("5", "1,300")),
        (0.05, 1.0, "", ("0.05", "1.0")),
        (1.84, 250.3, "ms", ("1.8 ms", "250 ms")),
    ],
)
def test_counts_are_shown_whole_and_times_with_two_digits(ours, reference, unit, shown):
    row = measure.Measurement(name="", measured="", unit=unit, ours=ours, reference=reference, ratio=1.0)
    assert row.entries()[1:3] == shown
