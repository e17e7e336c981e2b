"""Scores of videos and texts by attention of every phrase to every frame (HGR: Chen et al., CVPR 2020, section 3.3)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aggregators.averages.weighted import zero_pads
from tasks.models.embeddings import at_least_float32
from tasks.models.sets import Sets

BLOCK = {"cpu": (320, 2048)}
"""Frames and phrases whose products are computed at once: on a CPU a few MB, which stay in its cache."""
BLOCK_ELSEWHERE = (4096, 8192)
KEPT = 1 << 25
"""Products that may wait for their gradient; where there are more, every block is computed a second time for it."""


def phrase_scores(frames: Sets, phrase_GPD: Tensor, used_GP: Tensor, *, sharpness: float) -> Tensor:
    """Return the `(Q, G)` scores of videos and texts, in at least float32.

    For one phrase: the cosines of all frames with it, those below 0 as 0, are divided by their L2 norm; their softmax
    with the factor `sharpness` weighs the frames; and the score is the cosine of the frames' weighted sum with the
    phrase. A text's score is the mean over its phrases. A cosine with a zero vector is 0, and passes no gradient.

    The weighted sums, a vector for each video and phrase, are never made. With w the weights, v the frames, and p the
    phrase at length 1, the cosine is `sum(w * (v . p)) / sqrt(w' (v v') w)`: only the products of frames and phrases
    are needed, and those of a video's frames with each other.

    Args:
        frames: of Q videos, each with at least one; their sizes may differ.
        phrase_GPD: P slots for phrases of each of G texts.
        used_GP: True where there is a phrase. A text without any scores 0.
        sharpness: how much more the frames that fit a phrase weigh; 4 in the authors' code.
    """
    attend = partial(_attend, sharpness=sharpness)
    shape = *frames.mask_BN.shape, len(phrase_GPD) * phrase_GPD.shape[1]
    if torch.is_grad_enabled() and shape[0] * shape[1] * shape[2] > KEPT:
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
    in_block, phrases = BLOCK.get(phrase_GPD.device.type, BLOCK_ELSEWHERE)
    with torch.autocast(phrase_GPD.device.type, enabled=False):
        x_QFD = at_least_float32(zero_pads(*frames))
        phrase_SD = at_least_float32(phrase_GPD[used_GP])
        phrase_SD = phrase_SD * _inverse_root(phrase_SD.square().sum(dim=1, keepdim=True))
        score_QS = torch.cat(
            [
                torch.cat([attend(*videos, part_SD) for part_SD in phrase_SD.split(phrases)], dim=1)
                for videos in Sets(x_QFD, frames.mask_BN).split(max(1, in_block // shape[1]))
            ]
        )
    score_QR = score_QS.new_zeros(shape[0], shape[2])
    score_QR = score_QR.index_copy(1, used_GP.flatten().nonzero().squeeze(1), score_QS)
    return score_QR.unflatten(1, used_GP.shape).sum(dim=2) / used_GP.sum(dim=1).clamp(min=1)


def _attend(x_QFD: Tensor, mask_QF: Tensor, unit_SD: Tensor, *, sharpness: float) -> Tensor:
    """Return the `(Q, S)` scores of phrases of length 1. Phrases lie along the last axis: long rows to work on."""
    gram_QFF = x_QFD @ x_QFD.mT
    square_QF = gram_QFF.diagonal(dim1=1, dim2=2)
    product_QFS = (x_QFD.flatten(0, 1) @ unit_SD.T).unflatten(0, mask_QF.shape)
    cosine_QFS = (product_QFS * _inverse_root(square_QF)[..., None]).relu()
    fit_QFS = cosine_QFS / torch.linalg.vector_norm(cosine_QFS, dim=1, keepdim=True).clamp(min=1e-10)
    weight_QFS = (sharpness * fit_QFS).masked_fill(~mask_QF[..., None], float("-inf")).softmax(dim=1)
    attended_QS = (weight_QFS * product_QFS).sum(dim=1)
    length2_QS = (weight_QFS * (gram_QFF @ weight_QFS)).sum(dim=1)
    return attended_QS * _inverse_root(length2_QS)


def _inverse_root(square: Tensor) -> Tensor:
    """Return `1 / sqrt(square)`, and 0 without a gradient where `square` is 0, or by rounding less."""
    there = square > 0
    return square.where(there, 1.0).rsqrt().where(there, 0.0)
