"""Hierarchical graph reasoning, HGR (Chen et al., "Fine-grained video-text retrieval", CVPR 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from encoders.base import Tokenizer
from infra.compute.device import device_of
from infra.compute.dist import gather, gather_shared
from infra.data import Batch
from infra.errors import InputError
from infra.registry import MODELS
from tasks.inputs.role_captions import RoleCaptions
from tasks.models.base import RetrievalModel, Scored
from tasks.models.embeddings import Batches
from tasks.models.hgr_encoders import RoleText, TextEmbeddings, VideoEmbeddings, VideoLevels
from tasks.models.hgr_scores import ScorePages, hold_videos, phrase_scores

if TYPE_CHECKING:
    from tasks.models.build import Parts


@MODELS.register("hgr")
class HGR(RetrievalModel):
    """The mean of three scores: of video and sentence, of frames and verbs, of frames and nouns.

    The sentence's score is that of the aggregators the run names: `attention` as published, `gpo` for the HGR-infinity
    of VSE-infinity. Sets of K vectors take part in the graph as their mean, and each is layer-normed as the root is.

    Batches are those of `RetrievalModel` with a caption's role graph beside: `text_spans` `(m, P, L)`, the words of
    each of the P phrases, `verbs` slots first; `text_roles` `(m, P)`; and `text_edges` `(m, 1 + P, 1 + P)`, see
    `RoleGraphEncoder`.

    Args:
        parts: what encoders, aggregators, the sentence's similarity and the objective are built of.
        verbs: slots for verbs of a caption.
        nouns: slots for its other phrases.
        parser: makes role graphs; see `RoleCaptions`, as for `graphs`.
        graphs: a file of role graphs.
        root_messages: the verbs answer the sentence in the graph; in the authors' code it hears nothing.
        sharpness: how much more the frames that fit a phrase weigh.
        dropout: fraction of the values of the graph's messages dropped in training.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        verbs: int = 4,
        nouns: int = 6,
        parser: str = "rules",
        graphs: str = "",
        root_messages: bool = False,
        sharpness: float = 4.0,
        dropout: float = 0.5,
    ) -> None:
        if min(verbs, nouns) < 1 or sharpness <= 0:
            raise InputError(
                f"hgr needs verbs and nouns of at least 1 and sharpness above 0, not verbs={verbs}, nouns={nouns}, "
                f"sharpness={sharpness}"
            )
        visual, text = VideoLevels(parts), RoleText(parts, dropout=dropout, root_messages=root_messages)
        if visual.width != text.width:
            raise InputError(
                f"the visual encoder makes elements of width {visual.width} and the text encoder of "
                f"{text.width}; hgr compares frames with phrases: give both the same width"
            )
        similarity = parts.similarity(visual.aggregator, text.aggregator)
        super().__init__(similarity, parts.objective(), parts.regularisers())
        self.verbs, self.sharpness = verbs, sharpness
        self.visual, self.text = visual, text

    @classmethod
    def text_inputs(
        cls,
        captions: Sequence[str],
        tokenizer: Tokenizer,
        *,
        limit: int = 0,
        verbs: int = 4,
        nouns: int = 6,
        parser: str = "rules",
        graphs: str = "",
        **_: Any,
    ) -> RoleCaptions:
        """Return captions with their role graphs; takes all parameters of the model."""
        return RoleCaptions(
            captions, tokenizer, verbs=verbs, nouns=nouns, parser=parser, graphs=graphs, limit=limit
        )

    def encode_visual(self, batch: Batch) -> VideoEmbeddings:
        """Return the embeddings of videos."""
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> TextEmbeddings:
        """Return the embeddings of captions."""
        return self.text(batch)

    def level_scores(self, video: VideoEmbeddings, text: TextEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `(V, T)` scores of sentence, verbs and nouns, each in at least float32."""
        with torch.autocast(video.vectors.device.type, enabled=False):
            sentence_VT = self.similarity(video.vectors, text.vectors)
        split = [self.verbs, text.used_BP.shape[1] - self.verbs]
        phrases = zip(text.phrase_BPD.split(split, dim=1), text.used_BP.split(split, dim=1), strict=True)
        verb_VT, noun_VT = (
            phrase_scores(frames, *slots, sharpness=self.sharpness)
            for frames, slots in zip((video.verb, video.noun), phrases, strict=True)
        )
        return sentence_VT, verb_VT, noun_VT

    def score(self, visual: VideoEmbeddings, text: TextEmbeddings) -> Tensor:
        """Return the `(V, T)` scores of every video with every caption: the mean of the three."""
        return sum(self.level_scores(visual, text)) / 3

    def score_encoded(self, batch: Batch, visual: VideoEmbeddings, text: TextEmbeddings) -> Scored:
        """Score the global batch: each worker its own videos against the captions of all."""
        captions = TextEmbeddings(
            gather_shared(text.vectors), gather_shared(text.phrase_BPD), gather(text.used_BP)
        )
        return Scored.of_batch(batch, gather(self.score(visual, captions)))

    @torch.inference_mode()
    def scorer(self, images: Batches, captions: Batches) -> ScorePages:
        """Score a split once: videos' embeddings are held, captions are encoded, scored and forgotten part by part."""
        device = device_of(self)
        videos = hold_videos(self.encode_visual, images, device=device)

        def columns(batch: Batch) -> Tensor:
            text = self.encode_text(batch)
            return torch.cat([self.score(part, text) for part in videos])

        return ScorePages.of_captions(
            columns, captions, rows=sum(len(p.vectors) for p in videos), device=device
        )
