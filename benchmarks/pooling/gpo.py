"""`gpo` against the usual way to sort and decode, against `max`, and as a part of a region encoder's forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from benchmarks.random_data import whole_sets
from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.positions import encode_ranks
from polypool.aggregators.ranks.gpo import GPO
from polypool.aggregators.ranks.max import Max
from polypool.encoders.visual.stored import Regions

Pool = Callable[[Tensor, Tensor], Pooled]


@dataclass(frozen=True, kw_only=True)
class PoolingSize(Size):
    """Batches of `batch` sets, of as many elements as each of `elements`; the regions are the first of them."""

    quick: ClassVar = {"batch": 32, "rounds": 3}
    tiny: ClassVar = {"batch": 3, "elements": (2, 5), "width": 16, "features": 8, "rounds": 2}
    batch: int = 128
    elements: tuple[int, ...] = (36, 100, 256)
    width: int = 1024
    features: int = 2048
    rounds: int = 5


def pooling(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure forward and backward of GPO at several set sizes, and its share of a region encoder's forward."""
    size = PoolingSize.of(scale)
    torch.manual_seed(0)
    gpo = GPO(size.width)
    for elements in size.elements:
        ours = _step(gpo, gpo, size, elements)
        measured = f"forward and backward of {size.batch} sets of {elements} x {size.width}, float32"
        usual = by_turns(ours, _step(gpo, partial(usual_way, gpo), size, elements), rounds=size.rounds)
        yield Measurement(
            name=f"gpo {elements}",
            measured=measured,
            unit="ms",
            target=5.0,
            note="Reference: the usual way, a sort along the middle axis and a row of the GRU for every set.",
            **usual.numbers(invert=True),
        )
        largest = by_turns(ours, _step(gpo, Max(size.width), size, elements), rounds=size.rounds)
        yield Measurement(
            name=f"gpo {elements} / max",
            measured=measured,
            unit="ms",
            goal="at most",
            note="Reference: max pooling.",
            **largest.numbers(),
        )
    yield _part_of_encoder(gpo, size)


def usual_way(gpo: GPO, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
    """Compute the same as `gpo` as it is usually done, with the weights of `gpo`."""
    size_B = mask_BN.sum(dim=1)
    encoding_BNC = encode_ranks(x_BND.shape[1], gpo.positions).to(x_BND.device).expand(len(x_BND), -1, -1)
    packed = pack_padded_sequence(encoding_BNC, size_B.cpu(), batch_first=True, enforce_sorted=False)
    state_BN2H, _ = pad_packed_sequence(nn.GRU.forward(gpo.gru, packed)[0], batch_first=True)
    forward_BNH, backward_BNH = state_BN2H.chunk(2, dim=-1)
    score_BN1 = gpo.linear((forward_BNH + backward_BNH) / 2).masked_fill(~mask_BN[..., None], -10_000.0)
    weight_BN1 = (score_BN1 / gpo.temperature).softmax(dim=1)
    sorted_BND = x_BND.masked_fill(~mask_BN[..., None], -10_000.0).sort(dim=1, descending=True).values
    return Pooled((sorted_BND.masked_fill(~mask_BN[..., None], 0.0) * weight_BN1).sum(dim=1))


def _step(gpo: GPO, pool: Pool, size: PoolingSize, elements: int) -> Callable[[int], float]:
    """Return what pools and goes back once, and says how many milliseconds that took."""
    x_BND, mask_BN = whole_sets(size.batch, elements, size.width)
    x_BND.requires_grad_()

    def work() -> None:
        x_BND.grad = None
        gpo.zero_grad()
        pool(x_BND, mask_BN).vectors.sum().backward()

    work()
    return lambda _: 1e3 * seconds(work)


def _part_of_encoder(gpo: GPO, size: PoolingSize) -> Measurement:
    """Measure the part of pooling in a region encoder's forward."""
    elements = size.elements[0]
    encoder = Regions({"dim": size.features}, width=size.width).eval()
    x_BNF, mask_BN = whole_sets(size.batch, elements, size.features)
    with torch.inference_mode():
        x_BND, _ = encoder(x_BNF, mask_BN)
        gpo(x_BND, mask_BN)
        sides = by_turns(
            lambda _: 1e3 * seconds(lambda: gpo(x_BND, mask_BN)),
            lambda _: 1e3 * seconds(lambda: encoder(x_BNF, mask_BN)),
            rounds=2 * size.rounds + 1,
        )
    return Measurement(
        name="gpo / encoder",
        measured=f"inference of {size.batch} sets of {elements} regions, {size.features} to {size.width}",
        unit="ms",
        goal="at most",
        target=0.05,
        percent=True,
        note="Reference: the region encoder's forward, a linear map and an MLP, without pooling.",
        **sides.numbers(),
    )
