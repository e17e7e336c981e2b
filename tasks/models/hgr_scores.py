"""HGR's scores: of phrases and frames, by attention, and of a whole split, page by page.

Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning", CVPR 2020, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aggregators.averages.weighted import zero_pads
from infra.compute.device import on_device
from infra.compute.dist import gather_uneven
from infra.data import Batch
from tasks.models.embeddings import Batches, encode_split
from tasks.models.hgr_encoders import VideoEmbeddings
from tasks.models.padded_sets import PaddedSets, encode_sets
from tasks.similarities.vectors import at_least_float32

BLOCK = {"cpu": (320, 2048)}
"""Frames and phrases whose products are computed at once: on a CPU a few MB, which stay in its cache."""
BLOCK_ELSEWHERE = (4096, 8192)
STORED = 1 << 25
"""Products that may wait for their gradient; where there are more, every block is computed a second time for it."""
VIDEOS = 64
"""Videos of a part of a split, whose frames are padded to a common number."""
PAGE = 512
"""Columns of a page of scores."""


def phrase_scores(frames: PaddedSets, phrase_TPD: Tensor, used_TP: Tensor, *, sharpness: float) -> Tensor:
    """Return the `(V, T)` scores of videos and texts, in at least float32.

    For one phrase: the cosines of all frames with it, those below 0 as 0, are divided by their L2 norm; their softmax
    with the factor `sharpness` weighs the frames; and the score is the cosine of the frames' weighted sum with the
    phrase. A text's score is the mean over its phrases. A cosine with a zero vector is 0, and passes no gradient.

    The weighted sums, a vector for each video and phrase, are never made. With w the weights, v the frames, and p the
    phrase at length 1, the cosine is `sum(w * (v . p)) / sqrt(w' (v v') w)`: only the products of frames and phrases
    are needed, and those of a video's frames with each other.

    Args:
        frames: of V videos, each with at least one; their sizes may differ.
        phrase_TPD: P slots for phrases of each of T texts.
        used_TP: True where there is a phrase. A text without any scores 0.
        sharpness: how much more the frames that fit a phrase weigh; 4 in the authors' code.
    """
    attend = partial(_attend, sharpness=sharpness)
    shape = *frames.mask_BN.shape, len(phrase_TPD) * phrase_TPD.shape[1]
    if torch.is_grad_enabled() and shape[0] * shape[1] * shape[2] > STORED:
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
    in_block, phrases = BLOCK.get(phrase_TPD.device.type, BLOCK_ELSEWHERE)
    with torch.autocast(phrase_TPD.device.type, enabled=False):
        x_VFD = at_least_float32(zero_pads(*frames))
        phrase_SD = at_least_float32(phrase_TPD[used_TP])
        phrase_SD = phrase_SD * _inverse_root(phrase_SD.square().sum(dim=1, keepdim=True))
        score_VS = torch.cat(
            [
                torch.cat([attend(*videos, part_SD) for part_SD in phrase_SD.split(phrases)], dim=1)
                for videos in PaddedSets(x_VFD, frames.mask_BN).split(max(1, in_block // shape[1]))
            ]
        )
    score_VR = score_VS.new_zeros(shape[0], shape[2])
    score_VR = score_VR.index_copy(1, used_TP.flatten().nonzero().squeeze(1), score_VS)
    return score_VR.unflatten(1, used_TP.shape).sum(dim=2) / used_TP.sum(dim=1).clamp(min=1)


def _attend(x_VFD: Tensor, mask_VF: Tensor, unit_SD: Tensor, *, sharpness: float) -> Tensor:
    """Return the `(V, S)` scores of phrases of length 1. Phrases lie along the last axis: long rows to work on."""
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
    """Return `1 / sqrt(square)`, and 0 without a gradient where `square` is 0, or by rounding less."""
    positive = square > 0
    return square.where(positive, 1.0).rsqrt().where(positive, 0.0)


class ScorePages:
    """Called with two slices, it returns a block of the score matrix `(V, T)`.

    The matrix lies in pages of a few columns each, since nobody says beforehand how many captions will come.

    Args:
        rows: how many videos there are, V.
        device: where the scores lie.
    """

    def __init__(self, rows: int, *, device: torch.device) -> None:
        self.rows, self.device, self.columns = rows, device, 0
        self.pages: list[Tensor] = []

    @classmethod
    def of_captions(
        cls, score: Callable[[Batch], Tensor], captions: Batches, *, rows: int, device: torch.device
    ) -> ScorePages:
        """Score all captions; every worker its share, equally many batches each, and each keeps the scores of all.

        Args:
            score: returns the `(V, B)` scores of all videos with a batch of captions.
            captions: the batches.
            rows: how many videos there are.
            device: where `score` computes.
        """
        pages = cls(rows, device=device)
        for number_B, batch in captions:
            sim_VB = score(on_device(batch, device)).float()
            pages.add(gather_uneven(number_B.to(device)), gather_uneven(sim_VB.T).T)
        return pages

    def add(self, number_B: Tensor, sim_VB: Tensor) -> None:
        """Keep the scores of some captions, given their numbers; a caption that comes again replaces itself."""
        number_B = number_B.cpu()
        self.columns = max(self.columns, int(number_B.max()) + 1)
        while len(self.pages) * PAGE < self.columns:
            self.pages.append(torch.zeros(self.rows, PAGE, dtype=torch.float32, device=self.device))
        order_B = number_B.argsort()
        _, count = (number_B[order_B] // PAGE).unique_consecutive(return_counts=True)
        for place in order_B.split(count.tolist()):
            page = self.pages[int(number_B[place[0]]) // PAGE]
            page[:, (number_B[place] % PAGE).to(self.device)] = sim_VB[:, place.to(self.device)]

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of videos against captions, `(V, T)`, float32."""
        start, stop, step = captions.indices(self.columns)
        assert step == 1, "captions are asked for as one slice without steps"
        first, last = start // PAGE, -(-stop // PAGE)
        block = torch.cat([page[images] for page in self.pages[first:last]], dim=1)
        return block[:, start - first * PAGE : stop - first * PAGE]


def hold_videos(
    encode_batch: Callable[[Batch], VideoEmbeddings], images: Batches, *, device: torch.device
) -> list[VideoEmbeddings]:
    """Encode the videos of a split, and return those of all workers by number, in parts of at most `VIDEOS`."""
    whole, verb, noun = [], [], []
    for number_B, batch in images:
        embeddings = encode_batch(on_device(batch, device))
        whole.append((number_B, {"vectors": embeddings.vectors}))
        verb.append((number_B, embeddings.verb._asdict()))
        noun.append((number_B, embeddings.noun._asdict()))
    vectors = encode_split(lambda batch: batch["vectors"], _emptied(whole), device=device)
    levels = []
    for level in (verb, noun):
        sets = encode_sets(lambda batch: PaddedSets(**batch), _emptied(level), device=device)
        levels.append([PaddedSets.pad(sets[start : start + VIDEOS]) for start in range(0, len(sets), VIDEOS)])
    return [VideoEmbeddings(*part) for part in zip(vectors.split(VIDEOS), *levels, strict=True)]


def _emptied(batches: list[tuple[Tensor, Batch]]) -> Iterator[tuple[Tensor, Batch]]:
    """Yield what a list holds and let go of it, so that nothing is there twice."""
    while batches:
        yield batches.pop(0)
