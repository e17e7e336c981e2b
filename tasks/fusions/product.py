"""Two embeddings multiplied, element by element, so that each can switch on and off what the other says.

So fuses the bottom-up-attention baseline of visual question answering (Anderson et al., CVPR 2018, section 3.3).
"""

from __future__ import annotations

from torch import Tensor

from polypool.encoders.encoder import xavier_linear
from polypool.infra.compute.dropout import Dropout
from polypool.infra.errors import InputError
from polypool.infra.registry import FUSIONS
from polypool.tasks.fusions.fusion import Fusion


@FUSIONS.register("product")
class Product(Fusion):
    """`dropout(relu(linear(visual)) * relu(linear(text)))`.

    Args:
        visual: width of the image's embedding.
        text: width of the question's.
        width: of the result; that of the wider embedding where None.
        dropout: fraction of the result dropped in training.
    """

    def __init__(self, visual: int, text: int, *, width: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = max(visual, text) if width is None else width
        if self.width < 1:
            raise InputError(f"product(width={width}): the width must be at least 1")
        self.visual, self.text = xavier_linear(visual, self.width), xavier_linear(text, self.width)
        self.dropout = Dropout(dropout)

    def forward(self, visual_BV: Tensor, text_BT: Tensor) -> Tensor:
        return self.dropout(self.visual(visual_BV).relu() * self.text(text_BT).relu())
