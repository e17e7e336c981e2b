"""The Triton kernels: their tests, their speed against torch's sort, and all aggregators on a GPU against the CPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.gpu.waiting import waited
from benchmarks.measure import Measurement, Scale, Size, by_turns
from benchmarks.pooling.sorted_sum import torch_sort
from benchmarks.random_data import random_tensors, whole_sets
from polypool.aggregators.random_sets import Inputs, random_inputs
from polypool.aggregators.ranks.sorted_sum import sorted_sum
from polypool.infra.compute.device import best_device
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS

ROOT = Path(__file__).parents[2]
TESTS = ("tests/aggregators/ranks/test_sorted_sum_cuda.py",)
_PATIENCE = 180  # seconds that the tests have


@dataclass(frozen=True, kw_only=True)
class KernelSize(Size):
    """Batches of `batch` sets, of as many elements as each of `elements`; the last is the largest that is counted."""

    tiny: ClassVar = {"batch": 2, "elements": (2, 5), "width": 16, "dim": 8, "rounds": 2}
    batch: int = 128
    elements: tuple[int, ...] = (16, 36, 64)
    width: int = 1024
    dim: int = 32
    rounds: int = 5


def kernel_tests(scale: Scale = "full") -> list[Measurement]:
    """Run the tests of the kernels: on a GPU where there is one, else in Triton's interpreter.

    Raises:
        InputError: all were skipped, as without Triton.
    """
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        count = counted(report.read_text()) if report.exists() else {}
    ran = count.get("tests", 0) - count.get("skipped", 0)
    failed = count.get("failures", 0) + count.get("errors", 0)
    if not ran and not failed and done.returncode in (0, 5):  # 5: no test was there
        raise InputError("all tests of the kernels were skipped; they need Triton")
    if failed or done.returncode:
        raise RuntimeError(f"{failed} tests of the kernels failed: {done.stdout[-3000:]}")
    return [
        Measurement(
            name="kernels: tests that fail",
            measured=f"{', '.join(TESTS)}, on {best_device()}",
            unit="",
            ours=failed,
            reference=ran,
            ratio=failed / ran,
            goal="at most",
            target=0.0,
            percent=True,
        )
    ]


def counted(xml: str) -> dict[str, int]:
    """Return the counts of a report as pytest writes it: tests, skipped, failures, errors."""
    suite = ET.fromstring(xml).find("testsuite")
    names = ("tests", "skipped", "failures", "errors")
    return {} if suite is None else {name: int(suite.get(name, 0)) for name in names}


def kernels(scale: Scale = "full") -> Iterator[Measurement]:
    """Compare with the formula in float64, then measure forward and backward against torch's sort."""
    size, device = KernelSize.of(scale), best_device()
    for elements in size.elements:
        x_BND, mask_BN = (part.to(device) for part in whole_sets(size.batch, elements, size.width))
        (weight_BN,) = random_tensors((size.batch, elements))
        weight_BN = weight_BN.softmax(dim=1).to(device).requires_grad_()
        x_BND.requires_grad_()
        off = error(x_BND, weight_BN, mask_BN)
        sides = by_turns(
            *(
                waited(partial(_gradients, way, x_BND, weight_BN, mask_BN), device)
                for way in (sorted_sum, torch_sort)
            ),
            rounds=size.rounds,
        )
        yield Measurement(
            name=f"sorted sum {elements}, {device.type}",
            measured=f"forward and backward of {size.batch} sets of {elements} x {size.width} float32",
            unit="ms",
            target=1.0,
            note=f"Sums differ from the formula in float64 by {off:.1e} at most. Reference: torch.sort along the last "
            "axis of a copy.",
            **sides.numbers(invert=True),
        )


def error(x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor) -> float:
    """Return by how much sums differ from the formula in float64 at most.

    Raises:
        AssertionError: by more than float32 explains, or the gradient of the weights does.
    """
    own, own_weight = _gradients(sorted_sum, x_BND, weight_BN, mask_BN)
    wide = [part.detach().double().requires_grad_() for part in (x_BND, weight_BN)]
    exact, exact_weight = _gradients(torch_sort, *wide, mask_BN)
    torch.testing.assert_close(own.double(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own_weight.double(), exact_weight, rtol=1e-4, atol=1e-3)
    return float((own.double() - exact).abs().max())


def _gradients(
    way: Callable[..., Tensor], x_BND: Tensor, weight_BN: Tensor, mask_BN: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums and the gradient of the weights; the elements' is made, too."""
    out_BD = way(x_BND, weight_BN, mask_BN)
    _, of_weights = torch.autograd.grad(out_BD.sum(), (x_BND, weight_BN))
    return out_BD.detach(), of_weights


def agreement(scale: Scale = "full") -> list[Measurement]:
    """Compare vectors and gradients of every aggregator with the CPU's, in float32 on sets of different sizes."""
    size, device = KernelSize.of(scale), best_device()
    names, off = [name for name, _ in AGGREGATORS.usable()], {}
    for name in names:
        torch.manual_seed(0)
        module = AGGREGATORS.build(name, size.dim).eval()
        inputs = random_inputs([5, 1, 9, 5, 36], module=module, dim=size.dim)
        expected = pooled(module, inputs, torch.device("cpu"))
        found = pooled(module, inputs, device)
        if not all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in zip(found, expected, strict=True)):
            off[name] = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return [
        Measurement(
            name=f"aggregators on {device.type} that differ from the CPU",
            measured=f"vectors and gradients of sets of 1 to 36 x {size.dim}, by more than a thousandth: "
            + (", ".join(f"{name} ({most:.1e})" for name, most in off.items()) or "none"),
            unit="",
            ours=len(off),
            reference=len(names),
            ratio=len(off) / len(names),
            goal="at most",
            target=0.0,
            percent=True,
        )
    ]


def pooled(module: torch.nn.Module, inputs: Inputs, device: torch.device) -> list[Tensor]:
    """Pool on a device; return the vectors and the gradients of all floats, on the CPU."""
    module = module.to(device)
    inputs = inputs.map(lambda x, mask: (x.to(device), mask.to(device)))
    parts = [part.detach().to(device).requires_grad_() for part in inputs.floats()]
    vectors = inputs.with_floats(*parts).pool(module).vectors
    (vectors * torch.linspace(-1, 1, vectors.shape[-1], device=device)).sum().backward()
    grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
    return [part.detach().cpu() for part in (vectors, *grads)]
