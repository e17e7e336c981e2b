"""HGR's scores of frames and phrases, by attention of each phrase to the frames.

Chen et al., "Fine-grained video-text retrieval with hierarchical graph reasoning", CVPR 2020, section 3.3.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polypool.aggregators.averages.weighted import zero_pads
from polypool.tasks.models.pair_encoder import PaddedSets
from polypool.tasks.similarities.vectors import at_least_float32

BLOCK = {"cpu": (320, 2048)}
"""Frames and phrases whose products are computed at once; on a CPU a few MB, which stay in its cache."""
BLOCK_ELSEWHERE = (4096, 8192)
STORED = 1 << 25
"""Products kept for the backward pass; above this, blocks are computed again in it."""


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
    """Return the `(V, S)` scores of phrases of length 1."""
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
