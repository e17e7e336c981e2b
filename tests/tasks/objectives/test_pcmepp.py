"""PCME++'s distance, objective and regulariser against their formulas in float64, number by number."""

import pytest
import torch
from score_batches import pairs
from torch import Tensor
from torch.nn.functional import normalize

from polypool.infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.similarities.vectors import Embeddings


def gaussians(size: int, dim: int = 6, *, seed: int = 0, start: float = -1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = (torch.randn(size, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.stack([normalize(mean, dim=-1), start + log_variance], dim=1).requires_grad_()


def distance(one_2D: Tensor, other_2D: Tensor) -> Tensor:
    """The expected squared distance of samples of two Gaussians, channel by channel."""
    total = 0
    for d in range(one_2D.shape[1]):
        total = total + (one_2D[0, d] - other_2D[0, d]) ** 2 + one_2D[1, d].exp() + other_2D[1, d].exp()
    return total


def test_the_score_is_minus_the_distance_with_gradients():
    x, y, weight_QG = gaussians(4), gaussians(5, seed=1), torch.randn(4, 5, dtype=torch.float64)
    expected_QG = torch.stack([torch.stack([-distance(a, b) for b in y]) for a in x])
    similarity = SIMILARITIES.build("csd")
    sim_QG = similarity(x, y)
    torch.testing.assert_close(sim_QG, expected_QG, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(similarity.pairs(x, y[:4]), expected_QG.diagonal(), atol=1e-12, rtol=1e-12)
    ours, theirs = (torch.autograd.grad((s * weight_QG).sum(), (x, y)) for s in (sim_QG, expected_QG))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda a, b: similarity.pairs(a, b[:4]), (x, y))


def test_a_surer_one_comes_first_and_what_is_not_a_number_stays_so():
    similarity, x = SIMILARITIES.build("csd"), gaussians(1).detach()
    sure, unsure = x.clone(), x.clone()
    unsure[:, 1] += 0.1
    assert similarity(x, sure) > similarity(x, unsure)
    spoilt = gaussians(3).detach()
    spoilt[1, 1, 0] = torch.nan
    assert similarity(spoilt, x).isnan().flatten().tolist() == [False, True, False]


def test_pseudo_positives_by_hand():
    """Image 0 is nearer to text 1 than to its own, and as near to text 2; no text is nearer to a foreign image."""
    sim_VT = torch.tensor([[-1.0, -0.5, -1.0], [-2.0, -0.4, -3.0], [-2.0, -3.0, -0.3]])
    objective, plain = (OBJECTIVES.build(f"pcmepp(scale=1, bias=0, pseudo={pseudo})") for pseudo in (1, 0))
    terms, alone = (of(sim_VT, *pairs(3), epoch=0.0) for of in (objective, plain))
    assert terms["pseudo_positives"].item() == pytest.approx((2 / 3 + 0) / 2)
    assert "pseudo_positives" not in alone
    matched = alone["loss"].item() / 2
    # a yes in the place of a no takes softplus(s) away and adds softplus(-s): -s
    assert terms["loss"].item() - alone["loss"].item() == pytest.approx(
        2 * matched + (0.5 + 1.0) / 9, abs=1e-6
    )
    turned = objective(sim_VT.T, *pairs(3), epoch=0.0)
    assert turned["loss"].item() == pytest.approx(terms["loss"].item())


def test_of_several_positives_the_lowest_score_counts_wherever_it_stands():
    objective = OBJECTIVES.build("pcmepp")
    sim_VT, row_T = torch.tensor([[-3.0, -1.0, -2.0], [-4.0, -4.0, -1.0]]), torch.tensor([0, 0, 1])
    positive_VT = batch_positives(torch.arange(2), row_T)
    terms = objective(sim_VT, row_T, positive_VT, epoch=0.0)
    assert terms["pseudo_positives"].item() == pytest.approx((1 / 2 + 0) / 2)
    order = [1, 0, 2]
    turned = objective(sim_VT[:, order], row_T, positive_VT, epoch=0.0)
    assert turned["loss"].item() == pytest.approx(terms["loss"].item())


def test_the_regulariser_is_the_divergence_with_gradients():
    sides = gaussians(3), gaussians(5, seed=1)
    expected = 0
    for side in sides:
        for mean_D, log_variance_D in side:
            for mean, log_variance in zip(mean_D, log_variance_D, strict=True):
                term = (mean**2 + log_variance.exp() - 1 - log_variance) / 2
                expected = expected + term / len(side) / len(mean_D)
    value = REGULARISERS.build("vib(weight=1)")(*map(Embeddings, sides))
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    ours, theirs = (torch.autograd.grad(v, sides) for v in (value, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
