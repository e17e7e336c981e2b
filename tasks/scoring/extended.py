"""Retrieval by the right answers of ECCV Caption: mAP@R, R-Precision and R@1, each image to captions and back.

ECCV Caption lists the right answers of some images and some captions of a split, independently of COCO's; these are
the queries, and the whole split is their gallery. R, the number of a query's right answers, includes answers outside
the split (two of the released ones), as in the authors' evaluator. With h(r) right answers among a query's first r
results,

    R-Precision = h(R) / R,        mAP@R = 1/R sum over the ranks r = 1 ... R that hold a right answer of h(r) / r.

That evaluator keeps ties in their input order; here the result is the exact mean over all orders of ties, so a model
that gives all items the same score reaches the chance level.

Sources: Musgrave et al., "A metric learning reality check", ECCV 2020, for mAP@R; Chun et al., "ECCV Caption:
correcting false negatives by collecting machine-and-human-verified image-caption associations for MS-COCO", ECCV 2022,
and the evaluator of the package `eccv-caption` 0.1.0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.ragged import ragged
from polypool.tasks.adapter import Score
from polypool.tasks.datasets.coco_judgments import Extended
from polypool.tasks.scoring.metric_specs import EXTENDED, MAP_AT_R
from polypool.tasks.scoring.metrics import Positives, chance_recall, in_places, rank_queries
from polypool.tasks.scoring.scores import PairsScore

_CHUNK = 1 << 22  # scores per block


def precision_at_r(
    score_AG: Tensor, positives: Positives, total_A: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mAP@R and R-Precision of each query, and whether ties affected them.

    Args:
        score_AG: of A queries with a gallery of G; no NaN.
        positives: the right answers in the gallery.
        total_A: R of each query.

    Returns:
        `(A,)` float64 in [0, 1], twice, and `(A,)` bool.
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
    # numbers of answers, and of right answers, above each of the K best scores and equal to it
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
    """Return the probability that each 0-based rank holds a right answer, and the mean precision there if it does.

    Ties are in random order: `level` results with the same score, `level_right` of them right, rank below `above`
    results with `above_right` right ones. If a right one is the j-th of the ties, (j - 1) (level_right - 1) / (level -
    1) other right ones precede it on average.
    """
    before = (rank_K - above) * (level_right - 1) / np.maximum(level - 1, 1)
    return level_right / level, (above_right + before + 1) / (rank_K + 1)


def _right_scores(score_QG: Tensor, positives: Positives, start: int) -> Tensor:
    """Return the scores of each query's right answers, `(Q, P)`, padded with NaN, which compares false."""
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
    """Count the values above and equal to each value, `(Q, K)` int64."""
    of_Q1P, than_QK1 = of_QP[:, None, :], than_QK[:, :, None]
    return (of_Q1P > than_QK1).sum(dim=2), (of_Q1P == than_QK1).sum(dim=2)


def chance_precision(positives: Positives, total_A: np.ndarray) -> tuple[float, float]:
    """Return the chance level of mAP@R and R-Precision, in per cent: a gallery in random order."""
    rank_1K, total_A1 = np.arange(total_A.max())[None], total_A[:, None]
    among_AK = (rank_1K < total_A1) & (rank_1K < positives.gallery)
    hit_A1, precision_AK = _expected(
        rank_1K, above=0, level=positives.gallery, above_right=0, level_right=positives.count_Q[:, None]
    )
    part_AK = hit_A1 * among_AK / total_A1
    map_at_r, r_precision = (100.0 * float(x.sum(axis=1).mean()) for x in (part_AK * precision_AK, part_AK))
    return map_at_r, r_precision


