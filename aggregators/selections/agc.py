"""Attention-guided clustering (AGC, Qin et al., "Multi-vector index compression in any modality", 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.attention import check_heads
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("agc")
class AttentionGuidedClustering(Aggregator):
    """Clusters around the k most salient elements; a vector is the saliency-weighted mean of a cluster.

    Saliency is the mean over learned queries of a softmax over the elements of their attention, averaged over heads. As
    in the authors' code, this softmax is over attention weights, not logits: two saliencies differ by a factor of at
    most e. Each element belongs to the centre with the highest cosine. Centres and clusters are chosen without
    gradient; the queries learn from the weights. Sets with fewer than k elements have as many vectors as elements. The
    paper compares all tokens of a query with the vectors of a document: `--aggregator agc --text-aggregator late
    --similarity 'maxsim(over=text)'`.

    Deviations: the authors' queries are tokens that pass through the language model with the document, and the
    attention is its last layer's; here the queries are learned for a single attention layer over the elements.

    Args:
        dim: width of the elements; `heads` must divide it.
        k: maximum number of vectors; 32 in the published models.
        queries: number of learned queries; 32 in the published models.
        heads: attention heads.
    """

    num_embeddings = None
    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, queries: int = 8, heads: int = 8) -> None:
        super().__init__()
        check_counts(k=k, queries=queries)
        check_heads(dim, heads)
        self.k = k
        self.query_QHE = nn.Parameter(torch.randn(queries, heads, dim // heads))
        self.key = nn.Linear(dim, dim, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return means `(B, K, D)`, by descending saliency of their centres, and weights `(B, K, N)`.

        Both are zero where a set has fewer than K elements, or a centre equals a more salient one.
        """
        size = mask_BN.shape[1]
        more = max(0, self.k - size)
        mask_BN = nn.functional.pad(mask_BN, (0, more))
        x_BND = nn.functional.pad(zero_pads(x_BND, mask_BN[:, :size]), (0, 0, 0, more))
        saliency_BN = self._saliency(x_BND, mask_BN)
        centre_BK = saliency_BN.topk(self.k, dim=1).indices
        unit_BND = unit_length(x_BND.detach())
        with torch.autocast(x_BND.device.type, enabled=False):
            cosine_BNK = unit_BND @ unit_BND.gather(1, centre_BK[..., None].expand(-1, -1, x_BND.shape[2])).mT
        # padded centres attract no element: they occur only where every real element is a centre
        member_BKN = nn.functional.one_hot(cosine_BNK.argmax(dim=2), self.k).mT * saliency_BN[:, None]
        weight_BKN = (member_BKN / member_BKN.sum(dim=2, keepdim=True).clamp(min=1e-8)).to(x_BND.dtype)
        return Pooled(weight_BKN @ x_BND, weights=weight_BKN[..., :size])

    def _saliency(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the saliency of each element, `(B, N)`, in float32 at least; 0 in the padding, with a sum of 1."""
        heads, width = self.query_QHE.shape[1:]
        query_QHD = torch.einsum("qhe,hed->qhd", self.query_QHE, self.key.weight.unflatten(0, (heads, width)))
        logit_BQHN = torch.einsum("qhd,bnd->bqhn", query_QHD * width**-0.5, x_BND)
        logit_BQHN = logit_BQHN.to(torch.promote_types(logit_BQHN.dtype, torch.float32))
        attention_BQN = softmax_over_elements(logit_BQHN, mask_BN[:, None, None]).mean(dim=2)
        return softmax_over_elements(attention_BQN, mask_BN[:, None]).mean(dim=1)
