"""The paths of a GPU, at a tiny size on a CPU, and what catches a wrong result."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import exchange, kernels, paths, steps
from benchmarks.measure import Measurement
from polypool.aggregators.averages.mean import Mean
from polypool.infra.errors import InputError

OWN = ("kernels", "agreement", "precisions", "copies", "memory_cap", "exchange")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "exchange" else name for name in OWN]
)
def test_every_path_gives_sane_numbers(name):
    rows: list[Measurement] = list(paths.PATHS[name]("tiny"))
    assert rows
    for row in rows:
        assert math.isfinite(row.ratio), row
        assert row.reference > 0, row
        assert not (row.target == 0 and row.misses()), row


def test_without_a_gpu_it_ends_with_two_and_a_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no GPU" in line


@pytest.mark.parametrize("part", [0, 1])
def test_wrong_sums_or_gradients_are_caught(part, monkeypatch):
    size = kernels.KernelSize.of("tiny")
    x_BND, mask_BN = kernels.whole_sets(size.batch, 5, size.width)
    inputs = (x_BND.requires_grad_(), torch.rand(size.batch, 5, requires_grad=True), mask_BN)
    assert kernels.error(*inputs) < 1e-4

    def off(x, weight, mask):
        true = kernels.torch_sort(x, weight, mask)
        return true + 0.01 if part == 0 else true + (weight - weight.detach()).sum()

    monkeypatch.setattr(kernels, "sorted_sum", off)
    with pytest.raises(AssertionError):
        kernels.error(*inputs)


def test_an_aggregator_that_differs_is_named(monkeypatch):
    pooled, calls = kernels.pooled, []

    def second_is_off(*arguments):
        calls.append(arguments)
        return [part + 0.1 * (len(calls) % 2 == 0) for part in pooled(*arguments)]

    monkeypatch.setattr(kernels.AGGREGATORS, "usable", lambda: [("mean", Mean)])
    monkeypatch.setattr(kernels, "pooled", second_is_off)
    (row,) = kernels.agreement("tiny")
    assert (row.ours, row.reference) == (1, 1)
    assert "mean (1.0e-01)" in row.measured
    assert row.misses()


def test_a_loss_that_is_off_in_half_precision_is_caught(monkeypatch):
    losses = iter([1.0, 1.01, 1.2])
    monkeypatch.setattr(steps, "first_loss", lambda work: next(losses))
    with pytest.raises(AssertionError, match=r"bfloat16: a loss of 1\.2, not 1\.0"):
        list(steps.precisions("tiny"))


def test_batches_that_arrive_changed_are_caught(monkeypatch):
    load = steps.load

    def late(data, order, samples, device):
        for size, batch in load(data, order, samples, device):
            yield size, {**batch, "visual": batch["visual"] + 1}

    monkeypatch.setattr(steps, "load", late)
    with pytest.raises(AssertionError):
        steps.copies("tiny")


def test_reports_of_tests_are_counted(monkeypatch):
    found = '<testsuites><testsuite errors="1" failures="2" skipped="3" tests="9"></testsuite></testsuites>'
    assert kernels.counted(found) == {"tests": 9, "skipped": 3, "failures": 2, "errors": 1}
    assert kernels.counted("<testsuites></testsuites>") == {}


@pytest.mark.slow
def test_tests_of_the_kernels_pass_or_need_triton():
    if find_spec("triton") is None:
        with pytest.raises(InputError, match="need Triton"):
            kernels.kernel_tests("tiny")
        return
    (row,) = kernels.kernel_tests("tiny")
    assert row.reference > 5


@pytest.mark.slow
def test_gradients_that_are_not_averaged_are_caught(monkeypatch, tmp_path):
    monkeypatch.setattr(
        exchange, "average_gradients", lambda parameters: [p.grad.mul_(2) for p in parameters]
    )
    size = exchange.ExchangeSize.of("tiny")
    with pytest.raises(AssertionError):
        exchange.worker(size, 0, 1, "gloo", str(tmp_path / "meet"))
