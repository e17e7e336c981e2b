"""Precision of training steps: the meaning of `--optim.precision auto` on a device.

On a CPU the choice depends on the time of a product as wide as the model's, measured once per machine, instead of on
the run's steps: all aggregators compared on one machine use the same precision, and so do repeated runs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from polypool.aggregators.aggregator import Aggregator
from polypool.infra.compute.attention import attend_in_float32
from polypool.infra.compute.device import computes_bfloat16
from polypool.infra.compute.measured import cached_number, processor

Precision = Literal["float32", "bfloat16"]

FASTER = 1.25
"""Minimum speed-up of a bfloat16 product on a CPU. All other operations of a step are in float32."""
_ROUNDS = 7


def precision_of(asked: str, model: nn.Module, device: torch.device, *, samples: int) -> Precision:
    """Return the precision of a run's losses.

    Args:
        asked: a precision, or `auto`: bfloat16 on a GPU that supports it in hardware, and on such a CPU if it is
            faster.
        model: its widest linear map outside the aggregators is timed on a CPU.
        device: of the training.
        samples: of a step on this worker.
    """
    if asked == "float32" or asked == "bfloat16":
        return asked
    if not computes_bfloat16(device):
        return "float32"
    if device.type != "cpu":
        return "bfloat16"
    shapes = [(layer.in_features, layer.out_features) for layer in _linear(model)]
    if not shapes:
        return "float32"
    inputs, outputs = max(shapes, key=lambda shape: (shape[0] * shape[1], shape))
    return "bfloat16" if times_faster(samples, inputs, outputs) >= FASTER else "float32"


def autocast(device: torch.device, precision: Precision | None) -> torch.autocast:
    """Return the context in which losses are computed; on a CPU, attention in it is in float32."""
    if device.type == "cpu" and precision == "bfloat16":
        attend_in_float32()
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def _linear(model: nn.Module) -> Iterator[nn.Linear]:
    if isinstance(model, nn.Linear):
        yield model
    for child in model.children():
        if not isinstance(child, Aggregator):
            yield from _linear(child)


def times_faster(rows: int, inputs: int, outputs: int) -> float:
    """Return the speed-up of bfloat16 over float32 for a linear map and its weight gradient on this CPU.

    Measured once per shape, processor, torch version and number of threads.
    """
    threads = torch.get_num_threads()
    named = "\0".join([*processor(), torch.__version__, str(threads)])
    digest = hashlib.sha256(named.encode()).hexdigest()[:24]
    what = f"times faster in bfloat16, {rows} x {inputs} to {outputs}"
    return cached_number(f"bfloat16_{digest}", what, lambda: _measure(rows, inputs, outputs))


def _measure(rows: int, inputs: int, outputs: int) -> float:
    """Return the ratio of the shortest times of a few rounds; draws no random numbers."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with torch.enable_grad():
        x_RI = torch.linspace(-1, 1, rows * inputs).reshape(rows, inputs)
        weight_OI = torch.linspace(-1, 1, outputs * inputs).reshape(outputs, inputs).requires_grad_()
        for _ in range(_ROUNDS):
            for enabled, taken in seconds.items():
                started = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    y_RO = nn.functional.linear(x_RI, weight_OI)
                torch.autograd.grad(y_RO.float().sum(), weight_OI)
                taken.append(time.perf_counter() - started)
    return min(seconds[False]) / min(seconds[True])
