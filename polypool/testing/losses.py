"""Checks of similarities, objectives, miners and regularisers, on random embeddings and scores."""

from __future__ import annotations

import itertools
from functools import cached_property

import torch
from torch import Tensor, nn

from polypool.infra.registry import MINERS, OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.objectives.miners import BatchScores, Chosen, Mined, Miner
from polypool.tasks.objectives.objective import Objective, batch_positives, pairs_and_negatives
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings, l2_normalise
from polypool.testing.base import (
    REGISTER,
    PartChecks,
    check,
    check_parameters,
    check_tensor,
    check_terms,
)

_DIM = 8
_EPOCHS = (0.0, 30.0)
_MINED = ("triplet(warmup_epochs=0, negatives={})", "infonce(negatives={})")
_HIGH = 9.0  # score of positives, above every negative
_OWN_T = torch.arange(6)  # the item of each text of the made-up batch
_OWN_VT = batch_positives(_OWN_T, _OWN_T)


def _embeddings(*shape: int, seed: int) -> Tensor:
    return l2_normalise(torch.randn(*shape, _DIM, generator=torch.Generator().manual_seed(seed)))


def _distributions(size: int, *, seed: int) -> Tensor:
    """Return means of unit length and log-variances, `(size, 2, D)`."""
    parts = _embeddings(size, 2, seed=seed)
    return torch.stack((parts[:, 0], 3 * parts[:, 1]), dim=1)


