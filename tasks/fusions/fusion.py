"""The base class of fusions: one vector, from which answers are predicted, of an image's and a question's."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Fusion(nn.Module, ABC):
    """Makes one vector of two embeddings, `(B, V)` and `(B, T)` -> `(B, W)`.

    Constructors take the two widths first: `Fusion(visual, text, *, ...)`.
    """

    width: int
    """Width W of what comes out."""

    @abstractmethod
    def forward(self, visual_BV: Tensor, text_BT: Tensor) -> Tensor:
        """Return the `(B, W)` fusions of the b-th embedding of one modality with the b-th of the other."""
