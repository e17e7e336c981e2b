"""Sets whose first vectors say most, so that as many are compared as an evaluation asks for.

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
    """Two branches that make sets of vectors, trained by the mean of the objective over nested groups of these.

    A group is the first k vectors of each set; a side with fewer has all of its own. `evaluate --vectors K` then
    compares the first K. Aggregators with learned queries make such sets, as `map(k=16)` and `qformer(k=16)`; the
    similarity of the paper is `maxsim`, of one direction.

    Deviations: the paper's learned tokens are read by the whole of a vision-language model, and here by the aggregator;
    its groups are pairs of a count of queries and one of candidates, such as (1, 1), (2, 4) and (4, 8).

    Args:
        parts: builds encoders, aggregators, similarity and objective.
        vectors: how many vectors each group has, ascending. The last group is all of them, also where it is not named.

    Raises:
        InputError: `vectors` is not ascending counts, or names more than there are; an aggregator makes single vectors
            or sets of any size, or looks at the other modality.
    """

    def __init__(self, parts: Parts, *, vectors: str = "1 4") -> None:
        visual, text, similarity = parts.both_sides()
        counts = [side.aggregator.num_embeddings or 0 for side in (visual, text)]
        sizes = _ascending(vectors)
        if look_at_each_other(visual, text):
            raise InputError(
                "the model 'matryoshka' encodes each side alone, and an aggregator looks at the other; choose one that "
                "does not, such as --aggregator 'map(k=16)'"
            )
        if min(counts) == 0 or max(counts) < 2 or sizes[-1] > max(counts):
            raise InputError(
                f"the model 'matryoshka' compares the first {vectors} vectors of each set, and the aggregators make "
                f"{counts[0] or 'any number'} of an image or video and {counts[1] or 'any number'} of a text: choose "
                "one that makes a fixed number, such as --aggregator 'map(k=16)', and smaller groups"
            )
        super().__init__(visual, text, similarity, parts.objective(), parts.regularisers())
        self.groups = tuple(size for size in sizes if size < max(counts))

    def objective_terms(
        self, scored: Scored, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the terms of all vectors, with `loss` the mean over the groups and `loss_K` that of each."""
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
    """Read ascending counts.

    Raises:
        InputError: they are none.
    """
    words = vectors.split()
    if words and all(re.fullmatch("[1-9][0-9]*", word) for word in words):
        sizes = [int(word) for word in words]
        if all(one < next_one for one, next_one in pairwise(sizes)):
            return sizes
    raise InputError(
        f"matryoshka(vectors={vectors!r}): expected ascending numbers of vectors, such as vectors='1 4 16'"
    )
