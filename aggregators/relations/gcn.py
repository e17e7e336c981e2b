"""A graph of the elements, then another aggregator: GCN in table 1 of VSE-infinity, from VSRN (Li et al. 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("gcn")
class GCN(Aggregator):
    """Layers in which every element adds what the others send it, then another aggregator over the new elements.

    `gcn(then=mean)` is GCN+AvgPool of the table (4.2 M weights), `gcn(then=seq2seq, layers=4)` is GCN+Seq2Seq
    (23.1 M) and the image encoder of VSRN. Elements are brought to unit length before and after, for a message is cubic
    in their length; VSRN's code divides each channel by its length over the elements there. Number of vectors, what
    they are, width, context, symmetry and weights are those of the inner aggregator.

    Args:
        dim: width of the elements.
        then: spec of the inner aggregator.
        layers: number of rounds of messages, each with separate weights.
    """

    def __init__(self, dim: int, *, then: str = "mean", layers: int = 1) -> None:
        super().__init__()
        if not isinstance(layers, int) or layers < 1:
            raise ValueError(f"layers must be a whole number of at least 1, not {layers!r}")
        self.layers = nn.ModuleList(Reasoning(dim) for _ in range(layers))
        self.then: Aggregator = AGGREGATORS.build(then, dim)
        self.num_embeddings, self.width = self.then.num_embeddings, self.then.width
        self.makes = self.then.makes
        self.context, self.takes_global_feature = self.then.context, self.then.takes_global_feature
        self.symmetric, self.weights_over = self.then.symmetric, self.then.weights_over

    def reason(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` elements after all messages, of unit length; zero in the pads."""
        x_BND = unit(zero_pads(x_BND, mask_BN))
        for layer in self.layers:
            x_BND = layer(x_BND, mask_BN)
        return unit(zero_pads(x_BND, mask_BN))

    def forward(self, x_BND: Tensor, mask_BN: Tensor, **beside: Any) -> Pooled:
        """Return what the inner aggregator makes of the new elements, its weights over them included.

        A context or a global feature goes to it as it is, so the graph runs once a set for any number of contexts.
        """
        return self.then(self.reason(x_BND, mask_BN), mask_BN, **beside)


class Reasoning(nn.Module):
    """One layer of VSRN: x + W_r(R W_g x), where R is the product of two maps of x, divided by the set's size.

    There is no softmax. The last map starts at zero, so at first a layer changes nothing; the authors' code reaches
    the same by a batch normalisation with scale zero, which is left out here as in the paper's equations.
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
        """Return the `(B, N, D)` elements with what they were sent; pads send nothing."""
        relation_BNN = self.receive(x_BND) @ self.send(x_BND).transpose(1, 2)
        relation_BNN = relation_BNN / mask_BN.sum(dim=1)[:, None, None]
        return x_BND + self.update(relation_BNN @ zero_pads(self.message(x_BND), mask_BN))


def unit(x_BND: Tensor) -> Tensor:
    """Return the elements `(B, N, D)` at unit length; a zero stays zero."""
    return x_BND / x_BND.norm(dim=-1, keepdim=True).clamp(min=1e-6)
