"""Hierarchical graph reasoning, HGR (Chen et al., "Fine-grained video-text retrieval", CVPR 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polypool.aggregators.masks import zero_pads
from polypool.encoders.text.tokenizers import Tokenizer
from polypool.infra.batches import Batch, arriving
from polypool.infra.compute.device import device_of, shapes_only
from polypool.infra.compute.dist import gather, gather_shared
from polypool.infra.fields import above, at_least, require
from polypool.infra.paths import FilePath
from polypool.infra.registry import MODELS
from polypool.tasks.adapter import Score
from polypool.tasks.hgr.graph_encoders import RoleText, TextEmbeddings, VideoEmbeddings, VideoLevels
from polypool.tasks.hgr.role_captions import RoleCaptions
from polypool.tasks.models.branch import check_widths
from polypool.tasks.models.dual_encoder import encode_split
from polypool.tasks.models.pair_encoder import PaddedSets, encode_sets
from polypool.tasks.models.parts import Parts
from polypool.tasks.models.retrieval_model import Batches, RetrievalModel, Scored
from polypool.tasks.similarities.vectors import at_least_float32

VIDEOS = 64  # videos whose frames are padded to a common number while a split is scored


@MODELS.register("hgr")
class HGR(RetrievalModel):
    """The mean of three scores: video and sentence, frames and verbs, frames and nouns.

    The run's aggregators compute the sentence's score: `attention` as published, `gpo` for the HGR-infinity of
    VSE-infinity. A sentence of K vectors enters the graph as their mean, and each vector is layer-normalised like the
    root.

    Batches are as in `RetrievalModel`, with the captions' role graphs: see `RoleCaptions.batch`.

    Args:
        parts: builds encoders, aggregators, the sentence's similarity and the objective.
        verbs: verb slots of a caption.
        nouns: slots for its other phrases.
        graphs: file of role graphs, HGR's or from `polypool ingest graphs`; see `RoleCaptions`.
        sharpness: factor in the softmax over frames; see `phrase_scores`.
        dropout: dropout rate of the graph's messages.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        verbs: int = 4,
        nouns: int = 6,
        graphs: FilePath = "",
        sharpness: float = 4.0,
        dropout: float = 0.5,
    ) -> None:
        require(at_least(1), verbs=verbs, nouns=nouns)
        require(above(0), sharpness=sharpness)
        visual, text = VideoLevels(parts), RoleText(parts, dropout=dropout)
        check_widths(visual.width, text.width, "hgr compares frames with phrases: give both the same width")
        similarity = parts.similarity(visual.aggregator, text.aggregator, width=visual.width)
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
        **params: Any,
    ) -> RoleCaptions:
        of_captions = {name: params[name] for name in ("verbs", "nouns", "graphs") if name in params}
        return RoleCaptions(captions, tokenizer, limit=limit, **of_captions)

    def encode_visual(self, batch: Batch) -> VideoEmbeddings:
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> TextEmbeddings:
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
        """Return the `(V, T)` scores of every video with every caption."""
        sentence_VT, verb_VT, noun_VT = self.level_scores(visual, text)
        return (sentence_VT + verb_VT + noun_VT) / 3

    def score_encoded(self, batch: Batch, visual: VideoEmbeddings, text: TextEmbeddings) -> Scored:
        """Score the global batch: each worker scores its videos against the captions of all workers."""
        captions = TextEmbeddings(
            gather_shared(text.vectors), gather_shared(text.phrase_BPD), gather(text.used_BP)
        )
        return Scored.of_batch(batch, gather(self.score(visual, captions)))

    @torch.inference_mode()
    def scorer(self, images: Batches, captions: Batches) -> Score:
        """Score a split once: all video embeddings are kept in memory, caption embeddings one batch at a time."""
        device = device_of(self)
        videos = self._encode_videos(images, device)

        def scores(batch: Batch) -> Tensor:
            text = self.encode_text(batch)
            return torch.cat([self.score(part, text) for part in videos]).T.float()

        sim_TV = encode_split(scores, captions, device=device)
        return lambda images, captions: sim_TV[captions, images].T

    def _encode_videos(self, images: Batches, device: torch.device) -> list[VideoEmbeddings]:
        """Return the videos of all workers by index, in chunks of at most `VIDEOS` with common padding."""
        whole, verb, noun = [], [], []
        for number_B, batch in arriving(images, device):
            video = self.encode_visual(batch)
            whole.append((number_B, {"vectors": video.vectors}))
            verb.append((number_B, video.verb._asdict()))
            noun.append((number_B, video.noun._asdict()))
        vectors = encode_split(lambda batch: batch["vectors"], whole, device=device)
        levels = [
            encode_sets(lambda batch: PaddedSets(**batch), level, device=device) for level in (verb, noun)
        ]
        return [
            VideoEmbeddings(vectors[part], *(PaddedSets.pad(sets[part]) for sets in levels))
            for part in (slice(start, start + VIDEOS) for start in range(0, len(vectors), VIDEOS))
        ]


