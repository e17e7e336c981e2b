"""A model that answers questions about images (Stefanini et al., ICPR 2020, sections III-B and III-C)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from encoders.base import xavier_linear
from infra.data import Batch
from infra.errors import InputError
from infra.registry import CROSS_ENCODERS, FUSIONS
from tasks.fusions.base import Fusion
from tasks.models.branch import Branch, look_at_each_other, pool_both, refuse_distributions
from tasks.models.build import Parts
from tasks.similarities.vectors import mean_vector

if TYPE_CHECKING:
    from tasks.run import Run


class VQAModel(nn.Module):
    """Encoders, a cross-modal encoder, aggregators, a feed-forward layer a modality, a fusion and a classifier.

    Batches hold `visual` and `visual_mask` of n images, `text` and `text_mask` of B questions and, where images are
    shared by questions, `image` `(B,)`, the row of each question's image.

    Where an aggregator makes K vectors, their mean goes on. An aggregator that needs a context is given the other
    modality; a global feature that an encoder makes beside its set goes past the cross-modal encoder to the aggregator.

    Args:
        visual: encoder and aggregator of images.
        text: encoder and aggregator of questions.
        fusion: puts the two embeddings together.
        answers: how many answers there are to choose from.
        cross: lets image and question look at each other before they are aggregated.
    """

    def __init__(
        self, visual: Branch, text: Branch, fusion: Fusion, *, answers: int, cross: nn.Module | None = None
    ) -> None:
        super().__init__()
        for branch in (visual, text):
            refuse_distributions(branch.aggregator, "answering questions")
        self.visual, self.text, self.cross = visual, text, cross
        self.visual_feed, self.text_feed = FeedForward(visual.width), FeedForward(text.width)
        self.fusion = fusion
        self.classifier = xavier_linear(fusion.width, answers)
        # one answer is expected, so the loss does not start with thousands of answers at a probability of one half
        nn.init.constant_(self.classifier.bias, -math.log(answers))

    def forward(self, batch: Batch) -> Tensor:
        """Return the `(B, A)` logits of every answer to every question."""
        visual = self.visual.encoder(batch["visual"], batch["visual_mask"])
        if "image" in batch:
            visual = tuple(part[batch["image"]] for part in visual)
        text = self.text.encoder(batch["text"], batch["text_mask"])
        if self.cross is not None:
            crossed = self.cross(*visual[:2], *text[:2])
            visual, text = (*crossed[:2], *visual[2:]), (*crossed[2:], *text[2:])
        embeddings = pool_both((self.visual, self.text), (visual, text))
        visual_BV, text_BT = map(mean_vector, embeddings)
        fused_BW = self.fusion(self.visual_feed(visual_BV), self.text_feed(text_BT))
        return self.classifier(fused_BW)


class FeedForward(nn.Module):
    """`x + linear(relu(linear(x)))`, all of one width.

    The paper names the layer and its width, and leaves open whether the input is added, which costs no weights. Here it
    is, as after every attention of the model.

    Args:
        width: of input, inner layer and output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = xavier_linear(width, width), xavier_linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return `(B, D)`."""
        return x_BD + self.outer(self.inner(x_BD).relu())


def vqa_model(run: Run, parts: Parts, *, answers: int) -> VQAModel:
    """Return a new model of a run.

    Raises:
        InputError: a name or a parameter that does not exist, widths that do not meet where image and question look at
            each other, or a setting that this model has no place for.
    """
    for name, setting in (
        ("model", run.model),
        ("similarity", run.similarity),
        ("regularisers", run.regularisers),
    ):
        if setting:
            raise InputError(f"answering questions has no place for --{name} {setting}; leave it empty")
    visual, text = parts.visual(), parts.text()
    branches = (
        Branch(visual, parts.visual_aggregator(visual.width)),
        Branch(text, parts.text_aggregator(text.width)),
    )
    meet = look_at_each_other(*branches) or bool(run.cross)
    if meet and visual.width != text.width:
        raise InputError(
            f"the visual encoder makes elements of width {visual.width} and the text encoder of {text.width}; to look "
            "at each other they need the same width"
        )
    fusion = FUSIONS.build(run.fusion, *(branch.width for branch in branches))
    cross = CROSS_ENCODERS.build(run.cross, visual.width) if run.cross else None
    return VQAModel(*branches, fusion, answers=answers, cross=cross)
