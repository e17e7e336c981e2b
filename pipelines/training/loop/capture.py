"""Training steps as CUDA graphs: the host launches one graph per step instead of several hundred kernels."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partialmethod
from typing import Any

import torch
from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import world
from polypool.tasks.run import Optim

EAGER = 2
"""Eager steps of a kind before its capture, in which optimisers and libraries allocate their buffers."""

Step = Callable[[Batch, Any], dict[str, Tensor]]
"""`step(batch, epoch)` updates the weights and returns scalars."""
Record = Callable[[Callable[[], dict[str, Tensor]]], tuple[Callable[[], None], dict[str, Tensor]]]
"""Captures a function without running it; returns a function that replays it, and the scalars that a replay sets."""


class Epoch:
    """The number of epochs trained so far, during a capture; supports only ordering comparisons, and records them.

    The graph is valid for epochs with the same results.
    """

    def __init__(self, value: float) -> None:
        self.value, self.compared = value, []

    def holds(self, epoch: float) -> bool:
        """Return whether the comparisons have the same results for another epoch."""
        return all(compare(epoch, other) == result for compare, other, result in self.compared)

    def _compare(self, compare: Callable[[float, float], bool], other: float) -> bool:
        result = compare(self.value, other)
        self.compared.append((compare, other, result))
        return result

    __lt__ = partialmethod(_compare, operator.lt)
    __le__ = partialmethod(_compare, operator.le)
    __gt__ = partialmethod(_compare, operator.gt)
    __ge__ = partialmethod(_compare, operator.ge)


class CapturedSteps:
    """Runs training steps and replays a graph from the third step of each kind on.

    Steps of one kind have the same `variant` and the same shapes and dtypes of the batch. A kind has a graph for each
    combination of results of comparisons with the epoch. If a capture fails, a note says why, and no further graphs are
    captured.

    A graph repeats operations and no Python code. Values that change between steps, such as learning rates and the
    seeds of random numbers, must be tensors.

    Args:
        step: the function to capture.
        record: captures a function.
    """

    def __init__(self, step: Step, record: Record) -> None:
        self._step, self._record = step, record
        self._eager: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, list[tuple[Epoch, Batch, Callable[[], None], dict[str, Tensor]]]] = {}
        self.off = False

    def __call__(self, batch: Batch, epoch: float, variant: Hashable = ()) -> dict[str, Tensor]:
        """Run a step and return its scalars, which the next step may overwrite."""
        kind = variant, *((name, x.shape, x.dtype) for name, x in batch.items())
        for captured, inputs, replay, terms in self._graphs.get(kind, ()):
            if captured.holds(epoch):
                torch._foreach_copy_([*inputs.values()], [batch[name] for name in inputs])
                replay()
                return terms
        if self.off or self._eager[kind] < EAGER:
            self._eager[kind] += 1
            return self._step(batch, epoch)
        captured, inputs = Epoch(epoch), {name: x.clone() for name, x in batch.items()}
        try:
            replay, terms = self._record(lambda: self._step(inputs, captured))
        except Exception as error:  # a foreign part may raise any error
            self.off = True
            reason = str(error).partition("\n")[0]
            sys.stderr.write(f"note: steps are not captured as CUDA graphs (--optim.capture): {reason}\n")
            return self._step(batch, epoch)
        self._graphs.setdefault(kind, []).append((captured, inputs, replay, terms))
        replay()
        return terms


class Recorder:
    """Captures CUDA graphs on the current stream; they share a memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(
        self, function: Callable[[], dict[str, Tensor]]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        graph = torch.cuda.CUDAGraph()
        # thread_local: a global capture would fail where the threads of the loader allocate memory
        stream, mode = torch.cuda.current_stream(), "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode):
            terms = function()
        return graph.replay, terms


def why_not(optim: Optim, optimizer: torch.optim.Optimizer, device: torch.device) -> str:
    """Return the reason why the steps of a run are not captured; empty if they are."""
    if device.type != "cuda":
        return f"the device is {device.type}"
    reasons = {
        "--optim.capture is off": optim.capture == "off",
        "several workers train": world() > 1,
        "--optim.chunk splits a step": optim.chunk > 0,
        "--optim.recompute keeps states of random generators on the host": optim.recompute,
        f"{type(optimizer).__name__} reads its learning rate on the host": not getattr(
            optimizer, "capturable", False
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def put_rates(optimizer: torch.optim.Optimizer, device: torch.device, *, captured: bool) -> None:
    """Make the learning rates tensors on the device if steps are captured, else numbers."""
    for group in optimizer.param_groups:
        lr = float(group["lr"])
        group["lr"] = torch.full((), lr, device=device) if captured else lr
        if "capturable" in group:
            group["capturable"] = captured