# Frames and phrases whose products are computed at once; on a CPU a few MB, which stay in its cache.
BLOCK = {"cpu": (320, 2048)}
BLOCK_ELSEWHERE = (4096, 8192)
STORED = 1 << 25  # products kept for the backward pass; above this, blocks are computed again in it


def phrase_scores(frames: PaddedSets, phrase_TPD: Tensor, used_TP: Tensor, *, sharpness: float) -> Tensor:
    """Return the `(V, T)` scores of videos and texts, in at least float32.

    For one phrase, the frames are weighted by the softmax of `sharpness` times their cosines with it (negative ones set
    to 0, then divided by their L2 norm), and the score is the cosine of the weighted sum with the phrase. A text's
    score is the mean over its phrases. The cosine with a zero vector is 0 and passes no gradient.

    The weighted sums, a vector for each video and phrase, are not computed. With w the weights, v the frames, and p the
    phrase at length 1, the cosine is `sum(w * (v . p)) / sqrt(w' (v v') w)`, which needs only the products of frames
    with phrases and with each other.

    Args:
        frames: of V videos, each with at least one frame.
        phrase_TPD: P phrase slots of each of T texts.
        used_TP: True where there is a phrase. A text without any scores 0.
        sharpness: factor in the softmax over frames; 4 in the authors' code.
    """
    attend = partial(_attend, sharpness=sharpness)
    shape = *frames.mask_BN.shape, len(phrase_TPD) * phrase_TPD.shape[1]
    if torch.is_grad_enabled() and shape[0] * shape[1] * shape[2] > STORED:
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
    in_block, phrases = BLOCK.get(phrase_TPD.device.type, BLOCK_ELSEWHERE)
    with torch.autocast(phrase_TPD.device.type, enabled=False):
        x_VFD = at_least_float32(zero_pads(*frames))
        place_S = None if shapes_only(used_TP) else used_TP.flatten().nonzero().squeeze(1)
        phrase_SD = at_least_float32(phrase_TPD.flatten(0, 1))
        if place_S is not None:
            phrase_SD = phrase_SD[place_S]
        phrase_SD = phrase_SD * _inverse_root(phrase_SD.square().sum(dim=1, keepdim=True))
        score_VS = torch.cat(
            [
                torch.cat([attend(*videos, part_SD) for part_SD in phrase_SD.split(phrases)], dim=1)
                for videos in PaddedSets(x_VFD, frames.mask_BN).split(max(1, in_block // shape[1]))
            ]
        )
    if place_S is None:
        score_VR = score_VS.masked_fill(~used_TP.flatten(), 0.0)
    else:
        score_VR = score_VS.new_zeros(shape[0], shape[2]).index_copy(1, place_S, score_VS)
    return score_VR.unflatten(1, used_TP.shape).sum(dim=2) / used_TP.sum(dim=1).clamp(min=1)


def _attend(x_VFD: Tensor, mask_VF: Tensor, unit_SD: Tensor, *, sharpness: float) -> Tensor:
    """Return the scores `(V, S)` of unit-length phrases."""
    gram_VFF = x_VFD @ x_VFD.mT
    square_VF = gram_VFF.diagonal(dim1=1, dim2=2)
    product_VFS = (x_VFD.flatten(0, 1) @ unit_SD.T).unflatten(0, mask_VF.shape)
    cosine_VFS = (product_VFS * _inverse_root(square_VF)[..., None]).relu()
    fit_VFS = cosine_VFS / torch.linalg.vector_norm(cosine_VFS, dim=1, keepdim=True).clamp(min=1e-10)
    weight_VFS = (sharpness * fit_VFS).masked_fill(~mask_VF[..., None], float("-inf")).softmax(dim=1)
    attended_VS = (weight_VFS * product_VFS).sum(dim=1)
    length2_VS = (weight_VFS * (gram_VFF @ weight_VFS)).sum(dim=1)
    return attended_VS * _inverse_root(length2_VS)


def _inverse_root(square: Tensor) -> Tensor:
    """Return `1 / sqrt(square)`; 0 without a gradient where `square` is 0, or negative by rounding."""
    positive = square > 0
    return square.where(positive, 1.0).rsqrt().where(positive, 0.0)
