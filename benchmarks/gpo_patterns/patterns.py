"""Pooling patterns for a generator of weights to learn: VSE-infinity, appendix B.3."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polypool.aggregators.ranks.gpo import GPO

Pattern = Callable[[Tensor, Tensor], Tensor]
"""`(rank_N, size_S1)` -> `(S, N)` weights up to a factor; ranks count from 0."""

PATTERNS: dict[str, Pattern] = {
    "A": lambda rank_N, size_S1: torch.ones(len(size_S1), len(rank_N)),
    "M-1": lambda rank_N, size_S1: (rank_N < 1).expand(len(size_S1), -1),
    "M-10": lambda rank_N, size_S1: (rank_N < 10).expand(len(size_S1), -1),
    "T-50%": lambda rank_N, size_S1: rank_N < (size_S1 + 1) // 2,
    "L": lambda rank_N, size_S1: size_S1 - 1 - rank_N,
}
"""The average, the largest value, the mean of the ten largest, of the larger half, and linear decay to zero."""


def pattern_weights(name: str, size_S: Tensor) -> Tensor:
    """Return the `(S, max size)` weights of a pattern for sets of the given sizes: each row sums to one."""
    rank_N = torch.arange(int(size_S.max()))
    weight_SN = PATTERNS[name](rank_N, size_S[:, None]).float()
    weight_SN = weight_SN.masked_fill(rank_N >= size_S[:, None], 0.0)
    return weight_SN / weight_SN.sum(dim=1, keepdim=True)


def learn(
    generator: GPO,
    pattern: str,
    *,
    sizes: range,
    steps: int,
    seed: int,
    batch: int = 16,
    width: int = 32,
    lr: float = 1e-2,
) -> None:
    """Teach a generator a pattern from sets of random features and what the pattern pools of them.

    The paper leaves the rest open. Here the features are normal, the loss is the mean squared error of the pooled
    vectors, and Adam's rate falls along half a cosine. 300, 500 and 1000 steps were tried: all end within 0.02 of the
    paper's errors for its own design.

    Args:
        generator: trained in place.
        pattern: what it shall learn.
        sizes: of the sets; all are equally likely.
        steps: of training.
        seed: of sizes and features.
        batch: sets in a step.
        width: of their features.
        lr: Adam's first rate.
    """
    random = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(generator.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        size_B = torch.randint(sizes.start, sizes.stop, (batch,), generator=random)
        x_BDN = sorted_features(size_B, width=width, random=random)
        error_BN = generator.size_weights(size_B) - pattern_weights(pattern, size_B)
        loss = torch.einsum("bdn,bn->bd", x_BDN, error_BN).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()


def sorted_features(size_B: Tensor, *, width: int, random: torch.Generator) -> Tensor:
    """Return normal features `(B, D, max size)`, each channel sorted from its largest down, zero in the pads."""
    longest = int(size_B.max())
    beyond_B1N = (torch.arange(longest) >= size_B[:, None])[:, None, :]
    x_BDN = torch.randn(len(size_B), width, longest, generator=random).masked_fill(beyond_B1N, -math.inf)
    return x_BDN.sort(dim=-1, descending=True).values.masked_fill(beyond_B1N, 0.0)


@torch.no_grad()
def rmse(generator: GPO, pattern: str, *, sizes: range) -> float:
    """Return the root mean square error of a generator's weights, over every rank of every size."""
    size_S = torch.arange(sizes.start, sizes.stop)
    error_SN = generator.size_weights(size_S) - pattern_weights(pattern, size_S)
    return math.sqrt(float(error_SN.square().sum() / size_S.sum()))
