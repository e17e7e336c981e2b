"""Set prediction by queries that do not compete: the baseline of DivE's ablation (CVPR 2023, table 3, right)."""

from __future__ import annotations

from torch import Tensor

from aggregators.sets.slots import Slots
from infra.registry import AGGREGATORS


@AGGREGATORS.register("transformer_set")
class TransformerSet(Slots):
    """`slots` with the softmax over the elements, as in a transformer, so that all queries may look at the same ones.

    Parameters, weights and norms are those of `slots`: the two differ in this softmax alone.
    """

    def shares(self, logit_BKHN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return what each query takes of every element `(B, K, H, N)`: a softmax over the elements."""
        return logit_BKHN.masked_fill(~mask_BN[:, None, None], float("-inf")).softmax(dim=-1)
