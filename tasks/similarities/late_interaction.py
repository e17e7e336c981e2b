"""Late interaction of sets of any size: similarity by each element's nearest element in the other set."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from polypool.infra.fields import at_least, one_of, require
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.blocks import as_sets, in_blocks
from polypool.tasks.similarities.similarity import Side, Similarity
from polypool.tasks.similarities.vectors import real_vectors, widened


@SIMILARITIES.register("maxsim")
class MaxSim(Similarity):
    """The mean over elements of the maximum cosine with the other set, averaged over both directions.

    `chamfer` for sets of different sizes: zero vectors are padding, which is masked, so that it never exceeds a
    negative cosine. An empty set scores 0.

    Sources: Yao et al., "FILIP", ICLR 2022, equations 4 and 5, whose loss uses a different direction for each retrieval
    task; here both tasks use the mean of the directions. Khattab and Zaharia, "ColBERT", SIGIR 2020, equation 3, is a
    sum over the query only; `over=text` is the mean over the text.

    Args:
        over: modality over whose elements the mean is taken: `both`, `text` or `visual`. Two sets of the other modality
            are compared in both directions.
    """

    of_sets = True
    of_any_size = True

    sides: tuple[Side, Side] = ("visual", "text")
    """Modalities of queries and gallery."""

    def __init__(self, *, over: str = "both") -> None:
        super().__init__()
        require(one_of("both", "text", "visual"), over=over)
        self.over, self.symmetric = over, over == "both"

    def between(self, query: Side, gallery: Side) -> Similarity:
        other = copy.copy(self)  # with the same weights
        other.sides = query, gallery
        return other

    def weights(self, x_BKD: Tensor, real_BK: Tensor, side: Side) -> Tensor:
        """Return the weight of each element of a side's sets, `(B, K)`: 0 in the padding, with a sum of 1."""
        return real_BK / real_BK.sum(dim=1, keepdim=True).clamp(min=1).to(x_BKD.dtype)

    def _both_weights(self, *sets: tuple[Tensor, Tensor]) -> list[Tensor | None]:
        """Return the weights of both sides; None for a side whose elements are not averaged."""
        every = self.over == "both" or self.over not in self.sides
        return [
            self.weights(x_BKD, real_BK, side) if every or side == self.over else None
            for (x_BKD, real_BK), side in zip(sets, self.sides, strict=True)
        ]

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_QKD, gallery_GLD = as_sets(query, gallery)
        real_QK, real_GL = real_vectors(query_QKD), real_vectors(gallery_GLD)
        weights = self._both_weights((query_QKD, real_QK), (gallery_GLD, real_GL))
        weight_QK, weight_GL = weights

        def combine(cosine_QKLG: Tensor, rows: slice, columns: slice) -> Tensor:
            return _closest(
                cosine_QKLG,
                (real_QK[rows, :, None], None if weight_QK is None else weight_QK[rows, :, None]),
                (real_GL[columns].T[None], None if weight_GL is None else weight_GL[columns].T[None]),
            )

        learned = [part for part in weights if part is not None and part.requires_grad]
        return in_blocks(combine, query_QKD, gallery_GLD, learned)

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_PKD, gallery_PLD = as_sets(query, gallery)
        real_PK, real_PL = real_vectors(query_PKD), real_vectors(gallery_PLD)
        weight_PK, weight_PL = self._both_weights((query_PKD, real_PK), (gallery_PLD, real_PL))
        return _closest(
            (query_PKD @ gallery_PLD.mT)[..., None],
            (real_PK[..., None], None if weight_PK is None else weight_PK[..., None]),
            (real_PL[..., None], None if weight_PL is None else weight_PL[..., None]),
        ).squeeze(1)


