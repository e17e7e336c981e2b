"""Fusions of an image's and a question's embedding to one vector, from which answers are predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from polypool.encoders.encoder import xavier_linear
from polypool.infra.compute.dropout import Dropout
from polypool.infra.fields import at_least, require
from polypool.infra.registry import FUSIONS


class Fusion(nn.Module, ABC):
    """Fuses two embeddings, `(B, V)` and `(B, T)` -> `(B, W)`.

    Constructors take the two widths first: `Fusion(visual, text, *, ...)`.
    """

    width: int
    """Output width W."""

    @abstractmethod
    def forward(self, visual_BV: Tensor, text_BT: Tensor) -> Tensor:
        """Return the `(B, W)` fusions of the b-th embedding of one modality with the b-th of the other."""


@FUSIONS.register("concat")
class Concat(Fusion):
    """The concatenation (Stefanini et al., ICPR 2020, section III-C).

    Args:
        visual: width of the image's embedding.
        text: width of the question's.
        dropout: fraction of the result dropped in training; the paper has none here.
    """

    def __init__(self, visual: int, text: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = visual + text
        self.dropout = Dropout(dropout)

    def forward(self, visual_BV: Tensor, text_BT: Tensor) -> Tensor:
        return self.dropout(torch.cat((visual_BV, text_BT), dim=1))


@FUSIONS.register("product")
class Product(Fusion):
    """`dropout(relu(linear(visual)) * relu(linear(text)))`.

    Source: the bottom-up-attention baseline (Anderson et al., CVPR 2018, section 3.3).

    Args:
        visual: width of the image's embedding.
        text: width of the question's.
        width: of the result; None for the width of the wider embedding.
        dropout: fraction of the result dropped in training.
    """

    def __init__(self, visual: int, text: int, *, width: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = max(visual, text) if width is None else width
        require(at_least(1), width=self.width)
        self.visual, self.text = xavier_linear(visual, self.width), xavier_linear(text, self.width)
        self.dropout = Dropout(dropout)

    def forward(self, visual_BV: Tensor, text_BT: Tensor) -> Tensor:
        return self.dropout(self.visual(visual_BV).relu() * self.text(text_BT).relu())
