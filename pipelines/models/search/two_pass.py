"""Two passes over sets of vectors: products of encodings choose candidates, and the similarity ranks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from polypool.pipelines.models.search.encodings import (
    Components,
    FixedDimensional,
    Means,
    encoded,
)
from polypool.pipelines.models.search.faiss_index import Faiss
from polypool.pipelines.models.search.indices import AT, Exact, PairScore, TopK, top_k
from polypool.pipelines.models.search.stored import Binary, Float32, Int8, Stored

RECALL = 0.97  # of the ten best, that candidates must hold for the first half of the sample
MARGIN = 1.5  # times as many candidates
LEAST = 100  # candidates
RESCORED = 200  # of candidates ranked by bits, that are ranked again by bytes

Kept = Literal["float32", "int8", "binary"]


class TwoPass:
    """Sets of vectors: products of one vector of each choose candidates, and the similarity itself ranks them.

    That vector is the mean of a set's, or its fixed-dimensional encoding, whichever needs fewer candidates. How many
    must be candidates is measured, for one half of a sample of queries, by where the ten best of an exact search come
    among products; and what is then found of the ten best is measured for the other half.

    Args:
        embedding_GKD: the gallery's sets.
        score: the similarity itself.
        sample: queries, `(S, D)` or `(S, K, D)`, like those to come.
        kept: how vectors are kept; `binary` ranks candidates by bits, and the best of them by bytes that are on disk.
        faiss: look for candidates by faiss.

    Attributes:
        recall: share of the ten best of an exact search that is found, for the second half of the sample.
        about: what was chosen and measured.
    """

    def __init__(
        self,
        embedding_GKD: Tensor,
        score: PairScore,
        sample: Tensor,
        *,
        kept: Kept = "float32",
        faiss: bool = False,
    ) -> None:
        self.score, self.faiss = score, None
        best_SK = torch.stack([top.place_K for top in Exact(embedding_GKD, score).top(sample, AT)])
        chosen, held = slice(0, None, 2), slice(1, None, 2)
        with torch.inference_mode():
            self._choose(embedding_GKD, sample[chosen], best_SK[chosen])
            if faiss:
                self.faiss = Faiss(self.encoded_GF, self.encoding.queries(sample[chosen]), at=self.candidates)
            self.second: Stored | None = Int8(embedding_GKD, on_disk=True) if kept == "binary" else None
            kinds = {"float32": Float32, "int8": Int8, "binary": Binary}
            self.stored: Stored = kinds[kept](embedding_GKD)
        held = held if len(sample) > 1 else chosen
        self.recall = self._found(sample[held], best_SK[held])
        self.about = self._about(len(sample[held]))

    def _found(self, queries: Tensor, best_SK: Tensor) -> float:
        """Return the share of the best of queries that is found."""
        found = zip(self.top(queries, AT), best_SK, strict=True)
        return sum(int(torch.isin(top.place_K, best_K).sum()) for top, best_K in found) / best_SK.numel()

    def _choose(self, embedding_GKD: Tensor, sample: Tensor, best_SK: Tensor) -> None:
        """Set the encoding that needs the fewest candidates, the gallery's encodings, and how many candidates."""
        self.candidates = len(embedding_GKD) + 1
        for encoding in self._encodings(embedding_GKD):
            encoded_GF = encoded(encoding, embedding_GKD)
            rank_SK = _ranks(encoding.queries(sample), encoded_GF, best_SK.to(embedding_GKD.device))
            needed = int(rank_SK.flatten().double().quantile(RECALL, interpolation="higher"))
            candidates = min(len(embedding_GKD), max(LEAST, int(MARGIN * needed)))
            if candidates < self.candidates:
                self.encoding, self.encoded_GF, self.candidates = encoding, encoded_GF, candidates

    def _encodings(self, embedding_GKD: Tensor) -> Iterator[Means | Components]:
        yield Means()
        if self.candidates > LEAST:  # which no other encoding needs less of
            fixed = FixedDimensional(
                embedding_GKD.shape[2], device=embedding_GKD.device, dtype=embedding_GKD.dtype
            )
            yield Components(fixed, embedding_GKD)

    def _about(self, queries: int) -> str:
        kept = self.stored.nbytes + self.encoded_GF.nbytes
        again = f", the best {RESCORED} again by int8 on disk" if self.second else ""
        return (
            f"{len(self.encoded_GF):,} sets in two passes: {self.encoding.name} of {self.encoded_GF.shape[1]} numbers "
            f"{'by faiss ' if self.faiss else ''}choose {self.candidates:,} candidates, ranked by {self.stored.name} "
            f"vectors{again}; recall@{AT} {self.recall:.3f} of the exact search (for {queries} queries), "
            f"{kept / 2**20:,.0f} MiB"
        )

    def top(self, queries: Tensor, k: int) -> list[TopK]:
        """Return the k best for each query, as far as they are candidates."""
        return [self._top(query, k) for query in queries.split(1)]

    @torch.inference_mode()
    def _top(self, query: Tensor, k: int) -> TopK:
        times = -(-k // AT)
        place_C = self._candidates(self.encoding.queries(query), self.candidates * times)
        if self.second and len(place_C) > RESCORED * times:
            score_C = self.score(self.stored.sets(place_C), query).flatten()
            place_C = place_C[score_C.topk(RESCORED * times).indices].sort().values
        stored = self.second or self.stored
        score_C = self.score(stored.sets(place_C), query).float().cpu().flatten()
        chosen, score_K = top_k(score_C, k)
        return TopK(place_C.cpu()[chosen], score_K)

    def _candidates(self, query_1F: Tensor, count: int) -> Tensor:
        """Return the places of candidates, in the gallery's order."""
        count = min(count, len(self.encoded_GF))
        if self.faiss:
            (first,) = self.faiss.top(query_1F, count)
            return first.place_K.to(self.encoded_GF.device).sort().values
        return (self.encoded_GF @ query_1F[0]).topk(count, sorted=False).indices.sort().values


def _ranks(query_SF: Tensor, encoded_GF: Tensor, best_SK: Tensor) -> Tensor:
    """Return how many of a gallery are at least as near as each of the best, `(S, K)`."""
    ranks = []
    for query_F, best_K in zip(query_SF, best_SK, strict=True):
        first_G = encoded_GF @ query_F
        ranks.append((first_G >= first_G[best_K][:, None]).sum(dim=1))
    return torch.stack(ranks)
