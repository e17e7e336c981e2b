"""The two sides of HGR: a video at three levels, and a caption as a sentence with its phrases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator
from encoders.base import Encoder
from infra.errors import InputError
from tasks.models.embeddings import at_least_float32, l2_normalise
from tasks.models.role_graph_encoder import RoleGraph
from tasks.models.sets import Sets
from tasks.models.split_embeddings import Batch

if TYPE_CHECKING:
    from tasks.models.build import Parts


class VideoEmbeddings(NamedTuple):
    """What the model makes of videos."""

    embedding: Tensor
    """Of the whole, of unit length: `(B, D)`, or `(B, K, D)`."""
    verb: Sets
    """Frames, to be compared with verbs."""
    noun: Sets
    """Frames, to be compared with nouns."""


class TextEmbeddings(NamedTuple):
    """What the model makes of captions."""

    embedding: Tensor
    """Of the whole sentence, of unit length: `(B, D)`, or `(B, K, D)`."""
    phrase_BPD: Tensor
    """The phrases: the slots of verbs, then those of nouns."""
    used_BP: Tensor
    """True where there is a phrase."""


class VideoLevels(nn.Module):
    """An encoder of its own for each level, and the aggregator of the first.

    Args:
        parts: what they are built of.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.sentence, self.verb, self.noun = (_plain(parts.visual()) for _ in range(3))
        self.width = self.sentence.width
        self.aggregator = _alone(parts.visual_aggregator(self.width), self.width)

    def forward(self, x: Tensor, mask_BN: Tensor) -> VideoEmbeddings:
        """Encode videos; memory holds their frames twice."""
        embedding = self.aggregator(*self.sentence(x, mask_BN)).vectors
        levels = (Sets(*encoder(x, mask_BN)) for encoder in (self.verb, self.noun))
        return VideoEmbeddings(_unit(embedding), *levels)


class RoleText(nn.Module):
    """Words, a vector of them all (or a few), and phrases over the graph of roles.

    Args:
        parts: what encoder and aggregator are built of.
        dropout: share of the values of the graph's messages dropped in training.
        root_messages: see `RoleGraph`.
    """

    def __init__(self, parts: Parts, *, dropout: float, root_messages: bool) -> None:
        super().__init__()
        self.encoder = _plain(parts.text())
        self.width = self.encoder.width
        self.aggregator = _alone(parts.text_aggregator(self.width), self.width)
        self.graph = RoleGraph(self.width, dropout=dropout, root_messages=root_messages)

    def forward(self, batch: Batch) -> TextEmbeddings:
        """Encode captions with their graphs."""
        word_BLD, mask_BL = self.encoder(batch["text"], batch["text_mask"])
        vector = self.aggregator(word_BLD, mask_BL).vectors
        span_BPL = batch["text_spans"] & mask_BL[:, None]
        sentence_BKD, phrase_BPD = self.graph(
            vector if vector.ndim == 3 else vector[:, None],
            word_BLD,
            span_BPL,
            batch["text_roles"],
            batch["text_edges"],
        )
        return TextEmbeddings(_unit(sentence_BKD.view_as(vector)), phrase_BPD, span_BPL.any(dim=2))


def _unit(embedding: Tensor) -> Tensor:
    with torch.autocast(embedding.device.type, enabled=False):
        return l2_normalise(at_least_float32(embedding))


def _plain(encoder: Encoder) -> Encoder:
    """Refuse an encoder that makes more than a set."""
    if encoder.global_width:
        raise InputError(
            f"the encoder {type(encoder).__name__} makes a set and a global feature of it, and hgr has no place for a "
            "global feature; choose one that makes a set alone, such as frames or bigru"
        )
    return encoder


def _alone(aggregator: Aggregator, width: int) -> Aggregator:
    """Refuse an aggregator that looks at the other modality, or leaves the space of the elements."""
    name = type(aggregator).__name__
    if aggregator.context != "none":
        raise InputError(
            f"the aggregator {name} looks at the other modality, and hgr makes embeddings of videos and of captions alone; "
            "choose one that does not, such as attention or gpo"
        )
    if aggregator.width not in (None, width):
        raise InputError(
            f"the aggregator {name} makes vectors of width {aggregator.width} of elements of width {width}, and hgr's "
            f"sentence meets its phrases in one space; give it width={width}, or choose one that keeps the width"
        )
    return aggregator
