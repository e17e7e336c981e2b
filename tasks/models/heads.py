"""Several dual encoders, each with a loss, trained together as one model; its embedding is the stack of theirs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, require
from polypool.infra.registry import MODELS, SIMILARITIES
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts
from polypool.tasks.models.retrieval_model import Scored
from polypool.tasks.similarities.similarity import Cosine
from polypool.tasks.similarities.vectors import Embeddings


class _Heads(nn.ModuleList):
    def forward(self, x: Tensor, mask_BN: Tensor) -> Embeddings:
        return Embeddings(torch.stack([branch(x, mask_BN).vectors for branch in self], dim=1))


@MODELS.register("heads")
class Heads(DualEncoder):
    """K pairs of branches on the same inputs; the similarity is the mean of their K cosines.

    The loss is the mean of the objective over the pairs. Each pair thus learns independently, with separate initial
    weights and dropout masks, and the mean of their scores is better than each, as in an ensemble. A loss on the mean
    would train one wide encoder.

    Training time, memory and embedding width are K times those of one pair.

    Args:
        parts: builds encoders, aggregators and objective.
        k: number of pairs.

    Raises:
        InputError: an aggregator returns several vectors or a distribution, or needs the other modality; another
            similarity than cosine.
    """

    def __init__(self, parts: Parts, *, k: int = 3) -> None:
        require(at_least(1), k=k)
        visual, text, (similarity, *_) = zip(*(parts.both_sides() for _ in range(k)), strict=True)
        aggregators = visual[0].aggregator, text[0].aggregator
        if not isinstance(similarity, Cosine) or any(each.context != "none" for each in aggregators):
            names = " and ".join(type(each).__name__ for each in aggregators)
            raise InputError(
                f"the model 'heads' compares one vector of each side by cosine, not the vectors of {names} by "
                f"{type(similarity).__name__}; choose aggregators such as mean, and leave out --similarity"
            )
        mean = SIMILARITIES.build("aligned_mean")
        super().__init__(_Heads(visual), _Heads(text), mean, parts.objective(), parts.regularisers())
        self.k = k

    def objective_terms(
        self, scored: Scored, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the means over the heads of the objective's terms."""
        assert scored.visual is not None
        assert scored.text is not None
        found = []
        for head in range(self.k):
            visual, text = (side.map(partial(_only, head)) for side in (scored.visual, scored.text))
            score_VT = self.score(visual, text)
            found.append(super().objective_terms(scored, score_VT, positive_VT, epoch=epoch))
        return {name: torch.stack([terms[name] for terms in found]).mean() for name in found[0]}


def _only(head: int, vectors_BKD: Tensor) -> Tensor:
    return vectors_BKD[:, head : head + 1]
