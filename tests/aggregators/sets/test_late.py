"""`late`: elements unchanged, or clustered by Ward's criterion, against a search over all pairs."""

import math

import pytest
import torch
from torch import Tensor

from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


def ward(x_ND: Tensor, clusters: int) -> list[Tensor]:
    """Repeatedly merge the two clusters of least Ward cost; return the cluster means."""
    x_ND = x_ND / x_ND.norm(dim=1, keepdim=True)
    groups = [[n] for n in range(len(x_ND))]
    while len(groups) > clusters:

        def cost(i: int, j: int) -> float:
            a, b = (x_ND[groups[g]].detach().mean(dim=0) for g in (i, j))
            m, n = len(groups[i]), len(groups[j])
            return float(m * n / (m + n) * (a - b).square().sum())

        pairs = [(i, j) for j in range(len(groups)) for i in range(j)]
        i, j = min(pairs, key=lambda pair: cost(*pair))
        groups[i] += groups.pop(j)
    return sorted((x_ND[group].mean(dim=0) for group in groups), key=lambda x_D: x_D[0].item())


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ("late", lambda n: n),
        ("late(factor=2)", lambda n: math.ceil(n / 2)),
        ("late(factor=2.5)", lambda n: math.ceil(n / 2.5)),
        ("late(budget=3)", lambda n: min(n, 3)),
        ("late(factor=2, budget=5)", lambda n: min(math.ceil(n / 2), 5)),
        ("late(budget=1)", lambda n: 1),
    ],
)
def test_late_returns_elements_or_ward_cluster_means(spec, kept):
    sizes = [11, 1, 4, 2]
    x_BND, mask_BN = random_sets(sizes, 6, dtype=torch.float64)
    x_BND = x_BND.requires_grad_()
    vectors = AGGREGATORS.build(spec, 6)(x_BND, mask_BN).vectors
    weight_D = torch.arange(1.0, 7.0, dtype=torch.float64)
    for vectors_KD, x_ND, size in zip(vectors, x_BND, sizes, strict=True):
        real_KD = vectors_KD[vectors_KD.any(dim=1)]
        real_KD = real_KD[real_KD[:, 0].argsort()]
        expected = ward(x_ND[:size], kept(size))
        assert len(real_KD) == len(expected) == kept(size)
        torch.testing.assert_close(real_KD, torch.stack(expected))
        sums = [(part @ weight_D).square().sum() for part in (real_KD, torch.stack(expected))]
        ours, theirs = (torch.autograd.grad(total, x_BND, retain_graph=True) for total in sums)
        torch.testing.assert_close(ours, theirs)


def test_late_keeps_nan_within_its_set():
    x_BND, mask_BN = random_sets([4, 4], 6)
    x_BND[0, 2] = float("nan")
    vectors = AGGREGATORS.build("late(factor=2)", 6)(x_BND, mask_BN).vectors
    assert vectors[0].isnan().any()
    assert vectors[1].isfinite().all()