class SimilarityChecks(PartChecks):
    """Checks of one similarity."""

    registry = SIMILARITIES

    @cached_property
    def part(self) -> Similarity:
        """A new similarity."""
        torch.manual_seed(0)
        return Similarity.build(self.spec, _DIM)

    @check(
        "it is built, and names what it compares",
        "derive from polypool.tasks.similarities.similarity.Similarity and set `of_sets` on the class, or "
        "`of_distributions`",
        vital=True,
    )
    def _built(self) -> str:
        part = self.part
        for name in ("of_sets", "of_distributions"):
            assert isinstance(getattr(part, name), bool), (
                f"{name} is {getattr(part, name)!r}, neither True nor False"
            )
        assert not (part.of_sets and part.of_distributions), "it is of sets and of distributions"
        if part.of_distributions:
            return "of distributions"
        return "of sets" if part.of_sets else "of single vectors"

    def _embeddings(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of queries and a gallery: vectors, and sets where it compares them; or distributions."""
        if self.part.of_distributions:
            return [(_distributions(5, seed=0), _distributions(7, seed=1))]
        shapes = [(), (3,)] if self.part.of_sets else [()]
        return [(_embeddings(5, *shape, seed=0), _embeddings(7, *shape, seed=1)) for shape in shapes]

    @check("a finite score of every query with every embedding", "return (Q, G)", vital=True)
    def _scores(self) -> None:
        for query, gallery in self._embeddings():
            check_tensor("the score of all pairs", self.part(query, gallery), 5, 7)

    @check(
        "each pair is scored by itself",
        "normalise over nothing but the two embeddings: evaluation scores block by block",
    )
    def _alone(self) -> None:
        for query, gallery in self._embeddings():
            block_QG, expected_QG = self.part(query[1:2], gallery[3:5]), self.part(query, gallery)[1:2, 3:5]
            different = "a block of the scores differs from the whole"
            torch.testing.assert_close(block_QG, expected_QG, atol=1e-5, rtol=1e-5, msg=different)

    @check(
        "gradients are finite and reach every parameter",
        f"add a small number under roots and in divisions; {REGISTER}",
    )
    def _gradients(self) -> str:
        for query, gallery in self._embeddings():
            query.requires_grad_()
            self.part.zero_grad()
            self.part(query, gallery).square().sum().backward()
            check_tensor("the gradient of the embeddings", query.grad, *query.shape)
            check_parameters(self.part)
        return _learned(self.part)


class ObjectiveChecks(PartChecks):
    """Checks of one objective."""

    registry = OBJECTIVES
    part: Objective

    @check("it is built", "derive from polypool.tasks.objectives.objective.Objective", vital=True)
    def _built(self) -> str:
        return type(self.part).__name__

    def _terms(
        self, sim_VT: Tensor, *, positive_VT: Tensor = _OWN_VT, epoch: float = 0.0
    ) -> dict[str, Tensor]:
        return self.part(sim_VT, _OWN_T, positive_VT, epoch=epoch)

    def _scores(self) -> Tensor:
        return (_embeddings(6, seed=0) @ _embeddings(6, seed=1).T).requires_grad_()

    @check("finite scalars, `loss` among them", "return a dict of scalar tensors", vital=True)
    def _scalars(self) -> str:
        return check_terms(self._terms(self._scores()))

    @check("what it learns is reached by finite gradients in every epoch", REGISTER)
    def _gradients(self) -> str:
        for epoch in _EPOCHS:
            self.part.zero_grad()
            self._terms(self._scores(), epoch=epoch)["loss"].backward()
            check_parameters(self.part, when=f", in epoch {epoch:g}")
        return _learned(self.part)

    @check(
        "a batch without negatives has a finite loss and gradient",
        "use polypool.tasks.objectives.objective.pairs_and_negatives, whose lowest number leaves no NaN",
    )
    def _without_negatives(self) -> None:
        sim_VT = self._scores()
        for epoch in _EPOCHS:
            loss = self._terms(sim_VT, positive_VT=torch.ones_like(_OWN_VT), epoch=epoch)["loss"]
            assert loss.isfinite(), f"the loss of a batch without negatives is {loss.item()}"
            if loss.requires_grad:
                (grad,) = torch.autograd.grad(loss, sim_VT, allow_unused=True)
                assert grad is None or grad.isfinite().all(), "its gradient is not finite"

    @check("steps against its gradient lower it", "see that the scores reach the loss with their gradient")
    def _learns(self) -> str:
        for epoch in _EPOCHS:
            sim_VT = self._scores()
            losses = []
            for _ in range(20):
                loss = self._terms(sim_VT, epoch=epoch)["loss"]
                losses.append(loss.item())
                (grad,) = torch.autograd.grad(loss, sim_VT)
                assert grad.isfinite().all(), f"the gradient is not finite in epoch {epoch:g}"
                sim_VT = (sim_VT - 0.02 * grad / grad.norm().clamp(min=1e-6)).detach().requires_grad_()
            change = f"{losses[0]:.4g} to {losses[-1]:.4g}"
            assert losses[-1] < losses[0], f"20 steps took the loss from {change}"
        return change


class MinerChecks(PartChecks):
    """Checks of one miner."""

    registry = MINERS
    part: Miner

    def _sides(self) -> list[tuple[int, Chosen]]:
        """Return the number of pairs and what is chosen of each, of both directions and several batches."""
        found = []
        for scores in _batches():
            mined = self.part.choose(scores)
            assert isinstance(mined, Mined), f"it returned {type(mined).__name__}, expected Mined"
            found += [(len(scores.row_T), side) for side in (mined.to_text, mined.to_visual)]
        return found

    @check(
        "it chooses negatives of each pair, in both directions",
        "return Mined of two Chosen; see tasks/objectives/miners.py",
        vital=True,
    )
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

    @check(
        "no positive is ever chosen",
        "choose among scores.negative_VT, in which positives are the lowest number",
    )
    def _leaves_positives(self) -> None:
        for _, side in self._sides():
            score_RN = side.score_RN if side.weight_RN is None else side.score_RN * (side.weight_RN > 0)
            assert (score_RN < _HIGH / 2).all(), (
                "an image's own text, or another of its images, is among them"
            )

    @check(
        "triplet and infonce have finite gradients of it, and none where there is no negative",
        "divide by nothing that may be 0",
    )
    def _gradients(self) -> str:
        losses = []
        for scores, spec in itertools.product(_batches(), _MINED):
            objective, sim_VT = spec.format(self.spec), scores.sim_VT.detach().requires_grad_()
            terms = OBJECTIVES.build(objective)(sim_VT, scores.row_T, scores.positive_VT, epoch=2.0)
            terms["loss"].backward()
            check_tensor(f"the gradient of {objective}", sim_VT.grad, *sim_VT.shape)
            learns = sim_VT.grad is not None and sim_VT.grad.any()
            assert not (learns and scores.positive_VT.all()), "a batch without negatives has a gradient"
            losses.append(float(terms["loss"].detach()))
        return f"losses from {min(losses):.3g} to {max(losses):.3g}"


class RegulariserChecks(PartChecks):
    """Checks of one regulariser."""

    registry = REGULARISERS
    part: Regulariser

    @check("it is built, with a name and a weight", "derive from Regulariser and set `name`", vital=True)
    def _built(self) -> str:
        part = self.part
        assert part.name, "it has no name to be logged under"
        return f"{part.name}, weight {part.weight:g}"

    @check(
        "a finite scalar with finite gradients, which reach every parameter",
        f"add a small number under roots and in divisions; {REGISTER}",
    )
    def _scalar(self) -> str:
        distributions = self.part.of_distributions
        sides = [_distributions(6, seed=n) if distributions else _embeddings(6, 3, seed=n) for n in (0, 1)]
        sides = [embedding.requires_grad_() for embedding in sides]
        term = self.part(*(Embeddings(embedding, embedding * 0.5) for embedding in sides))
        check_tensor("it", term)
        term.backward()
        assert all(embedding.grad is None or embedding.grad.isfinite().all() for embedding in sides), (
            "a gradient is not finite"
        )
        check_parameters(self.part)
        return f"{term.item():.4g}"


def _learned(module: nn.Module) -> str:
    """Say what a module learns, with the values it begins with."""
    return ", ".join(
        f"{name} {p.item():.4g}" if p.numel() == 1 else f"{name} {tuple(p.shape)}"
        for name, p in module.named_parameters()
        if p.requires_grad
    )


def _batches() -> list[BatchScores]:
    """Return a batch of pairs in which an image comes twice, one of items with several texts, and one of one item."""
    cases = [
        (torch.tensor([5, 7, 2, 7, 9]), torch.arange(5)),
        (torch.arange(3), torch.tensor([0, 0, 1, 2, 2, 2])),
        (torch.tensor([4, 4]), torch.arange(2)),
    ]
    return [_batch(item_V, row_T) for item_V, row_T in cases]


def _batch(item_V: Tensor, row_T: Tensor) -> BatchScores:
    positive_VT = batch_positives(item_V, row_T)
    sim_VT = torch.rand(len(item_V), len(row_T), generator=torch.Generator().manual_seed(0))
    sim_VT = (sim_VT + _HIGH * positive_VT).requires_grad_()
    pair_T, negative_VT = pairs_and_negatives(sim_VT, row_T, positive_VT)
    return BatchScores(
        pair_T=pair_T, negative_VT=negative_VT, row_T=row_T, positive_VT=positive_VT, sim_VT=sim_VT.detach()
    )
