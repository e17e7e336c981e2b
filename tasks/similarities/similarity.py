"""The base class of similarities: the score matrix of the embeddings of two modalities."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Similarity(nn.Module, ABC):
    """Scores Q embeddings, `(Q, D)` or `(Q, K, D)`, against G, `(G, D)` or `(G, L, D)`: `(Q, G)`, higher is more alike.

    Queries are images or videos in training and evaluation, and texts or items of the same modality in searches and
    analyses. Each pair is scored by itself, since evaluation computes blocks. What a similarity learns is a
    `nn.Parameter`: it is a module of the model, and trained, saved and moved with it as `similarity.<name>`.
    """

    of_sets: bool
    """True: embeddings are sets, and a single vector counts as a set of one; False: single vectors alone."""
    of_any_size: bool = False
    """True: zero vectors are no elements of a set, so that sets of different sizes lie side by side."""
    of_distributions: bool = False
    """True: embeddings are Gaussians `(B, 2, D)`, a mean and a log-variance, and nothing else; then `of_sets` is
    False."""

    @abstractmethod
    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the `(Q, G)` scores; memory beyond them and the embeddings does not grow with Q * G."""

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the `(P,)` scores of the p-th query against the p-th of the gallery: the diagonal of `forward`.

        For models whose embeddings belong to a pair. Similarities that can do less than all P * P scores for it should.
        """
        return self(query, gallery).diagonal()
