from __future__ import annotations

import pytest
import torch

from polypool.infra.compute import cost
from polypool.infra.compute.cost import CostMeter, probe

CPU = torch.device("cpu")


class Clock:
    """A clock set by tests, and probes with given results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, probes: list[float]) -> None:
        self.now, self.probes = 100.0, probes
        monkeypatch.setattr(cost, "seconds", lambda device: self.now)
        monkeypatch.setattr(cost, "probe", self.probe)

    def probe(self, device: torch.device) -> float:
        self.now += 7.0  # the duration of the probe itself must not count
        return self.probes.pop(0)


def test_cost_is_time_over_mean_of_surrounding_probes(monkeypatch):
    clock = Clock(monkeypatch, [0.5, 1.5, 2.5])
    meter = CostMeter(CPU)
    clock.now += 10.0
    assert meter.lap() == pytest.approx(10.0 / 1.0)
    assert meter.seconds == 10.0
    clock.now += 4.0
    assert meter.lap() == pytest.approx(4.0 / 2.0)  # both laps share the second probe
    assert meter.seconds == 4.0


def test_gpu_busy_time_is_measured_by_step_events(monkeypatch):
    clock = Clock(monkeypatch, [0.5] * 3)

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock.now

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    meter = CostMeter(torch.device("cuda"))
    for took, expected in ((2.0, 4.0), (3.0, 6.0)):
        for _ in range(2):
            clock.now += 1.0
            with meter.step():
                clock.now += took
        meter.lap()
        assert (meter.busy, meter.seconds) == (expected, expected + 2.0)


def test_probe_returns_mean_time_per_product(monkeypatch):
    ticks = iter([3.0, 3.0 + 8 * 0.25])
    monkeypatch.setattr(cost, "seconds", lambda device: next(ticks))
    assert probe(CPU) == 0.25
