"""Nested sets of vectors: evaluation can compare only the first ones.

Xiao et al., "MetaEmbed: scaling multimodal retrieval at test-time with flexible late interaction", ICLR 2026
(matryoshka multi-vector retrieval).
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import MODELS
from polypool.tasks.models.branch import look_at_each_other
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts
from polypool.tasks.models.retrieval_model import Scored
from polypool.tasks.similarities.vectors import first_of


@MODELS.register("matryoshka")
class Matryoshka(DualEncoder):
    """A dual encoder of sets, trained by the mean of the objective over nested groups of vectors.

    A group is the first k vectors of each set; smaller sets are used whole. `evaluate --vectors K` then compares the
    first K. Aggregators with learned queries return such sets, for example `map(k=16)` and `qformer(k=16)`; the paper's
    similarity is `maxsim` in one direction.

    Deviations: the paper's learned tokens are processed by a whole vision-language model, here by the aggregator; its
    groups are pairs of numbers of query and candidate vectors, such as (1, 1), (2, 4) and (4, 8).

    Args:
        parts: builds encoders, aggregators, similarity and objective.
        vectors: number of vectors of each group, ascending. The last group is always the whole set.

    Raises:
        InputError: `vectors` is not ascending or exceeds the sets' size; both aggregators return single vectors; one
            returns sets of any size, or needs the other modality.
    """

    def __init__(self, parts: Parts, *, vectors: str = "1 4") -> None:
        visual, text, similarity = parts.both_sides()
        counts = [side.aggregator.num_embeddings or 0 for side in (visual, text)]
        sizes = _ascending(vectors)
        if look_at_each_other(visual, text):
            raise InputError(
                "the model 'matryoshka' encodes each side separately, and an aggregator needs the other side; choose "
                "another, such as --aggregator 'map(k=16)'"
            )
        if min(counts) == 0 or max(counts) < 2 or sizes[-1] > max(counts):
            raise InputError(
                f"the model 'matryoshka' compares the first {vectors} vectors of each set, and the aggregators return "
                f"{counts[0] or 'any number'} per image or video and {counts[1] or 'any number'} per text: choose an "
                "aggregator with more, such as --aggregator 'map(k=16)', or smaller groups"
            )
        super().__init__(visual, text, similarity, parts.objective(), parts.regularisers())
        self.groups = tuple(size for size in sizes if size < max(counts))

    def objective_terms(
        self, scored: Scored, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the terms for whole sets, `loss` as the mean over the groups, and `loss_K` for each smaller group."""
        terms = super().objective_terms(scored, sim_VT, positive_VT, epoch=epoch)
        embeddings = [side for side in (scored.visual, scored.text) if side is not None]
        losses = [terms["loss"]]
        for size in self.groups:
            visual, text = (side.map(partial(first_of, k=size)) for side in embeddings)
            few = super().objective_terms(scored, self.score(visual, text), positive_VT, epoch=epoch)
            losses.append(few["loss"])
            terms[f"loss_{size}"] = few["loss"].detach()
        return terms | {"loss": sum(losses[1:], losses[0]) / len(losses)}


def _ascending(vectors: str) -> list[int]:
    """Parse ascending counts.

    Raises:
        InputError: the text is not a list of ascending counts.
    """
    words = vectors.split()
    if words and all(re.fullmatch("[1-9][0-9]*", word) for word in words):
        sizes = [int(word) for word in words]
        if all(one < next_one for one, next_one in pairwise(sizes)):
            return sizes
    raise InputError(
        f"matryoshka(vectors={vectors!r}): expected ascending numbers of vectors, such as vectors='1 4 16'"
    )
