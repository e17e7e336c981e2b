"""Graph convolution, then another aggregator: GCN in table 1 of VSE-infinity, from VSRN (Li et al. 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("gcn")
class GCN(Aggregator):
    """Layers of message passing between all elements, then another aggregator over the updated elements.

    `gcn(then=mean)` is GCN+AvgPool of the table (4.2 M parameters); `gcn(then=seq2seq, layers=4)` is GCN+Seq2Seq (23.1
    M) and VSRN's image encoder. Elements are L2-normalised before and after, because a message is cubic in their norm;
    VSRN's code divides each channel by its norm over the elements. Number and kind of vectors, width, context, symmetry
    and weights are the inner aggregator's.

    Args:
        dim: width of the elements.
        then: spec of the inner aggregator.
        layers: number of message-passing layers, each with separate weights.
    """

    def __init__(self, dim: int, *, then: str = "mean", layers: int = 1) -> None:
        super().__init__()
        check_counts(layers=layers)
        self.layers = nn.ModuleList(Reasoning(dim) for _ in range(layers))
        self.then: Aggregator = AGGREGATORS.build(then, dim)
        self.num_embeddings, self.width = self.then.num_embeddings, self.then.width
        self.makes = self.then.makes
        self.context, self.takes_global_feature = self.then.context, self.then.takes_global_feature
        self.symmetric, self.weights_over = self.then.symmetric, self.then.weights_over

    def reason(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the elements `(B, N, D)` after all layers, L2-normalised; 0 in the padding."""
        x_BND = normalize(zero_pads(x_BND, mask_BN), dim=-1, eps=1e-6)
        for layer in self.layers:
            x_BND = layer(x_BND, mask_BN)
        return normalize(zero_pads(x_BND, mask_BN), dim=-1, eps=1e-6)

    def forward(self, x_BND: Tensor, mask_BN: Tensor, **optional: Any) -> Pooled:
        """Return the inner aggregator's output for the updated elements, including its weights over them.

        Context and global feature are passed on unchanged, so the graph runs once per set for any number of contexts.
        """
        return self.then(self.reason(x_BND, mask_BN), mask_BN, **optional)


class Reasoning(nn.Module):
    """One layer of VSRN: x + W_r(R W_g x), where R is the product of two maps of x, divided by the set's size.

    R has no softmax. The last map starts at zero, so a layer starts as the identity; the authors' code achieves this by
    a batch norm with scale zero, which is omitted here as in the paper's equations.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.receive = nn.Linear(dim, dim)
        self.send = nn.Linear(dim, dim)
        self.message = nn.Linear(dim, dim)
        self.update = nn.Linear(dim, dim)
        nn.init.zeros_(self.update.weight)
        nn.init.zeros_(self.update.bias)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the updated elements `(B, N, D)`; padding sends no messages."""
        relation_BNN = self.receive(x_BND) @ self.send(x_BND).transpose(1, 2)
        relation_BNN = relation_BNN / mask_BN.sum(dim=1)[:, None, None]
        return x_BND + self.update(relation_BNN @ zero_pads(self.message(x_BND), mask_BN))