@SIMILARITIES.register("mms")
class MeanMaxSim(MaxSim):
    """The mean over a text's elements of the maximum cosine with a video's, summed over the video's two levels.

    For videos whose elements alternate between two levels, such as the output of the aggregator `video_colbert`. Two
    videos are compared level by level, in both directions, and two texts in both directions. A single vector belongs to
    the first level; an empty level scores 0.

    Source: Reddy et al., "Video-ColBERT", CVPR 2025. The public implementation that the aggregator follows compares
    unnormalised elements.
    """

    def __init__(self) -> None:
        super().__init__(over="text")

    def level(self, query: Tensor, gallery: Tensor, level: int) -> Tensor:
        """Return the scores `(Q, G)` of one level: 0, even elements of a video, or 1, odd ones."""
        return super().forward(*self._of_level((query, gallery), level))

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        return self.level(query, gallery, 0) + self.level(query, gallery, 1)

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        score = super().pairs
        return score(*self._of_level((query, gallery), 0)) + score(*self._of_level((query, gallery), 1))

    def _of_level(self, sets: tuple[Tensor, Tensor], level: int) -> list[Tensor]:
        both = zip(as_sets(*sets), self.sides, strict=True)
        return [widened(x, max(2, x.shape[1]))[:, level::2] if side == "visual" else x for x, side in both]


@SIMILARITIES.register("wti")
class WeightedTokenInteraction(MaxSim):
    """`maxsim` with weighted means: an MLP scores each element, and a softmax over the set gives the weights.

    With cosines c_kl, ((sum over k of w_k max over l of c_kl) + (sum over l of v_l max over k of c_kl)) / 2, where w =
    softmax(MLP(x)) is over the elements of an image or video, and v, from a separate MLP, over a text's elements.

    Source: Wang et al., "Disentangled representation learning for text-video retrieval" (DRL), 2022, section 3.2, and
    its code. Its MLPs read unnormalised elements, here L2-normalised ones. There the cosine with padding is 0, so
    padding is nearer than an element with a negative cosine; here padding is masked.

    Args:
        dim: width of the elements.
        layers: number of linear maps of each MLP; the code has 1 to 3.
    """

    takes_width = True

    def __init__(self, dim: int, *, layers: int = 2) -> None:
        super().__init__()
        self.symmetric = False
        require(at_least(1), layers=layers)
        self.visual, self.text = _mlp(dim, layers), _mlp(dim, layers)

    def weights(self, x_BKD: Tensor, real_BK: Tensor, side: Side) -> Tensor:
        mlp = self.visual if side == "visual" else self.text
        return _softmax(mlp(x_BKD).squeeze(2), real_BK)


def _mlp(dim: int, layers: int) -> nn.Sequential:
    """Return linear maps with ReLU between them; the last has one output, without a bias."""
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(dim, dim), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(dim, 1, bias=False))


def _softmax(score_BK: Tensor, real_BK: Tensor) -> Tensor:
    """Return the softmax over a set's elements; 0 in the padding, and everywhere in an empty set."""
    none_B1 = ~real_BK.any(dim=1, keepdim=True)
    return score_BK.masked_fill(~(real_BK | none_B1), float("-inf")).softmax(dim=1) * real_BK


def _closest(
    cosine_QKLG: Tensor, query_QKg: tuple[Tensor, Tensor | None], gallery_qLG: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Return the mean of the directions with weights, `(Q, G)`; lower-case axes have size one or the full size.

    Args:
        cosine_QKLG: of all elements; overwritten.
        query_QKg: mask of the queries' elements, and their weights.
        gallery_qLG: mask of the gallery's elements, and their weights.
    """
    (real_QKg, weight_QKg), (real_qLG, weight_qLG) = query_QKg, gallery_qLG
    both_QKLG = real_QKg[:, :, None] & real_qLG[:, None]
    cosine_QKLG = cosine_QKLG.masked_fill_(~both_QKLG, float("-inf"))
    weighed = ((2, weight_QKg), (1, weight_qLG))
    means = [_mean(cosine_QKLG.amax(dim=dim), weight) for dim, weight in weighed if weight is not None]
    return sum(means[1:], means[0]) / len(means)


def _mean(largest: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean along axis 1 over elements with a counterpart; 0 without any."""
    return (largest.where(largest != float("-inf"), 0.0) * weight).sum(dim=1)
