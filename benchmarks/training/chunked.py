"""Cost and memory of a batch in chunks, against the same batch in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.measure import Measurement, Scale, Size, apart, by_turns, memory, seconds
from polypool.infra.batches import Batch
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.registry import ENCODERS
from polypool.tasks.models.grad_cache import cached_passes
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import Data, Run


@dataclass(frozen=True, kw_only=True)
class ChunkSize(Size):
    """A batch of sets and captions, how many of them pass at once, and the widths."""

    tiny: ClassVar = {"batch": 8, "chunk": 3, "regions": 4, "dim": 8, "words": 20, "width": 8, "rounds": 1}
    batch: int = 512
    chunk: int = 64
    regions: int = 36
    dim: int = 512
    words: int = 1_000
    length: int = 12
    width: int = 256


def chunked(scale: Scale = "full") -> list[Measurement]:
    """Measure a training step's memory and time in chunks and whole, each in a process of its own."""
    size = ChunkSize.of(scale)
    found: dict[int, list[tuple[float, float]]] = {}

    def side(chunk: int) -> Callable[[int], float]:
        def measured(_: int) -> float:
            ((megabytes, taken),) = apart(_step, [(size, chunk)])
            found.setdefault(chunk, []).append((megabytes, taken))
            return taken

        return measured

    times = by_turns(side(size.chunk), side(size.batch), rounds=size.rounds)
    ours, reference = (float(np.median([mb for mb, _ in found[chunk]])) for chunk in (size.chunk, size.batch))
    what = (
        f"forward and backward of {size.batch:,} sets of {size.regions} x {size.dim} and captions of {size.length} "
        f"words, width {size.width}, {size.chunk} at once; reference: all at once"
    )
    return [
        Measurement.of_two(
            ours,
            reference,
            name="step in chunks: memory",
            measured=f"peak memory beyond weights and batch, {what}",
            unit="MB",
            target=0.5,
            note="Both have the gradients of all weights, and the scores of the whole batch.",
        ),
        Measurement(
            name="step in chunks: time",
            measured=f"one core's time, {what}",
            unit="s",
            goal="at most",
            note="Every sample is encoded once more, and few samples at once cost more each.",
            **times.numbers(),
        ),
    ]


def _step(size: ChunkSize, chunk: int) -> tuple[float, float]:
    """Return the megabytes by which a step's peak exceeds weights and batch, and the seconds of a second one."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as in training
    model, batch = model_of(size), batch_of(size)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        backward(model, batch, chunk=chunk)

    before = memory()["VmRSS"]
    step()
    peak = memory()["VmHWM"] - before
    return max(peak, 1e-6), seconds(step)


def backward(model: RetrievalModel, batch: Batch, *, chunk: int) -> None:
    """Add the gradient of a batch, in chunks where they are smaller than it."""
    if chunk >= len(batch["visual"]):
        model(batch, epoch=1.0)["loss"].backward()
        return
    for each in cached_passes(model, batch, epoch=1.0, chunk=chunk):
        each.loss.backward()


def model_of(size: ChunkSize) -> RetrievalModel:
    """Return a model of random weights, in training."""
    torch.manual_seed(0)
    run = Run(
        data=Data(dataset="random", corpus=""),
        visual=f"grid(width={size.width})",
        text=f"bigru(width={size.width})",
        aggregator="gpo",
        objective="infonce",
        protocol="whole",
    )
    assets: dict[str, dict[str, Any]] = {
        "visual": {"dim": size.dim},
        "text": {"words": [f"w{number}" for number in range(size.words)]},
    }
    parts = Parts(
        run,
        visual=lambda: ENCODERS.build(run.visual, assets["visual"]),
        text=lambda: ENCODERS.build(run.text, assets["text"]),
    )
    return retrieval_model(run, parts).train()


def batch_of(size: ChunkSize) -> Batch:
    """Return random sets and captions without pads."""
    generator = torch.Generator().manual_seed(0)
    return {
        "visual": torch.randn(size.batch, size.regions, size.dim, generator=generator),
        "visual_mask": torch.ones(size.batch, size.regions, dtype=torch.bool),
        "text": torch.randint(4, size.words, (size.batch, size.length), generator=generator),
        "text_mask": torch.ones(size.batch, size.length, dtype=torch.bool),
        "item": torch.arange(size.batch),
        "row": torch.arange(size.batch),
    }
