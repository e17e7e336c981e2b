"""The base classes of regularisers: scalars of the embeddings of the global batch, added to the objective."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.tasks.similarities.vectors import Embeddings, l2_normalise


class Regulariser(nn.Module, ABC):
    """A term of the loss that looks at embeddings, not at scores; a model may have several.

    Like an objective, it sees the global batch on every worker, outside autocast and in at least float32, and what it
    learns is a `nn.Parameter`, named `regularisers.<place>.<name>` in the model. A model that has no embeddings of one
    modality alone takes none.

    Args:
        weight: of the term in the loss, not below 0.
    """

    name: str
    """Name of the term in the log."""
    of_distributions: bool = False
    """True: embeddings are Gaussians, a mean and a log-variance; False: vectors, or sets of them. A model refuses one
    that is not of what it makes."""

    def __init__(self, *, weight: float) -> None:
        super().__init__()
        if not weight >= 0:
            raise InputError(f"weight must be 0 or more, not {weight}")
        self.weight = weight

    @abstractmethod
    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the unweighted term of the global batch, a scalar, which is logged under `name`.

        Args:
            visual: of V images or videos: vectors `(V, D)` or `(V, K, D)`, and the residual where there is one;
                distributions `(V, 2, D)` where `of_distributions`.
            text: of T captions, likewise.
        """


class WithinSets(Regulariser):
    """A regulariser of how the elements of a set lie to each other: the sum of a mean over each modality's sets.

    Args:
        weight: of the term in the loss.
        on: `residual`, what an aggregator adds to a global vector for each element, or, from one that works
            otherwise, the embedding; or `embedding`, always.
    """

    def __init__(self, *, weight: float, on: str = "residual") -> None:
        super().__init__(weight=weight)
        if on not in ("residual", "embedding"):
            raise InputError(f"on must be 'residual' or 'embedding', not {on!r}")
        self.on = on

    @abstractmethod
    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        """Return the term, a scalar mean over sets, from the cosines of each set's elements with each other."""

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the sum over modalities; one whose embeddings are single vectors adds nothing.

        Raises:
            InputError: the embeddings of both are single vectors.
        """
        sides = [self._elements(encoded) for encoded in (visual, text)]
        sets = [x_BKD for x_BKD in sides if x_BKD.ndim == 3 and x_BKD.shape[1] > 1]
        if not sets:
            raise InputError(
                f"{self.name} compares the elements of a set, and every embedding is a single vector; leave it out, or "
                "choose an aggregator that makes several, such as slots(k=4)"
            )
        return torch.stack([self.of_sets(x_BKD @ x_BKD.mT) for x_BKD in map(l2_normalise, sets)]).sum()

    def _elements(self, encoded: Embeddings) -> Tensor:
        if self.on == "residual" and encoded.residual is not None:
            return encoded.residual
        return encoded.vectors