DIRECTIONS = ("i2t", "t2i")


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of one direction and their right answers.

    Attributes:
        query_A: the A queries, as indices among the split's images or captions, ascending.
        positives: their right answers, as indices in the gallery.
        total_A: R, the number of right answers of each, including answers outside the split.
        own: COCO's right answers.
    """

    query_A: np.ndarray
    positives: Positives
    total_A: np.ndarray
    own: Positives

    @property
    def in_split(self) -> Positives:
        """The right answers of all images or captions of the split; empty for non-queries."""
        query_P = np.repeat(self.query_A, self.positives.count_Q)
        return Positives.from_pairs(
            query_P, self.positives.item_P, queries=len(self.own), gallery=self.own.gallery
        )


@dataclass(frozen=True, kw_only=True)
class ExtendedResult:
    """Result of `evaluate_extended`.

    Attributes:
        metrics: `i2t/map_at_r`, `i2t/r_precision`, `i2t/R1`, the same for `t2i`, and `map_at_r`, in per cent; by
            direction the numbers of `queries`, of queries whose first result is wrong by COCO (`coco_errors`), and of
            these, right by ECCV Caption (`false_negatives`); `ties`, the number of queries that ties affect.
        of_query: by direction and name, such as `i2t_map_at_r`, the score of each image or caption of the split, from 0
            to 1; NaN for non-queries.
        rank_Q: by direction, the 0-based rank of each best right answer; NaN for non-queries.
        first_Q: by direction, the index of each query's first result, ties in the order of the split; -1 for
            non-queries.
        false_negative_Q: by direction, whether each query's first result is right but not in COCO, bool.
        chance: expected values of the metrics for random scores, in per cent.
    """

    metrics: dict[str, float]
    of_query: dict[str, np.ndarray]
    rank_Q: dict[str, np.ndarray]
    first_Q: dict[str, np.ndarray]
    false_negative_Q: dict[str, np.ndarray]
    chance: dict[str, float]


def queries_of(
    extended: Extended, *, image_ids: Sequence[str], caption_ids: Sequence[str], owner_T: np.ndarray
) -> dict[str, Queries]:
    """Return queries and right answers of a split, by direction.

    Args:
        extended: the right answers, by ids.
        image_ids: of the N images, in order.
        caption_ids: of the G captions, in order.
        owner_T: the image of each caption, in the images' order.

    Raises:
        InputError: the split contains no query, or no right answer of a query.
    """
    images, captions = ({str(id): at for at, id in enumerate(ids)} for ids in (image_ids, caption_ids))
    of_images = Positives.of_images(owner_T, images=len(images))
    return {
        "i2t": _queries_of(extended.image_to_caption, images, captions, own=of_images),
        "t2i": _queries_of(extended.caption_to_image, captions, images, own=of_images.transposed()),
    }


def _queries_of(
    answers: Mapping[str, tuple[str, ...]],
    queries: Mapping[str, int],
    gallery: Mapping[str, int],
    *,
    own: Positives,
) -> Queries:
    known = sorted((queries[query], query) for query in answers if query in queries)
    if not known:
        raise InputError(
            f"none of the {len(answers):,} queries of ECCV Caption, such as {next(iter(answers))}, is in this split, "
            f"which has {next(iter(queries))}: ingest COCO from Karpathy's JSON, and score its test split"
        )
    pairs = []
    for row, (_, query) in enumerate(known):
        places = [(row, gallery[id]) for id in answers[query] if id in gallery]
        if not places:
            raise InputError(
                f"query {query} of ECCV Caption has none of its right answers in this split, the first of which is "
                f"{answers[query][0]}: ingest COCO from Karpathy's JSON again, with all captions"
            )
        pairs += places
    query_P, item_P = np.array(pairs, np.int64).T
    return Queries(
        query_A=np.array([at for at, _ in known], np.int64),
        positives=Positives.from_pairs(query_P, item_P, queries=len(known), gallery=len(gallery)),
        total_A=np.array([len(answers[query]) for _, query in known], np.int64),
        own=own,
    )


def evaluate_extended(score: Score, of: Mapping[str, Queries]) -> ExtendedResult:
    """Score the queries of both directions against their whole galleries.

    Args:
        score: of blocks of the split; each block is computed once. A `PairsScore` computes only the queries' scores.
        of: queries and right answers, by direction.

    Raises:
        InputError: a score is NaN.
    """
    metrics, of_query, rank_Q, first_Q, missed_Q, chance = {}, {}, {}, {}, {}, {}
    tied = 0
    for direction, score_AG in zip(
        DIRECTIONS, _scores(score, *(of[name] for name in DIRECTIONS)), strict=True
    ):
        queries = of[direction]
        ranks = rank_queries(score_AG, queries.positives)
        map_A, precision_A, tied_A = precision_at_r(score_AG, queries.positives, queries.total_A)
        first_A = score_AG.argmax(dim=1).cpu().numpy()
        is_right_A = _holds(queries.positives, np.arange(len(first_A)), first_A)
        is_own_A = _holds(queries.own, queries.query_A, first_A)
        values = dict(zip(EXTENDED, (map_A, precision_A, ranks.recall_Q(1)), strict=True))
        metrics |= {f"{direction}/{name}": 100.0 * float(x_A.mean()) for name, x_A in values.items()}
        metrics |= {
            f"{direction}/queries": float(len(first_A)),
            f"{direction}/coco_errors": float((~is_own_A).sum()),
            f"{direction}/false_negatives": float((is_right_A & ~is_own_A).sum()),
        }
        spread = partial(in_places, at=queries.query_A, size=len(queries.own))
        of_query |= {f"{direction}_{name}": spread(x_A) for name, x_A in values.items()}
        rank_Q[direction] = spread(ranks.rank_Q)
        first_Q[direction] = spread(first_A, absent=-1)
        missed_Q[direction] = spread(is_right_A & ~is_own_A, absent=False)
        by_chance = (
            *chance_precision(queries.positives, queries.total_A),
            chance_recall(queries.positives, ks=(1,))["R1"],
        )
        chance |= {f"{direction}/{name}": x for name, x in zip(EXTENDED, by_chance, strict=True)}
        tied += int(tied_A.sum())
    for numbers in (metrics, chance):
        numbers[MAP_AT_R.name] = sum(numbers[f"{name}/map_at_r"] for name in DIRECTIONS) / len(DIRECTIONS)
    return ExtendedResult(
        metrics=metrics | {"ties": float(tied)},
        of_query=of_query,
        rank_Q=rank_Q,
        first_Q=first_Q,
        false_negative_Q=missed_Q,
        chance=chance,
    )


def _scores(score: Score, i2t: Queries, t2i: Queries) -> tuple[Tensor, Tensor]:
    """Return the scores of each direction's queries with their gallery, a row per query."""
    images, captions = len(i2t.own), i2t.own.gallery
    if isinstance(score, PairsScore):  # most scores are of no query, and expensive
        return (
            score.of_all(i2t.query_A, np.arange(captions)),
            score.of_all(np.arange(images), t2i.query_A).T.contiguous(),
        )
    rows, columns = [], []
    step = max(1, _CHUNK // captions)
    for start in range(0, images, step):
        block_NG = score(slice(start, min(start + step, images)), slice(0, captions))
        first, last = np.searchsorted(i2t.query_A, (start, start + step))
        rows.append(block_NG[torch.from_numpy(i2t.query_A[first:last] - start).to(block_NG.device)])
        columns.append(block_NG[:, torch.from_numpy(t2i.query_A).to(block_NG.device)])
    return torch.cat(rows), torch.cat(columns).T.contiguous()


def false_negatives(
    result: ExtendedResult, *, image_ids: Sequence[str], caption_ids: Sequence[str], texts: Sequence[str]
) -> bytes:
    """Return as CSV the queries whose first result is right but not in COCO, with that result.

    Args:
        result: of a split.
        image_ids, caption_ids, texts: of its images and captions, in order.
    """
    rows = []
    for direction, wrong_Q in result.false_negative_Q.items():
        for query in wrong_Q.nonzero()[0].tolist():
            first = int(result.first_Q[direction][query])
            image, caption = (query, first) if direction == "i2t" else (first, query)
            ids = image_ids[image], caption_ids[caption]
            rows.append((direction, *(ids if direction == "i2t" else ids[::-1]), texts[caption]))
    file = StringIO(newline="")
    csv.writer(file).writerows([("direction", "query", "found", "caption"), *rows])
    return file.getvalue().encode()


def _holds(positives: Positives, query_A: np.ndarray, item_A: np.ndarray) -> np.ndarray:
    """Return whether each item is a right answer of its query, `(A,)` bool."""
    query_P = np.repeat(np.arange(len(positives)), positives.count_Q)
    return np.isin(query_A * positives.gallery + item_A, query_P * positives.gallery + positives.item_P)
