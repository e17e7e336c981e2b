"""`gpo`, forward and backward, against the usual: a sort along the middle axis, and a GRU over every set's ranks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.random_data import whole_sets
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.positions import encode_ranks
from polypool.aggregators.ranks.gpo import GPO


def usual_way(gpo: GPO, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
    """Compute the output of `gpo` in the way of VSE-infinity's code, with the parameters of `gpo`."""
    encoding_BNC = encode_ranks(x_BND.shape[1], gpo.positions).to(x_BND.device).expand(len(x_BND), -1, -1)
    packed = pack_padded_sequence(
        encoding_BNC, mask_BN.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
    )
    state_BN2H, _ = pad_packed_sequence(nn.GRU.forward(gpo.gru, packed)[0], batch_first=True)
    forward_BNH, backward_BNH = state_BN2H.chunk(2, dim=-1)
    pad_BN1 = ~mask_BN[..., None]
    score_BN1 = gpo.linear((forward_BNH + backward_BNH) / 2).masked_fill(pad_BN1, -10_000.0)
    weight_BN1 = (score_BN1 / gpo.temperature).softmax(dim=1)
    sorted_BND = x_BND.masked_fill(pad_BN1, -10_000.0).sort(dim=1, descending=True).values
    return Pooled((sorted_BND.masked_fill(pad_BN1, 0.0) * weight_BN1).sum(dim=1))


def main(*, quick: bool = False) -> None:
    width, rounds = (16, 1) if quick else (1024, 5)
    torch.manual_seed(0)
    gpo = GPO(width)
    for batch, elements in ((2, 5),) if quick else ((1, 10), (16, 36), (128, 36), (128, 100), (128, 256)):
        x_BND, mask_BN = whole_sets(batch, elements, width)
        x_BND.requires_grad_()

        def work(pool, x_BND=x_BND, mask_BN=mask_BN) -> Tensor:
            gpo.zero_grad()
            x_BND.grad = None
            vectors = pool(x_BND, mask_BN).vectors
            vectors.sum().backward()
            return vectors

        ways = gpo, partial(usual_way, gpo)
        torch.testing.assert_close(*map(work, ways), rtol=1e-4, atol=1e-4)
        sides = (milliseconds(partial(work, way), repeats=max(1, 256 // (batch * elements))) for way in ways)
        compare(f"gpo / usual way, {batch} sets of {elements} x {width}", *sides, rounds=rounds)


if __name__ == "__main__":
    run(main)
