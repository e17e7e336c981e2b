"""Miners against their definitions, in both objectives that use them."""

import pytest
import torch
from score_batches import batch
from torch import Tensor

from polypool.infra.registry import MINERS, OBJECTIVES
from polypool.testing import outcomes

MARGIN, TEMPERATURE = 0.3, 0.2


def scored(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch; `low` is `items` with lower scores."""
    if name == "low":
        sim_VT, *rest = batch("items")
        return sim_VT - 0.3, *rest
    return batch(name)


def chosen(spec: str, pair: Tensor, side: list[Tensor]) -> list[Tensor]:
    """Return the selected negatives of a pair, by definition."""
    order = sorted(side, key=lambda score: -float(score))
    if spec == "semi_hard":
        below = [score for score in order if score < pair]
        return below[:1] or order[-1:]
    return {"all": order, "hard": order[:1], "hard(k=3)": order[:3]}[spec]


def explicit(
    objective: str, spec: str, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, mean: bool
) -> Tensor:
    """Return the objective, computed pair by pair."""
    total = []
    for own, transposed in ((sim_VT, False), (sim_VT.T, True)):
        costs, count = [], 0
        for column, row in enumerate(row_T.tolist()):
            at, pair = (column, sim_VT[row, column]) if transposed else (row, sim_VT[row, column])
            positive = positive_VT.T if transposed else positive_VT
            side = [own[at, other] for other in range(own.shape[1]) if not positive[at, other]]
            negatives = chosen(spec, pair, side)
            count += len(negatives)
            if objective == "triplet":
                costs.append(sum((MARGIN + score - pair).clamp(min=0) for score in negatives))
            else:
                logits = [pair / TEMPERATURE, *((score + MARGIN) / TEMPERATURE for score in negatives)]
                costs.append(torch.stack(logits).exp().sum().log() - pair / TEMPERATURE)
        shared = (count if mean else 1) if objective == "triplet" else len(costs)
        total.append(sum(costs) / shared)
    return sum(total) if objective == "triplet" else sum(total) / 2


@pytest.mark.parametrize("name", ["pairs", "items", "low"])
@pytest.mark.parametrize("spec", ["all", "hard", "hard(k=3)", "semi_hard"])
@pytest.mark.parametrize("objective", ["triplet", "triplet of means", "infonce"])
def test_miners_match_definition_in_both_objectives(objective, spec, name):
    sim_VT, row_T, positive_VT = scored(name)
    sim_VT.requires_grad_()
    which, mean = objective.split()[0], "means" in objective
    given = {
        "triplet": f"triplet(margin={MARGIN}, negatives={spec}, warmup_epochs=0)",
        "triplet of means": f"triplet(margin={MARGIN}, negatives={spec}, warmup_epochs=0, reduction=mean)",
        "infonce": f"infonce(temperature={TEMPERATURE}, negatives={spec}, margin={MARGIN})",
    }[objective]
    found = OBJECTIVES.build(given)(sim_VT, row_T, positive_VT, epoch=0.0)["loss"]
    expected = explicit(which, spec, sim_VT, row_T, positive_VT, mean=mean)
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)
    ours, theirs = (torch.autograd.grad(loss, sim_VT)[0] for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["pairs", "items", "low"])
@pytest.mark.parametrize("rule", ["code", "paper"])
def test_adopt_equals_infonce_with_adopt_k_miner(rule, name):
    sim_VT, row_T, positive_VT = scored(name)
    sim_VT.requires_grad_()
    adopt, infonce = (
        OBJECTIVES.build(spec)(sim_VT, row_T, positive_VT, epoch=0.0)
        for spec in (
            f"adopt(rule={rule}, scale=1.5)",
            f"infonce(temperature=0.05, margin=0.2, negatives=adopt_k(rule={rule}, scale=1.5))",
        )
    )
    for name in ("negatives", "alignment", "uniformity"):
        assert adopt[name] == infonce[name]
    torch.testing.assert_close(adopt["loss"], infonce["loss"], atol=1e-9, rtol=0)
    ours, theirs = (torch.autograd.grad(terms["loss"], sim_VT)[0] for terms in (adopt, infonce))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_warmup_uses_all_negatives():
    batch = scored("items")
    late = OBJECTIVES.build("triplet(negatives=adopt_k, warmup_epochs=2)")
    every = OBJECTIVES.build("triplet(negatives=all)")
    assert torch.equal(late(*batch, epoch=1.9)["loss"], every(*batch, epoch=1.9)["loss"])
    assert "negatives" in late(*batch, epoch=2.0)
    assert not torch.equal(late(*batch, epoch=2.0)["loss"], every(*batch, epoch=2.0)["loss"])


@pytest.mark.parametrize("name", [*MINERS.names(), "hard(k=4)", "adopt_k(rule=paper)"])
def test_miners_select_as_documented(name):
    assert [o for o in outcomes(name, kind="miner") if not o.passed] == []
