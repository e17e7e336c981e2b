"""Base class of similarities, and similarities of single vectors and of distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.vectors import at_least_float32, mean_and_log_variance, uncertainty

Side = Literal["visual", "text"]


class Similarity(nn.Module, ABC):
    """Scores `(Q, G)` of Q embeddings, `(Q, D)` or `(Q, K, D)`, against G, `(G, D)` or `(G, L, D)`.

    Higher is more similar. Queries are images or videos and the gallery texts; `between` is for other sides. Each
    pair's score is independent of the others, because evaluation computes blocks. Learned values are `nn.Parameter`s:
    the similarity is a module of the model, and trained, saved and moved with it as `similarity.<name>`.
    """

    of_sets: bool
    """Whether embeddings are sets (a single vector is a set of one) instead of single vectors."""
    of_any_size: bool = False
    """Whether zero vectors are padding, so that sets of different sizes fit one tensor."""
    of_distributions: bool = False
    """Whether embeddings must be Gaussians `(B, 2, D)`, mean and log-variance; then `of_sets` is False."""
    symmetric: bool = True
    """Whether the score is independent of the sides; callers then need no `between`."""
    takes_width: bool = False
    """Whether the constructor takes the width of the embeddings first."""

    @staticmethod
    def build(spec: str, width: int | None) -> Similarity:
        """Build the similarity of a spec, for embeddings of a width.

        Raises:
            InputError: an unknown name, or it needs the width and that is None.
        """
        if not SIMILARITIES.part(spec).takes_width:
            return SIMILARITIES.build(spec)
        if width is None:
            raise InputError(
                f"the similarity {spec!r} learns from embeddings of one width, and the model does not name it; choose "
                "another similarity, or pass width= to Parts.similarity"
            )
        return SIMILARITIES.build(spec, width)

    @abstractmethod
    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the scores `(Q, G)`; additional memory must not grow with Q * G."""

    def between(self, query: Side, gallery: Side) -> Similarity:
        """Return the similarity for other sides, such as texts and texts, with the same weights."""
        return self

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the scores `(P,)` of the p-th query against the p-th of the gallery: the diagonal of `forward`.

        For models whose embeddings depend on the pair. Override it if the diagonal is cheaper than all P * P scores.
        """
        return self(query, gallery).diagonal()


@SIMILARITIES.register("cosine")
class Cosine(Similarity):
    """The dot product of unit vectors."""

    of_sets = False

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        assert query.ndim == gallery.ndim == 2, "Parts.similarity refuses sets"
        return query @ gallery.T

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        assert query.ndim == gallery.ndim == 2, "Parts.similarity refuses sets"
        return (query * gallery).sum(dim=-1)


@SIMILARITIES.register("csd")
class ClosedFormSampledDistance(Similarity):
    """The negative expected squared distance between samples of two distributions (PCME++, equation 1).

    |difference of means|^2 plus the variances of all channels of both. As in the authors' `eval_by_csd`, it is also
    used for ranking: of equally near items the more certain one is first.

    The distance is computed from a product of the means and a number for each row and column, in at least float32. The
    variances, which may be large compared with differences of distances, are added last, so the error is 1e-7 relative
    to the largest term of a score.
    """

    of_sets = False
    of_distributions = True

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        mean_QD, square_Q, spread_Q = _parts(query)
        mean_GD, square_G, spread_G = _parts(gallery)
        score_QG = (2 * mean_QD) @ mean_GD.T
        for of_row, of_column in ((square_Q, square_G), (spread_Q, spread_G)):  # in place: no second matrix
            score_QG.sub_(of_row[:, None]).sub_(of_column)
        return score_QG

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        mean_PD, _, spread_P = _parts(query)
        other_PD, _, other_P = _parts(gallery)
        return -(mean_PD - other_PD).square().sum(dim=-1) - (spread_P + other_P)


def _parts(embedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means `(B, D)`, their squared norms `(B,)` and the sums of the variances `(B,)`."""
    mean_BD, log_variance_BD = mean_and_log_variance(at_least_float32(embedding))
    return mean_BD, mean_BD.square().sum(dim=-1), uncertainty(log_variance_BD)
