"""Exponents of growth: the slope of the logarithm of processor time over that of a size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Measurement, Scale, Size, processor_seconds
from benchmarks.pooling.costs import CostSize, aggregator_step
from benchmarks.random_data import feature_store, random_tensors
from benchmarks.scoring.ranks import rank_matrix
from polypool.encoders.text.bigru import BiGRU
from polypool.infra.registry import AGGREGATORS, OBJECTIVES
from polypool.infra.store import FeatureStore
from polypool.tasks.objectives.objective import batch_positives

Work = Callable[[], Any]
STEEPER = 0.25
"""By how much an exponent may exceed the expected one: caches fill, and small sizes have a fixed part."""


@dataclass(frozen=True, kw_only=True)
class ExponentSize(Size):
    """Sizes of each kind, the smallest first; `least` are the seconds that are measured at once."""

    quick: ClassVar = {"items": (1_000, 10_000, 100_000), "images": (250, 500, 1_000)}
    tiny: ClassVar = {
        "items": (10, 40),
        "images": (4, 8),
        "elements": (2, 4),
        "words": (2, 4),
        "workers": (1, 2),
        "batch": 4,
        "width": 8,
        "least": 0.0,
        "rounds": 2,
    }
    items: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    images: tuple[int, ...] = (500, 1_000, 2_000, 4_000)
    elements: tuple[int, ...] = (16, 32, 64, 128, 256)
    words: tuple[int, ...] = (8, 16, 32, 64)
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    batch: int = 128
    width: int = 256
    least: float = 0.05


def exponents(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure how the time of a store, of ranks, pooling, captions and losses grows, on one thread."""
    size, threads = ExponentSize.of(scale), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            yield from _of_stores(Path(name), size)
        row = partial(_row, size=size)
        pairs = "both directions, five captions an image; every pair counts"
        yield row("ranks over images", pairs, size.images, 2, [_ranks(n) for n in size.images])
        sets = f"gpo on {size.batch} sets, width {size.width}, forward and backward"
        yield row("pooling over elements", sets, size.elements, 1, [_pool(size, n) for n in size.elements])
        texts = f"bigru on {size.batch} captions, width {size.width}, forward and backward"
        yield row("captions over words", texts, size.words, 1, [_read(size, n) for n in size.words])
        loss = f"infonce on {size.batch} pairs a worker, each of which has the scores of all"
        yield row("loss over workers", loss, size.workers, 2, [_loss(size, n) for n in size.workers])
    finally:
        torch.set_num_threads(threads)


def slopes(second_RS: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return each round's slope of log seconds over log size, at least 0, `(R,)`."""
    slope_R, _ = np.polyfit(np.log(sizes), np.log(second_RS).T, 1)
    return np.maximum(slope_R, 0.0)


def _row(
    what: str,
    measured: str,
    sizes: Sequence[int],
    expected: int,
    works: Sequence[Work],
    *,
    size: ExponentSize,
) -> Measurement:
    """Measure each size's work, and return the row of the slope."""
    times = [_repeated(work, size.least) for work in works]
    slope_R = slopes(np.array([[time() for time in times] for _ in range(size.rounds)]), sizes)
    reference = max(expected, 1)  # of what should not grow at all, too: then the ratio is the exponent
    return Measurement(
        name=f"exponent: {what}",
        measured=f"{measured}; from {sizes[0]:,} to {sizes[-1]:,}",
        unit="",
        ours=float(np.median(slope_R)),
        reference=reference,
        ratio=float(np.median(slope_R)) / reference,
        spread=(float(slope_R.min()) / reference, float(slope_R.max()) / reference),
        goal="at most",
        target=(expected + STEEPER) / reference,
        note=f"The slope of log processor time over log size; expected is {expected}.",
    )


def _repeated(work: Work, least: float) -> Callable[[], float]:
    """Return what measures a call's seconds over as many calls as take `least` of them."""
    work()
    count = max(1, round(least / max(processor_seconds(work), 1e-6)))
    return lambda: max(processor_seconds(lambda: [work() for _ in range(count)]) / count, 1e-9)


def _of_stores(folder: Path, size: ExponentSize) -> Iterator[Measurement]:
    """Measure opening, finding rows and reading a batch; sets of one vector of 8 numbers."""
    stores = [feature_store(folder / str(n), np.ones(n, np.int64), dim=8) for n in size.items]
    rng = np.random.default_rng(0)
    rows = [rng.integers(len(store), size=size.batch) for store in stores]
    ids = [list(map(str, row_B.tolist())) for row_B in rows]

    def of(what: str, measured: str, expected: int, works: Sequence[Work]) -> Measurement:
        return _row(f"{what} over items", measured, size.items, expected, works, size=size)

    opened = [partial(FeatureStore.open, store.folder) for store in stores]
    yield of("opening a store", "of sets of one vector", 0, opened)
    found = [partial(store.rows, some) for store, some in zip(stores, ids, strict=True)]
    yield of("rows of ids", f"of {size.batch} ids among those of a store", 1, found)
    read = [partial(store.padded, row_B) for store, row_B in zip(stores, rows, strict=True)]
    yield of("a batch", f"of {size.batch} random sets of one vector", 0, read)


def _ranks(images: int) -> Work:
    (score_QG,) = random_tensors((images, 5 * images))
    return partial(rank_matrix, score_QG)


def _pool(size: ExponentSize, elements: int) -> Work:
    torch.manual_seed(0)
    shape = CostSize(batch=size.batch, elements=elements, width=size.width)
    return aggregator_step(AGGREGATORS.build("gpo", size.width), shape)


def _read(size: ExponentSize, words: int) -> Work:
    torch.manual_seed(0)
    encoder = BiGRU({"words": [f"w{n}" for n in range(1000)]}, width=size.width)
    token_BL = torch.randint(5, 1000, (size.batch, words))
    mask_BL = torch.ones_like(token_BL, dtype=torch.bool)
    return partial(_there_and_back, encoder, token_BL, mask_BL)


def _there_and_back(encoder: nn.Module, token_BL: Tensor, mask_BL: Tensor) -> None:
    encoder.zero_grad()
    encoder(token_BL, mask_BL)[0].sum().backward()


def _loss(size: ExponentSize, workers: int) -> Work:
    """Return the loss and its gradient of the embeddings of all workers."""
    shape = (size.batch * workers, size.width)
    embeddings = [x_BD.requires_grad_() for x_BD in random_tensors(shape, shape, unit=True)]
    objective, row_B = OBJECTIVES.build("infonce"), torch.arange(shape[0])
    positive_BB = batch_positives(row_B, row_B)

    def work() -> None:
        visual_BD, text_BD = embeddings
        loss = objective(visual_BD @ text_BD.T, row_B, positive_BB, epoch=1.0)["loss"]
        torch.autograd.grad(loss, embeddings)

    return work
