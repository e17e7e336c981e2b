"""What similarities, objectives and regularisers promise, on made-up embeddings and scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from infra.checks import Check
from infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from pipelines.checks.parameters import ADVICE, check_parameters
from tasks.objectives.base import Objective, batch_positives
from tasks.regularisers.base import Regulariser
from tasks.similarities.base import Similarity
from tasks.similarities.vectors import Embeddings, l2_normalise

_DIM = 8
_EPOCHS = (0.0, 30.0)
_OWN_T = torch.arange(6)  # the item of each text of the made-up batch
_OWN_VT = batch_positives(_OWN_T, _OWN_T)


def _embeddings(*shape: int, seed: int) -> Tensor:
    return l2_normalise(torch.randn(*shape, _DIM, generator=torch.Generator().manual_seed(seed)))


def _distributions(size: int, *, seed: int) -> Tensor:
    """Return means of unit length and log-variances, `(size, 2, D)`."""
    parts = _embeddings(size, 2, seed=seed)
    return torch.stack((parts[:, 0], 3 * parts[:, 1]), dim=1)


class SimilarityChecks:
    """The promises of one similarity, on made-up embeddings.

    Args:
        spec: of the similarity.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def checks(self) -> list[Check]:
        """Return them in order."""
        return [
            _check(
                "it is built, and says what it is of",
                self._built,
                "derive from tasks.similarities.base.Similarity and set `of_sets` on the class, or `of_distributions`",
                vital=True,
            ),
            _check(
                "a finite score of every query with every embedding",
                self._scores,
                "return (Q, G)",
                vital=True,
            ),
            _check(
                "each pair is scored by itself",
                self._alone,
                "normalise over nothing but the two embeddings: evaluation scores block by block",
            ),
            _check(
                "gradients are finite and reach every parameter",
                self._gradients,
                f"add a small number under roots and in divisions; {ADVICE}",
            ),
        ]

    @cached_property
    def _similarity(self) -> Similarity:
        torch.manual_seed(0)
        return SIMILARITIES.build(self._spec)

    def _built(self) -> str:
        part = self._similarity
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
        if self._similarity.of_distributions:
            return [(_distributions(5, seed=0), _distributions(7, seed=1))]
        vectors = (_embeddings(5, seed=0), _embeddings(7, seed=1))
        return [
            vectors,
            *([(_embeddings(5, 3, seed=0), _embeddings(7, 3, seed=1))] if self._similarity.of_sets else []),
        ]

    def _scores(self) -> None:
        for query, gallery in self._embeddings():
            sim_QG = self._similarity(query, gallery)
            assert sim_QG.shape == (5, 7), f"the scores have shape {tuple(sim_QG.shape)}, expected (5, 7)"
            assert sim_QG.isfinite().all(), "a score is not finite"

    def _alone(self) -> None:
        for query, gallery in self._embeddings():
            whole_QG, part_QG = self._similarity(query, gallery), self._similarity(query[1:2], gallery[3:5])
            torch.testing.assert_close(
                part_QG,
                whole_QG[1:2, 3:5],
                atol=1e-5,
                rtol=1e-5,
                msg="a block of the scores differs from the whole",
            )

    def _gradients(self) -> str:
        for query, gallery in self._embeddings():
            query.requires_grad_()
            self._similarity.zero_grad()
            self._similarity(query, gallery).square().sum().backward()
            assert query.grad.isfinite().all(), "a gradient is not finite"
            check_parameters(self._similarity)
        return _learned(self._similarity)


