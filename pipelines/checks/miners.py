"""What miners promise, on made-up scores."""

from __future__ import annotations

from functools import cached_property

import torch

from infra.checks import Check
from infra.registry import MINERS, OBJECTIVES
from tasks.objectives.base import batch_positives, pairs_and_negatives
from tasks.objectives.miners.base import BatchScores, Chosen, Mined, Miner

_OBJECTIVES = ("triplet(warmup_epochs=0, negatives={})", "infonce(negatives={})")
_HIGH = 9.0  # of what belongs together, above every score of a negative


class MinerChecks:
    """The promises of one miner.

    Args:
        spec: of the miner.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def checks(self) -> list[Check]:
        """Return them in order."""
        return [
            Check(
                what="it chooses negatives of each pair, in both directions",
                run=self._chooses,
                advice="return Mined of two Chosen; see tasks/objectives/miners/base.py",
                vital=True,
            ),
            Check(
                what="no positive is ever chosen",
                run=self._leaves_positives,
                advice="choose among scores.negative_VT, in which positives are the lowest number",
            ),
            Check(
                what="triplet and infonce have finite gradients of it, and none where there is no negative",
                run=self._gradients,
                advice="divide by nothing that may be 0",
            ),
        ]

    @cached_property
    def _miner(self) -> Miner:
        return MINERS.build(self._spec)

    def _sides(self) -> list[tuple[int, Chosen]]:
        """Return the number of pairs and what is chosen of each, of both directions and several batches."""
        found = []
        for scores in _batches():
            mined = self._miner.choose(scores)
            assert isinstance(mined, Mined), f"it returned {type(mined).__name__}, expected Mined"
            found += [(len(scores.row_T), side) for side in (mined.to_text, mined.to_visual)]
        return found

    def _chooses(self) -> None:
        for pairs, side in self._sides():
            score_TN, weight_TN, _ = side.of_pairs()
            assert (score_TN.ndim, len(score_TN)) == (2, pairs), (
                f"scores of shape {tuple(score_TN.shape)} for {pairs} pairs"
            )
            assert score_TN.requires_grad, "what it chose has lost its gradient"
            if weight_TN is not None:
                assert weight_TN.shape == score_TN.shape, f"weights of shape {tuple(weight_TN.shape)}"
                assert ((weight_TN >= 0) & (weight_TN <= 1)).all(), "a weight is not from 0 to 1"
                assert not weight_TN.requires_grad, "a weight has a gradient"

    def _leaves_positives(self) -> None:
        for _, side in self._sides():
            score_RN = side.score_RN if side.weight_RN is None else side.score_RN * (side.weight_RN > 0)
            assert (score_RN < _HIGH / 2).all(), (
                "an image's own text, or another of its images, is among them"
            )

    def _gradients(self) -> str:
        losses = []
        for scores in _batches():
            for objective in _OBJECTIVES:
                sim_VT = scores.sim_VT.detach().requires_grad_()
                loss = OBJECTIVES.build(objective.format(self._spec))(
                    sim_VT, scores.row_T, scores.positive_VT, epoch=2.0
                )["loss"]
                loss.backward()
                assert sim_VT.grad.isfinite().all(), (
                    f"the gradient of {objective.format(self._spec)} is not finite"
                )
                if scores.positive_VT.all():
                    assert not sim_VT.grad.any(), "a batch without negatives has a gradient"
                losses.append(float(loss.detach()))
        return f"losses from {min(losses):.3g} to {max(losses):.3g}"


def miner_checks(spec: str) -> list[Check]:
    """Return the promises of a miner."""
    return MinerChecks(spec).checks()


def _batches() -> list[BatchScores]:
    """Return a batch of pairs in which an image comes twice, one of items with several texts, and one of one item."""
    cases = [
        (torch.tensor([5, 7, 2, 7, 9]), torch.arange(5)),
        (torch.arange(3), torch.tensor([0, 0, 1, 2, 2, 2])),
        (torch.tensor([4, 4]), torch.arange(2)),
    ]
    found = []
    for item_V, row_T in cases:
        positive_VT = batch_positives(item_V, row_T)
        sim_VT = torch.rand(len(item_V), len(row_T), generator=torch.Generator().manual_seed(0))
        sim_VT = (sim_VT + _HIGH * positive_VT).requires_grad_()
        pair_T, negative_VT = pairs_and_negatives(sim_VT, row_T, positive_VT)
        found.append(
            BatchScores(
                pair_T=pair_T,
                negative_VT=negative_VT,
                row_T=row_T,
                positive_VT=positive_VT,
                sim_VT=sim_VT.detach(),
            )
        )
    return found
