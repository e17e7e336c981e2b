"""The best of one side of a split, found in two passes by a model that looks at every pair."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from infra.compute.device import device_of, on_device
from infra.data import Batch
from pipelines.searching.indices import AT, LEAST, TopK, evenly, top_k
from tasks.models.embeddings import Batches
from tasks.models.padded_sets import PaddedSets, encode_sets
from tasks.models.pair_encoder import PairEncoder
from tasks.models.pair_scores import PairScores
from tasks.scoring.ranking.reranking import best_places, joined


class ProbedGallery:
    """One side of a split, of which the model ranks the candidates of a first pass.

    What is searched is described once by its scores with a sample of queries. A query is scored with as many probes of
    the gallery; what follows for all others, as in `tasks.scoring.ranking.reranking`, chooses candidates, and the model
    ranks these.

    Args:
        model: in evaluation mode.
        side: which side is searched.
        batches: its samples.
        sample: queries, a batch of the other side.
    """

    at_once = 1

    @torch.inference_mode()
    def __init__(
        self, model: PairEncoder, side: Literal["visual", "text"], batches: Batches, sample: Batch
    ) -> None:
        self.model, self.side, self.device = model, side, device_of(model)
        self._encode = {"visual": model.encode_visual, "text": model.encode_text}
        self.sets = encode_sets(self._encode[side], batches, device=self.device)
        probes = [x_ND[mask_N] for x_ND, mask_N in zip(*self._encoded(sample), strict=True)]
        sides = (self.sets, probes) if side == "visual" else (probes, self.sets)
        sim_VT = PairScores(model, visual=sides[0], text=sides[1])(slice(None), slice(None)).double()
        described_GP = sim_VT if side == "visual" else sim_VT.T
        self.probe_P = evenly(len(self.sets), len(probes))
        self.described_PG = (described_GP @ joined(described_GP[self.probe_P])).T

    def _encoded(self, queries: Batch) -> PaddedSets:
        other = "text" if self.side == "visual" else "visual"
        return self._encode[other](on_device(queries, self.device))

    @torch.inference_mode()
    def best(self, queries: Batch, k: int) -> list[TopK]:
        """Return the k best for the query of a batch of one, as far as they are candidates."""
        query = self._encoded(queries)
        first_1G = self._scores(query, self.probe_P).double()[None] @ self.described_PG
        place_C = best_places(first_1G, LEAST * -(-k // AT))[0].sort().values.cpu()
        chosen, score_K = top_k(self._scores(query, place_C.numpy()).cpu(), k)
        return [TopK(place_C[chosen], score_K)]

    def _scores(self, query: PaddedSets, place_C: np.ndarray) -> Tensor:
        some = PaddedSets.pad([self.sets[place] for place in place_C])
        return (
            self.model.score(*((some, query) if self.side == "visual" else (query, some))).float().flatten()
        )
