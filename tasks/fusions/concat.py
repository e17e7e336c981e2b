"""Two embeddings side by side (Stefanini et al., ICPR 2020, section III-C)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import FUSIONS
from polypool.tasks.fusions.fusion import Fusion


@FUSIONS.register("concat")
class Concat(Fusion):
    """The concatenation.

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
