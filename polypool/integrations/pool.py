"""An aggregator as a module from a tensor to a tensor, such as the head of a timm transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import one_vector_aggregator


class Pool(nn.Module):
    """An aggregator that returns one vector per set.

    In a vision transformer of timm it replaces `global_pool`, and pools the patches without the class token::

        model = timm.create_model("vit_small_patch14_dinov2", num_classes=10)
        model.attn_pool = Pool("gpo", model.embed_dim)

    Attributes:
        aggregator: the aggregator.
        width: of the vectors.
    """

    def __init__(self, spec: str, dim: int) -> None:
        """Build the aggregator of a spec.

        Args:
            spec: of a registered aggregator, such as `gpo` or `kmax(k=5)`.
            dim: width of the elements.

        Raises:
            InputError: an unknown aggregator, or one that does not return one vector per set.
        """
        super().__init__()
        self.aggregator = one_vector_aggregator(spec, dim, parameter="spec")
        self.width = self.aggregator.width or dim

    def forward(self, x_BND: Tensor, mask_BN: Tensor | None = None) -> Tensor:
        """Return the `(B, D)` vectors.

        Args:
            x_BND: the sets' elements.
            mask_BN: True or not 0 for real elements; all are real if None.
        """
        if mask_BN is None:
            mask_BN = torch.ones(x_BND.shape[:2], dtype=torch.bool, device=x_BND.device)
        return self.aggregator(x_BND, mask_BN.bool()).vectors
