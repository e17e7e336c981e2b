"""Precision of a run's steps: the choice of `auto`, kept when another machine resumes the run."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from toy import FolderReport, Toy, toy_run, trainer_of

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.compute import measured
from polypool.pipelines.training.loop import precision
from polypool.pipelines.training.loop.precision import FASTER, precision_of
from polypool.pipelines.training.record import PRECISION

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Wide(Aggregator):
    """An aggregator whose linear layer is wider than the encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 64)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        return Pooled(self.map(x_BND).mean(dim=1))


@pytest.fixture
def machine(monkeypatch):
    """Simulate products that are `faster` times as fast in bfloat16; return the timed shapes."""

    def of(faster: float, *, computes: bool = True) -> list[tuple[int, int, int]]:
        timed = []
        monkeypatch.setattr(precision, "computes_bfloat16", lambda device: computes)
        monkeypatch.setattr(precision, "times_faster", lambda *shape: timed.append(shape) or faster)
        return timed

    return of


def test_auto_selects_bfloat16_only_if_fast_enough(machine):
    model = nn.Sequential(nn.Linear(6, 4), nn.ModuleList([nn.Linear(5, 8), Wide()]))
    assert machine(FASTER + 0.01) == []
    assert precision_of("auto", model, CPU, samples=32) == "bfloat16"
    timed = machine(FASTER - 0.01)
    assert precision_of("auto", model, CPU, samples=32) == "float32"
    assert timed == [(32, 5, 8)], "the widest layer outside aggregators must be timed"
    assert precision_of("auto", nn.Sequential(nn.Conv1d(3, 3, 1), Wide()), CPU, samples=32) == "float32"


def test_explicit_precision_and_gpus_need_no_timing(machine):
    timed = machine(0.5)
    model = nn.Linear(6, 4)
    assert precision_of("bfloat16", model, CPU, samples=8) == "bfloat16"
    assert precision_of("auto", model, GPU, samples=8) == "bfloat16"
    machine(9.0, computes=False)
    assert {precision_of("auto", model, device, samples=8) for device in (CPU, GPU)} == {"float32"}
    machine(9.0)
    assert precision_of("float32", model, GPU, samples=8) == "float32"
    assert not timed


def test_timing_is_cached_by_shape_threads_and_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clock = accumulate(cycle((0, 4, 0, 2)))  # each product takes 4 s in float32 and 2 s in bfloat16
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=partial(next, clock)))
    state, found = torch.get_rng_state(), precision.times_faster(8, 16, 4)
    assert found == 2
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(precision, "_measure", lambda *shape: -1.0)
    assert precision.times_faster(8, 16, 4) == found
    assert precision.times_faster(8, 16, 5) == -1.0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert precision.times_faster(8, 16, 4) == -1.0
    monkeypatch.setattr(measured.platform, "machine", lambda: "another")
    assert precision.times_faster(8, 16, 5) == -1.0
    assert len([*tmp_path.rglob("*.json")]) == 3


class Noting(Toy):
    """The toy task, recording the precision of each loss."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float) -> dict[str, Tensor]:
        self.seen.add(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        return super().loss(model, batch, epoch=epoch)


def test_cpu_attention_is_computed_in_float32_under_bfloat16(tmp_path):
    query_BHND = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.scaled_dot_product_attention(query_BHND, query_BHND, query_BHND)
    with trainer_of(toy_run(optim={"precision": "bfloat16"}), tmp_path).precision:
        found = nn.functional.scaled_dot_product_attention(query_BHND, query_BHND, query_BHND)
    assert torch.equal(found, expected.bfloat16())


def noted(run, folder: Path, report: FolderReport | None = None):
    adapter = Noting(run)
    adapter.seen = set()
    return trainer_of(run, folder, report, adapter=adapter)


def test_resumed_run_keeps_precision_on_another_machine(machine, tmp_path):
    run, report = toy_run(optim={"epochs": 2}), FolderReport(fail_after=1)
    machine(2.0)
    begun = noted(run, tmp_path, report)
    with pytest.raises(KeyboardInterrupt):
        begun.train()
    assert begun.adapter.seen == {torch.bfloat16}
    assert begun.log.tagged[PRECISION] == "bfloat16"
    machine(0.5)
    resumed = noted(run, tmp_path)
    assert resumed.progress.precision == "float32"
    resumed.resume(report.last)
    resumed.train()
    assert resumed.adapter.seen == {torch.bfloat16}
