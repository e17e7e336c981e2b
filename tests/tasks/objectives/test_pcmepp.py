"""PCME++'s distance, objective and regulariser against their formulas in float64, number by number."""

import math

import numpy as np
import pytest
import torch
from score_batches import BATCHES, batch, pairs
from torch import Tensor
from torch.nn.functional import normalize

from polypool.infra.errors import InputError
from polypool.infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.similarities.vectors import Embeddings, uncertainty


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


def test_it_is_the_mean_squared_distance_of_samples():
    x, y = gaussians(1).detach(), gaussians(1, seed=1).detach()
    generator = torch.Generator().manual_seed(0)
    drawn = [
        g[0, 0] + (g[0, 1] / 2).exp() * torch.randn(400_000, 6, generator=generator, dtype=torch.float64)
        for g in (x, y)
    ]
    sampled = (drawn[0] - drawn[1]).square().sum(dim=1).mean()
    assert SIMILARITIES.build("csd")(x, y).item() == pytest.approx(-sampled.item(), rel=5e-3)


@pytest.mark.parametrize(("start", "largest"), [(-12.0, 4.0), (-4.0, 40.0), (0.0, 4000.0)])
def test_in_single_precision_it_errs_by_less_than_a_millionth_of_its_parts(start, largest):
    x, y = (gaussians(200, 1024, seed=seed, start=start).detach() for seed in (0, 1))
    y[:100, 0] = normalize(x[:100, 0] + 1e-3 * y[:100, 0], dim=-1)
    similarity = SIMILARITIES.build("csd")
    error = similarity(x.float(), y.float()).double() - similarity(x, y)
    assert error.abs().max() < 1e-6 * largest
    error = similarity.pairs(x.float(), y.float()).double() - similarity.pairs(x, y)
    assert error.abs().max() < 1e-6 * largest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_left_before_the_exponential(dtype):
    x, y = gaussians(3).detach().to(dtype), gaussians(4, seed=1).detach().to(dtype)
    similarity = SIMILARITIES.build("csd")
    found = similarity(x, y)
    assert found.dtype == similarity.pairs(x, y[:3]).dtype == uncertainty(x[:, 1]).dtype == torch.float32
    torch.testing.assert_close(found.double(), similarity(x.double(), y.double()), atol=1e-5, rtol=1e-6)


def test_training_holds_nothing_of_the_size_of_the_scores():
    x, y, kept = gaussians(40), gaussians(50, seed=1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        SIMILARITIES.build("csd")(x, y)
    assert max(kept) < 40 * 50


def test_a_surer_one_comes_first_and_what_is_not_a_number_stays_so():
    similarity, x = SIMILARITIES.build("csd"), gaussians(1).detach()
    sure, unsure = x.clone(), x.clone()
    unsure[:, 1] += 0.1
    assert similarity(x, sure) > similarity(x, unsure)
    spoilt = gaussians(3).detach()
    spoilt[1, 1, 0] = torch.nan
    assert similarity(spoilt, x).isnan().flatten().tolist() == [False, True, False]


@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 4), (3, 2, 2, 4)])
def test_what_is_no_distribution_is_refused(shape):
    plain, vib = torch.zeros(shape), REGULARISERS.build("vib(weight=1)")
    for compare in (SIMILARITIES.build("csd"), SIMILARITIES.build("csd").pairs):
        with pytest.raises(InputError, match=r"shape \(B, 2, D\).*probabilistic"):
            compare(plain, gaussians(3, 4))
    with pytest.raises(InputError, match=r"shape \(B, 2, D\)"):
        vib(Embeddings(gaussians(3)), Embeddings(plain))


def far(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Scores from -4.4 to 0, as minus distances are."""
    sim_VT, row_T, positive_VT = batch(name)
    return 4 * (sim_VT - 0.7), row_T, positive_VT


def entropy(logit: float, yes: bool) -> float:
    return -math.log(1 / (1 + math.exp(-logit if yes else logit)))


def explicit(sim: np.ndarray, positive: np.ndarray, *, scale: float, bias: float, pseudo: float) -> float:
    """The match and both matrices with pseudo-positives, entry by entry."""
    total, entries = 0.0, [*np.ndindex(*sim.shape)]
    for row, column in entries:
        logit, score = scale * sim[row, column] + bias, sim[row, column]
        total += 2 * entropy(logit, positive[row, column])
        for own, line in ((positive[row], sim[row]), (positive[:, column], sim[:, column])):
            near = any(score >= s for s, belongs in zip(line, own, strict=True) if belongs)
            total += pseudo * entropy(logit, near)
    return total / len(entries)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("pcmepp", {"scale": 5.0, "bias": 5.0, "pseudo": 0.1}),
        ("pcmepp(scale=2, bias=-1, pseudo=3)", {"scale": 2.0, "bias": -1.0, "pseudo": 3.0}),
        ("pcmepp(pseudo=0)", {"scale": 5.0, "bias": 5.0, "pseudo": 0.0}),
    ],
)
def test_the_objective_is_that_of_the_formula_with_gradients(name, spec, values):
    sim_VT, row_T, positive_VT = far(name)
    objective = OBJECTIVES.build(spec).double()
    sim_VT.requires_grad_()
    loss = objective(sim_VT, row_T, positive_VT, epoch=0.0)["loss"]
    sim, positive = sim_VT.detach().numpy(), positive_VT.numpy()
    assert loss.item() == pytest.approx(explicit(sim, positive, **values), abs=1e-12)
    assert torch.autograd.gradcheck(
        lambda sim, *_: objective(sim, row_T, positive_VT, epoch=0.0)["loss"],
        (sim_VT, objective.scale, objective.bias),
    )


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


def test_the_objective_logs_what_it_learns_and_what_it_aims_at():
    objective = OBJECTIVES.build("pcmepp(scale=4, bias=3)")
    terms = objective(*far("pairs"), epoch=0.0)
    assert (terms["scale"].item(), terms["bias"].item()) == (4, 3)
    assert not any(terms[name].requires_grad for name in ("scale", "bias", "pseudo_positives"))
    assert objective.target_gap == pytest.approx(0.25)


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


def test_the_regulariser_is_torchs_divergence_and_zero_at_the_standard_normal():
    from torch.distributions import Normal, kl_divergence

    mean_BD, log_variance_BD = gaussians(4).detach().unbind(dim=1)
    torchs = kl_divergence(Normal(mean_BD, (log_variance_BD / 2).exp()), Normal(0.0, 1.0)).mean()
    side, vib = Embeddings(gaussians(4)), REGULARISERS.build("vib(weight=1)")
    assert vib(side, side).item() == pytest.approx(2 * torchs.item(), rel=1e-9)
    standard = Embeddings(torch.zeros(2, 2, 3))
    assert vib(standard, standard).item() == 0
