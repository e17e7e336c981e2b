"""mAP@R and R-Precision, whose queries have many right answers and are judged by as many results.

With R right answers, of which h(r) are among a query's first r results,

    R-Precision = h(R) / R,        mAP@R = 1/R sum over the ranks r = 1 ... R that hold a right answer of h(r) / r.

Equal scores are in random order, and what is returned is the mean over all such orders, exactly. So a model that
gives all items the same score reaches what random scores do.

Source: Musgrave et al., "A metric learning reality check", ECCV 2020.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polypool.infra.ragged import ragged
from polypool.tasks.scoring.metrics import Positives

_CHUNK = 1 << 22  # scores that are looked at a time


def precision_at_r(
    score_AG: Tensor, positives: Positives, total_A: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mAP@R and R-Precision of each query, and whether equal scores had a say in them.

    Args:
        score_AG: of A queries with a gallery of G; no NaN.
        positives: the right answers in the gallery.
        total_A: R of each query.

    Returns:
        `(A,)` float64 from 0 to 1, twice, and `(A,)` bool.
    """
    step = max(1, _CHUNK // score_AG.shape[1])
    parts = [
        _precision(score_AG[start : start + step], positives, start, total_A[start : start + step])
        for start in range(0, len(score_AG), step)
    ]
    first, second, known = (np.concatenate(part) for part in zip(*parts, strict=True))
    return first, second, known


def _precision(
    score_QG: Tensor, positives: Positives, start: int, total_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k = min(int(total_Q.max()), score_QG.shape[1])
    best_QK = score_QG.topk(k, dim=1).values
    right_QP = _right_scores(score_QG, positives, start)
    # what is above, and level with, each of the K best, among all and among right answers
    above_QK, level_QK = _above_and_level(best_QK, best_QK)
    last_Q1 = best_QK[:, -1:]
    level_QK = torch.where(best_QK == last_Q1, (score_QG == last_Q1).sum(dim=1, keepdim=True), level_QK)
    above_right_QK, level_right_QK = _above_and_level(right_QP, best_QK)
    counts = (above_QK, level_QK, above_right_QK, level_right_QK)
    above_QK, level_QK, above_right_QK, level_right_QK = (x_QK.cpu().numpy() for x_QK in counts)
    rank_K = np.arange(k)
    among_QK = rank_K[None, :] < total_Q[:, None]
    hit_QK, precision_QK = _expected(
        rank_K, above=above_QK, level=level_QK, above_right=above_right_QK, level_right=level_right_QK
    )
    tied_QK = among_QK & (level_right_QK > 0) & (level_right_QK < level_QK)
    return (
        (hit_QK * precision_QK * among_QK).sum(axis=1) / total_Q,
        (hit_QK * among_QK).sum(axis=1) / total_Q,
        tied_QK.any(axis=1),
    )


def _expected(
    rank_K: np.ndarray,
    *,
    above: np.ndarray | int,
    level: np.ndarray | int,
    above_right: np.ndarray | int,
    level_right: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return how likely each rank, counted from 0, holds a right answer, and the mean precision there if it does.

    Results of the same score are in random order: `level` of them, `level_right` of these right, stand below `above`,
    of which `above_right` are right. Where a right one is at the j-th place of them, so are (j - 1) (level_right - 1) /
    (level - 1) others before it on average.
    """
    before = (rank_K - above) * (level_right - 1) / np.maximum(level - 1, 1)
    return level_right / level, (above_right + before + 1) / (rank_K + 1)


def _right_scores(score_QG: Tensor, positives: Positives, start: int) -> Tensor:
    """Return the scores of each query's right answers, `(Q, P)`, filled with NaN, which no comparison counts."""
    queries = len(score_QG)
    first, last = positives.start_Q1[[start, start + queries]]
    count_Q = positives.count_Q[start : start + queries]
    query_P, place_P, item_P = (
        torch.from_numpy(x_P).to(score_QG.device)
        for x_P in (*ragged(0, count_Q), positives.item_P[first:last])
    )
    right_QP = score_QG.new_full((queries, int(count_Q.max())), torch.nan)
    right_QP[query_P, place_P] = score_QG[query_P, item_P]
    return right_QP


def _above_and_level(of_QP: Tensor, than_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Count what is above and what is level with each value, `(Q, K)` int64."""
    of_Q1P, than_QK1 = of_QP[:, None, :], than_QK[:, :, None]
    return (of_Q1P > than_QK1).sum(dim=2), (of_Q1P == than_QK1).sum(dim=2)


def chance_precision(positives: Positives, total_A: np.ndarray) -> tuple[float, float]:
    """Return mAP@R and R-Precision of a gallery in random order, in per cent: those of one score for all of it."""
    rank_1K, total_A1 = np.arange(total_A.max())[None], total_A[:, None]
    among_AK = (rank_1K < total_A1) & (rank_1K < positives.gallery)
    hit_A1, precision_AK = _expected(
        rank_1K, above=0, level=positives.gallery, above_right=0, level_right=positives.count_Q[:, None]
    )
    part_AK = hit_A1 * among_AK / total_A1
    map_at_r, r_precision = (100.0 * float(x.sum(axis=1).mean()) for x in (part_AK * precision_AK, part_AK))
    return map_at_r, r_precision