class ObjectiveChecks:
    """The promises of one objective, on made-up scores.

    Args:
        spec: of the objective.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def checks(self) -> list[Check]:
        """Return them in order."""
        return [
            _check("it is built", self._built, "derive from tasks.objectives.base.Objective", vital=True),
            _check(
                "finite scalars, `loss` among them",
                self._scalars,
                "return a dict of scalar tensors",
                vital=True,
            ),
            _check("what it learns is reached by finite gradients in every epoch", self._gradients, ADVICE),
            _check(
                "a batch without negatives breaks nothing",
                self._without_negatives,
                "use tasks.objectives.base.pairs_and_negatives, whose lowest number leaves no NaN",
            ),
            _check(
                "steps against its gradient lower it",
                self._learns,
                "see that the scores reach the loss with their gradient",
            ),
        ]

    @cached_property
    def _objective(self) -> Objective:
        return OBJECTIVES.build(self._spec)

    def _built(self) -> str:
        return type(self._objective).__name__

    def _terms(self, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float = 0.0) -> dict[str, Tensor]:
        return self._objective(sim_VT, _OWN_T, positive_VT, epoch=epoch)

    def _scores(self) -> Tensor:
        return (_embeddings(6, seed=0) @ _embeddings(6, seed=1).T).requires_grad_()

    def _scalars(self) -> str:
        return check_terms(self._terms(self._scores(), _OWN_VT))

    def _gradients(self) -> str:
        for epoch in _EPOCHS:
            self._objective.zero_grad()
            self._terms(self._scores(), _OWN_VT, epoch=epoch)["loss"].backward()
            try:
                check_parameters(self._objective)
            except AssertionError as error:
                raise AssertionError(f"{error}, in epoch {epoch:g}") from error
        return _learned(self._objective)

    def _without_negatives(self) -> None:
        sim_VT = self._scores()
        for epoch in _EPOCHS:
            loss = self._terms(sim_VT, torch.ones_like(_OWN_VT), epoch=epoch)["loss"]
            assert loss.isfinite(), f"the loss of a batch without negatives is {loss.item()}"
            if loss.requires_grad:
                (grad,) = torch.autograd.grad(loss, sim_VT, allow_unused=True)
                assert grad is None or grad.isfinite().all(), "its gradient is not finite"

    def _learns(self) -> str:
        for epoch in _EPOCHS:
            sim_VT = self._scores()
            before = after = None
            for _ in range(20):
                after = self._terms(sim_VT, _OWN_VT, epoch=epoch)["loss"]
                before = after.item() if before is None else before
                (grad,) = torch.autograd.grad(after, sim_VT)
                assert grad.isfinite().all(), f"the gradient is not finite in epoch {epoch:g}"
                sim_VT = (sim_VT - 0.02 * grad / grad.norm().clamp(min=1e-6)).detach().requires_grad_()
            assert after.item() < before, f"20 steps took the loss from {before:.4g} to {after.item():.4g}"
        return f"{before:.4g} to {after.item():.4g}"


class RegulariserChecks:
    """The promises of one regulariser, on made-up embeddings.

    Args:
        spec: of the regulariser.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def checks(self) -> list[Check]:
        """Return them in order."""
        return [
            _check(
                "it is built, with a name and a weight",
                self._built,
                "derive from Regulariser and set `name`",
                vital=True,
            ),
            _check(
                "a finite scalar with finite gradients, which reach every parameter",
                self._scalar,
                f"add a small number under roots and in divisions; {ADVICE}",
            ),
        ]

    @cached_property
    def _regulariser(self) -> Regulariser:
        return REGULARISERS.build(self._spec)

    def _built(self) -> str:
        part = self._regulariser
        assert part.name, "it has no name to be logged under"
        return f"{part.name}, weight {part.weight:g}"

    def _scalar(self) -> str:
        sides = [_embeddings(6, 3, seed=seed) for seed in (0, 1)]
        if self._regulariser.of_distributions:
            sides = [_distributions(6, seed=seed) for seed in (0, 1)]
        sides = [embedding.requires_grad_() for embedding in sides]
        term = self._regulariser(*(Embeddings(embedding, embedding * 0.5) for embedding in sides))
        assert term.shape == (), f"it has shape {tuple(term.shape)}, expected a scalar"
        assert term.isfinite(), f"it is {term.item()}"
        term.backward()
        assert all(embedding.grad is None or embedding.grad.isfinite().all() for embedding in sides), (
            "a gradient is not finite"
        )
        check_parameters(self._regulariser)
        return f"{term.item():.4g}"


def similarity_checks(spec: str) -> list[Check]:
    """Return the promises of the similarity that a spec names."""
    return SimilarityChecks(spec).checks()


def objective_checks(spec: str) -> list[Check]:
    """Return the promises of the objective that a spec names."""
    return ObjectiveChecks(spec).checks()


def regulariser_checks(spec: str) -> list[Check]:
    """Return the promises of the regulariser that a spec names."""
    return RegulariserChecks(spec).checks()


def _learned(module: nn.Module) -> str:
    """Say what a module learns, with the values it begins with."""
    return ", ".join(
        f"{name} {p.item():.4g}" if p.numel() == 1 else f"{name} {tuple(p.shape)}"
        for name, p in module.named_parameters()
        if p.requires_grad
    )


def check_terms(terms: dict[str, Tensor]) -> str:
    """Assert that these are finite scalars and that `loss`, which has a gradient, is among them; say what it is."""
    assert "loss" in terms, f"there is no `loss` among {', '.join(terms) or 'nothing'}"
    for name, x in terms.items():
        assert isinstance(x, Tensor), f"`{name}` is {type(x).__name__}, expected a tensor"
        assert x.shape == (), f"`{name}` has shape {tuple(x.shape)}, expected a scalar"
        assert x.isfinite(), f"`{name}` is {x.item()}"
    assert terms["loss"].requires_grad, "`loss` has no gradient"
    return f"loss {terms['loss'].item():.4g}"


def _check(what: str, run: Callable[[], str | None], advice: str, *, vital: bool = False) -> Check:
    return Check(what=what, run=run, advice=advice, vital=vital)
