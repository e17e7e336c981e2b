"""Sets of vectors in two passes: the best pairs of elements choose candidates, and the similarity itself ranks them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipelines.searching.best import Best, best, best_of_parts
from pipelines.searching.exact import Exact, Score, parts_of

AT = 10  # the recall that counts is that of the ten best
MARGIN = 3  # times as many candidates as the hardest query of the sample needed
LEAST = 100  # candidates
GUIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda largest_GL: largest_GL.mean(dim=1),
    "largest": lambda largest_GL: largest_GL.amax(dim=1),
}


class TwoPass:
    """Ranks the candidates of a first pass exactly.

    The first pass takes, for each element of the query, the largest product with one of a set's: one product of
    matrices and a maximum. A set's score is the mean of them, or the largest, whichever is the better guide. That, and
    how many of the first pass's best are candidates, is measured: where, among them, the ten that are really best lie
    for a sample of queries.

    Args:
        embedding_GKD: the gallery's sets.
        score: the similarity itself.
        sample: queries, `(S, D)` or `(S, K, D)`, of the kind that will be asked.
    """

    def __init__(self, embedding_GKD: Tensor, score: Score, sample: Tensor) -> None:
        self.embedding_GKD, self.score = embedding_GKD, score
        depths = [self._depths(query[None]) for query in sample]
        needed = {name: max(depth[name] for depth in depths) for name in GUIDES}
        self.guide = min(needed, key=needed.get)
        self.candidates = min(len(embedding_GKD), max(LEAST, MARGIN * needed[self.guide]))

    @torch.inference_mode()
    def _depths(self, query: Tensor) -> dict[str, int]:
        """Return how many candidates hold the ten best of a query, by what guides their choice."""
        place_K = Exact(self.embedding_GKD, self.score).top(query, AT).place_K.to(self.embedding_GKD.device)
        largest_GL = torch.cat([_largest(part, query) for part in parts_of(self.embedding_GKD)])
        depths = {}
        for name, pool in GUIDES.items():
            first_G = pool(largest_GL)
            depths[name] = int((first_G >= first_G[place_K].min()).sum())
        return depths

    @torch.inference_mode()
    def top(self, query: Tensor, k: int) -> Best:
        """Return the k best for one query, as far as they are candidates."""
        count = self.candidates * -(-k // AT)
        pool = GUIDES[self.guide]
        first = best_of_parts((pool(_largest(part, query)) for part in parts_of(self.embedding_GKD)), count)
        place_C = first.place_K.sort().values
        score_C = self.score(self.embedding_GKD[place_C.to(self.embedding_GKD.device)], query).float().cpu()
        chosen, score_K = best(score_C, k)
        return Best(place_C[chosen], score_K)


def _largest(part_PKD: Tensor, query: Tensor) -> Tensor:
    """Return the `(P, L)` largest products of each of the query's L elements with one of a set's."""
    return (part_PKD @ query.reshape(-1, query.shape[-1]).T).amax(dim=1)
