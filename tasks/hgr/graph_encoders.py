"""HGR's two sides: a video at three levels, and a caption as a sentence and its phrases in a role graph.

Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning", CVPR 2020, section 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator
from polypool.encoders.encoder import Encoder
from polypool.infra.batches import Batch
from polypool.infra.compute.dropout import Dropout
from polypool.infra.errors import InputError
from polypool.tasks.models.branch import refuse_distributions, refuse_global_feature
from polypool.tasks.models.pair_encoder import PaddedSets
from polypool.tasks.models.parts import Parts
from polypool.tasks.similarities.vectors import at_least_float32, l2_normalise


class VideoEmbeddings(NamedTuple):
    """Embeddings of videos at three levels.

    Attributes:
        vectors: whole videos, of unit length: `(B, D)` or `(B, K, D)`.
        verb: frames to compare with verbs, `(B, N, D)`.
        noun: frames to compare with nouns, `(B, N, D)`.
    """

    vectors: Tensor
    verb: PaddedSets
    noun: PaddedSets


class TextEmbeddings(NamedTuple):
    """Embeddings of captions: the sentence and its phrases.

    Attributes:
        vectors: whole sentences, of unit length: `(B, D)` or `(B, K, D)`.
        phrase_BPD: phrases: verb slots first, then noun slots.
        used_BP: True for used slots.
    """

    vectors: Tensor
    phrase_BPD: Tensor
    used_BP: Tensor


class VideoLevels(nn.Module):
    """One encoder per level, and the aggregator of the first level."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.sentence, self.verb, self.noun = (_checked_encoder(parts.visual()) for _ in range(3))
        self.width = self.sentence.width
        self.aggregator = _checked_aggregator(parts.visual_aggregator(self.width), self.width)

    def forward(self, x: Tensor, mask_BN: Tensor) -> VideoEmbeddings:
        vectors = self.aggregator(*self.sentence(x, mask_BN)).vectors
        levels = (PaddedSets(*encoder(x, mask_BN)) for encoder in (self.verb, self.noun))
        return VideoEmbeddings(_unit(vectors), *levels)


class RoleText(nn.Module):
    """Word encoder, aggregator and role graph; `dropout` as in `RoleGraphEncoder`."""

    def __init__(self, parts: Parts, *, dropout: float) -> None:
        super().__init__()
        self.encoder = _checked_encoder(parts.text())
        self.width = self.encoder.width
        self.aggregator = _checked_aggregator(parts.text_aggregator(self.width), self.width)
        self.graph = RoleGraphEncoder(self.width, dropout=dropout)

    def forward(self, batch: Batch) -> TextEmbeddings:
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


def _unit(vectors: Tensor) -> Tensor:
    with torch.autocast(vectors.device.type, enabled=False):
        return l2_normalise(at_least_float32(vectors))


def _checked_encoder(encoder: Encoder) -> Encoder:
    refuse_global_feature(encoder, "hgr", others="frames or bigru")
    return encoder


def _checked_aggregator(aggregator: Aggregator, width: int) -> Aggregator:
    """Check that an aggregator needs no other modality, returns vectors, and keeps the width."""
    name = type(aggregator).__name__
    refuse_distributions(aggregator, "hgr")
    if aggregator.context != "none":
        raise InputError(
            f"the aggregator {name} looks at the other modality, and hgr makes embeddings of videos and of captions "
            "alone; choose one that does not, such as attention or gpo"
        )
    if aggregator.width not in (None, width):
        raise InputError(
            f"the aggregator {name} makes vectors of width {aggregator.width} of elements of width {width}, and hgr's "
            f"sentence meets its phrases in one space; give it width={width}, or choose one that keeps the width"
        )
    return aggregator


class RoleGraphEncoder(nn.Module):
    """Phrases from their words and roles, then messages along the graph's edges.

    As in the authors' code, the sentence receives no messages: it is the layer norm of its words' vector.

    Args:
        width: width D of words, sentence and phrases.
        roles: number of roles.
        layers: number of message-passing layers, each with separate weights.
        dropout: dropout rate of messages.
    """

    def __init__(self, width: int, *, roles: int = 16, layers: int = 1, dropout: float = 0.5) -> None:
        super().__init__()
        self.role = nn.Embedding(roles, width)
        self.layers = nn.ModuleList(GraphAttention(width, dropout=dropout) for _ in range(layers))

    def forward(
        self, sentence_BKD: Tensor, word_BLD: Tensor, span_BPL: Tensor, role_BP: Tensor, edge_BVV: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sentence's vectors `(B, K, D)` and the phrases `(B, P, D)`, zero in unused slots.

        Args:
            sentence_BKD: vectors of the whole sentence; their mean is the graph's root.
            word_BLD: words.
            span_BPL: True for the words of each phrase; a slot without words is unused and ignored.
            role_BP: role id of each phrase.
            edge_BVV: True if the row's node receives from the column's; node 0 is the sentence, 1 + p phrase p.
        """
        used_BP = span_BPL.any(dim=2)
        phrase_BPD = max_over_spans(word_BLD, span_BPL) * self.role(role_BP)
        used_BV = torch.cat([torch.ones_like(used_BP[:, :1]), used_BP], dim=1)
        edge_BVV = edge_BVV & used_BV[:, None] & used_BV[..., None]
        for layer in self.layers:
            sentence_BKD, phrase_BPD = layer(sentence_BKD, phrase_BPD, edge_BVV)
        return sentence_BKD, phrase_BPD.masked_fill(~used_BP[..., None], 0.0)


class GraphAttention(nn.Module):
    """Attention of each node to its senders, with a residual connection and a layer norm.

    A node without senders receives zeros. Keys have no bias, because the softmax would cancel it.
    """

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, width // 2)
        self.key = nn.Linear(width, width // 2, bias=False)
        self.context = nn.Linear(width, width, bias=False)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, sentence_BKD: Tensor, phrase_BPD: Tensor, edge_BVV: Tensor) -> tuple[Tensor, Tensor]:
        """Return both after the messages; every vector of the sentence receives the root's message."""
        node_BVD = torch.cat([sentence_BKD.mean(dim=1, keepdim=True), phrase_BPD], dim=1)
        query_BVE = self.query(node_BVD) * self.query.out_features**-0.5
        score_BVV = query_BVE @ self.key(node_BVD).mT
        weight_BVV = score_BVV.masked_fill(~edge_BVV, torch.finfo(score_BVV.dtype).min).softmax(dim=-1)
        weight_BVV = weight_BVV.masked_fill(~edge_BVV, 0.0)  # a row without edges was uniform
        message_BVD = self.dropout(self.context(weight_BVV @ node_BVD))
        return self.norm(sentence_BKD + message_BVD[:, :1]), self.norm(phrase_BPD + message_BVD[:, 1:])


def max_over_spans(word_BLD: Tensor, span_BPL: Tensor) -> Tensor:
    """Return the element-wise maximum over each span's words, `(B, P, D)`; 0 for an empty span.

    One slot at a time, so that no `(B, P, L, D)` tensor exists.
    """
    most_BPD = torch.stack(
        [
            word_BLD.masked_fill(~span_BL[..., None], float("-inf")).max(dim=1).values
            for span_BL in span_BPL.unbind(dim=1)
        ],
        dim=1,
    )
    return most_BPD.masked_fill(~span_BPL.any(dim=2)[..., None], 0.0)
