"""Training on a GPU: steps in float32, TF32 and bfloat16, copies from pinned memory, and a batch under a memory cap."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.waiting import peak, waited
from benchmarks.measure import Measurement, Scale, by_turns
from benchmarks.training.authors import AuthorsStep
from benchmarks.training.chunked import ChunkSize, backward, batch_of, model_of
from benchmarks.training.paper import past_warm_up
from benchmarks.training.watched import TrainingSize, random_run
from polypool.infra.batches import Batch, Order, load
from polypool.infra.compute.device import best_device, on_device
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.trainer import Trainer

TOLERANCE = {"TF32": 0.02, "bfloat16": 0.1}
"""Part of the loss by which a step's may differ from that in float32."""


@dataclass(frozen=True, kw_only=True)
class StepSize(TrainingSize):
    """36 x 2048 regions, a BiGRU of 1,024 and 300, batches of 128."""

    rounds: int = 7


def precisions(scale: Scale = "full") -> Iterator[Measurement]:
    """Compare the first loss of a step with that in float32, then measure steps, and the authors' way."""
    size, device = StepSize.of(scale), best_device()
    with tempfile.TemporaryDirectory() as name:
        run = random_run(Path(name), size)
        plain, half = (
            past_warm_up(derive(run, optim={"precision": precision}), device)
            for precision in ("float32", "bfloat16")
        )
        batch = on_device(plain.data.batch(next(iter(plain.order.batches(0))), seed=0, epoch=1), device)
    authors = AuthorsStep(plain.model, run.optim)
    wide = {**batch, "visual": batch["visual"].float()}
    expected = first_loss(partial(past_loss, plain, batch))

    def tf32() -> dict[str, Tensor]:
        with _tf32():
            return plain.train_step(batch)

    with _tf32():
        in_tf32 = first_loss(partial(past_loss, plain, batch))
    for which, loss in (("TF32", in_tf32), ("bfloat16", first_loss(partial(past_loss, half, batch)))):
        assert abs(loss - expected) <= TOLERANCE[which] * abs(expected), (
            f"{which}: a loss of {loss}, not {expected}"
        )
    ours = waited(lambda: plain.train_step(batch), device)
    measured = (
        f"forward to optimiser, {size.batch} sets of up to {size.regions} x {size.dim} regions, on {device}"
    )
    for name, side, reference, note in (
        ("step in float32 / the authors' way", ours, lambda: authors(wide), "VSE-infinity's arithmetic."),
        ("step in TF32 / float32", waited(tf32, device), None, "The same step in float32."),
        (
            "step in bfloat16 / float32",
            waited(lambda: half.train_step(batch), device),
            None,
            "The same in float32.",
        ),
    ):
        other = ours if reference is None else waited(reference, device)
        yield Measurement(
            name=name,
            measured=measured,
            unit="ms",
            note=f"Reference: {note}",
            **by_turns(side, other, rounds=size.rounds).numbers(invert=True),
        )


def past_loss(trainer: Trainer, batch: Batch) -> Tensor:
    """Return the loss of a batch, without a step."""
    with torch.no_grad(), trainer.precision:
        return trainer.adapter.loss(trainer.model, batch, epoch=1.0)["loss"]


def first_loss(work: Callable[[], Tensor]) -> float:
    """Return a loss with the random numbers of a first step."""
    torch.manual_seed(0)
    return float(work())


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def copies(scale: Scale = "full") -> list[Measurement]:
    """Check that batches arrive as they were made, and measure them against copies from pageable memory."""
    size, device = StepSize.of(scale), best_device()
    with tempfile.TemporaryDirectory() as name:
        run = random_run(Path(name), size)
        data = past_warm_up(run).data
        order = Order(size=len(data), batch=size.batch, unit=1, seed=0)
        made = [data.batch(index_B, seed=0, epoch=0) for index_B in order.batches(0)]
        arrived = [on_device(batch, torch.device("cpu")) for _, batch in load(data, order, 0, device)]
        for batch, other in zip(made, arrived, strict=True):
            torch.testing.assert_close(other, batch, rtol=0, atol=0)

        def pageable() -> None:
            for index_B in order.batches(0):
                on_device(data.batch(index_B, seed=0, epoch=0), device)

        ours = waited(lambda: deque(load(data, order, 0, device), maxlen=0), device)
        sides = by_turns(ours, waited(pageable, device), rounds=size.rounds)
    return [
        Measurement(
            name="batches from pinned memory / pageable",
            measured=f"{len(made)} batches of {size.batch} sets of {size.regions} x {size.dim} float16, to {device}",
            unit="ms",
            note="Made and copied in a thread beside; reference: one after another.",
            **sides.numbers(invert=True),
        )
    ]


@dataclass(frozen=True, kw_only=True)
class CapSize(ChunkSize):
    """A batch that fills a few GB; `spare` is what a cap leaves beyond the peak of a step in chunks."""

    batch: int = 4096
    chunk: int = 256
    spare: float = 1.25


def memory_cap(scale: Scale = "full") -> list[Measurement]:
    """Measure a step's peak in chunks and at once; under a cap between both, only the step in chunks ends.

    Raises:
        AssertionError: the gradients differ, or the cap has not kept the whole batch out.
    """
    size, device = CapSize.of(scale), best_device()
    model, batch = model_of(size).to(device), on_device(batch_of(size), device)
    peaks, gradients = {}, {}
    for chunk in (size.chunk, size.batch):
        model.zero_grad(set_to_none=False)
        step = partial(backward, model, batch, chunk=chunk)
        peaks[chunk] = peak(step, device)
        gradients[chunk] = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
    own, whole = gradients.values()
    torch.testing.assert_close(own, whole, rtol=1e-2, atol=1e-3 * float(whole.abs().max()))
    note = ""
    # at the tiny size, peaks differ by less than the blocks of memory that torch takes
    if device.type == "cuda" and scale != "tiny":
        held = torch.cuda.memory_allocated(device) / 1e6
        limit = held + size.spare * peaks[size.chunk]
        assert limit < held + peaks[size.batch], "the whole batch takes little more than a chunk"
        assert not _ends(partial(backward, model, batch, chunk=size.batch), device, limit)
        assert _ends(partial(backward, model, batch, chunk=size.chunk), device, limit)
        note = (
            f"With {limit:,.0f} MB of the device, the step in chunks ends, and the whole batch does not fit."
        )
    return [
        Measurement.of_two(
            peaks[size.chunk],
            peaks[size.batch],
            name=f"step in chunks: memory of {device.type}",
            measured=f"peak beyond weights and batch, forward and backward of {size.batch:,} sets of {size.regions} x "
            f"{size.dim}, {size.chunk} at once; reference: all at once",
            unit="MB",
            target=0.5,
            note=note,
        )
    ]


def _ends(work: Callable[[], None], device: torch.device, limit_MB: float) -> bool:
    """Whether work ends with so much of the device's memory."""
    place = torch.cuda.current_device()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        1e6 * limit_MB / torch.cuda.get_device_properties(place).total_memory, place
    )
    try:
        work()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, place)
        torch.cuda.empty_cache()
    return True
