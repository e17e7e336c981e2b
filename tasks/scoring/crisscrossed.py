"""Retrieval between and within modalities, by the ratings of Crisscrossed Captions.

Four directions, each over the whole split: images to captions (`i2t`) and back (`t2i`), captions to captions (`t2t`),
images to images (`i2i`). Right answers are COCO's pairs and highly rated pairs: caption-image and caption-caption pairs
from 3.0, image-image pairs from 2.5, in either order. All captions of one image are right answers of each other. The
rank of a query is the rank of its best right answer.

Within a modality, a query is excluded from its own gallery: VSE-infinity includes it with a score of 0, which gives the
same ranks unless the best right answer scores below 0. Queries without a right answer are skipped and counted.

Source: Parekh et al., EACL 2021; Chen et al., "Learning the best pooling strategy" (VSE-infinity), CVPR 2021, table 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.ragged import ragged
from polypool.tasks.adapter import Score
from polypool.tasks.datasets.coco_judgments import Rated, Ratings
from polypool.tasks.scoring.metrics import (
    KS,
    Positives,
    Ranks,
    chance_recall,
    in_places,
    rank_queries,
    recall,
)
from polypool.tasks.scoring.scores import AllScores

# Minimum ratings of right answers: caption and image, two captions, two images.
SITS, STS, SIS = 3.0, 3.0, 2.5
_BETWEEN = ("i2t", "t2i")


@dataclass(frozen=True, kw_only=True)
class RightAnswers:
    """The right answers of a split.

    Attributes:
        of: by direction: `i2t`, `t2i`, `t2t`, `i2i`.
        unknown: number of rated pairs with an image or a caption outside the split.
    """

    of: Mapping[str, Positives]
    unknown: int


@dataclass(frozen=True, kw_only=True)
class CrisscrossedResult:
    """Result of `evaluate_crisscrossed`.

    Attributes:
        metrics: `i2t/R1`, ..., `i2i/skipped` by direction, `rsum` over image-caption directions, and the numbers of
            `ties` and `unknown_ratings`.
        rank_Q: by direction, the 0-based rank of each query's best right answer; NaN without one.
        recalls: by `i2t/R1` and so on, the recall of each query, from 0 to 1; NaN without a right answer.
        chance: expected values of `i2t/R1`, ..., `rsum` for random scores.
    """

    metrics: dict[str, float]
    rank_Q: dict[str, np.ndarray]
    recalls: dict[str, np.ndarray]
    chance: dict[str, float]


def right_answers(
    ratings: Ratings, *, image_ids: Sequence[str], caption_ids: Sequence[str], owner_T: np.ndarray
) -> RightAnswers:
    """Combine a split's pairs with the high ratings.

    Args:
        ratings: of the split.
        image_ids: of the N images, in order.
        caption_ids: of the G captions, in order.
        owner_T: the image of each caption, in the images' order.

    Raises:
        InputError: no rating of one of the three kinds is about this split.
    """
    images, captions = ({id: at for at, id in enumerate(ids)} for ids in (image_ids, caption_ids))
    sits_2P, no_sits = _places(ratings.sits, captions, images, least=SITS)
    sts_2P, no_sts = _places(ratings.sts, captions, captions, least=STS)
    sis_2P, no_sis = _places(ratings.sis, images, images, least=SIS)
    own_2P = np.stack([np.arange(len(owner_T)), owner_T])
    t2i_2P = np.concatenate([own_2P, sits_2P], axis=1)
    n, g = len(images), len(captions)
    return RightAnswers(
        of={
            "i2t": Positives.from_pairs(*t2i_2P[::-1], queries=n, gallery=g),
            "t2i": Positives.from_pairs(*t2i_2P, queries=g, gallery=n),
            "t2t": _both_ways(np.concatenate([_siblings(owner_T), sts_2P], axis=1), items=g),
            "i2i": _both_ways(sis_2P, items=n),
        },
        unknown=no_sits + no_sts + no_sis,
    )


def _places(
    rated: Rated, first: Mapping[str, int], second: Mapping[str, int], *, least: float
) -> tuple[np.ndarray, int]:
    """Return the indices `(2, P)` of pairs with at least this rating, and the number of pairs outside the split."""
    places = (
        (first.get(a, -1), second.get(b, -1)) for a, b in zip(rated.first_P, rated.second_P, strict=True)
    )
    place_2P = np.array(list(places), np.int64).T
    known_P = (place_2P >= 0).all(axis=0)
    if not known_P.any():
        raise InputError(
            f"none of the {len(rated):,} ratings, such as that of {rated.first_P[0]} and {rated.second_P[0]}, is about "
            f"this split, which has {next(iter(first))} and {next(iter(second))}: ingest COCO from Karpathy's JSON, "
            "and take the ratings of the same split"
        )
    return place_2P[:, known_P & (rated.rating_P >= least)], int((~known_P).sum())


def _siblings(owner_T: np.ndarray) -> np.ndarray:
    """Return the pairs `(2, P)` of captions of one image."""
    count_N = np.bincount(owner_T)
    return np.stack(ragged((count_N.cumsum() - count_N)[owner_T], count_N[owner_T]))


def _both_ways(pair_2P: np.ndarray, *, items: int) -> Positives:
    """Return the right answers among items of one modality; pairs are symmetric."""
    pair_2P = pair_2P[:, pair_2P[0] != pair_2P[1]]
    return Positives.from_pairs(
        *np.concatenate([pair_2P, pair_2P[::-1]], axis=1), queries=items, gallery=items
    )


def evaluate_crisscrossed(score: Score, answers: RightAnswers) -> CrisscrossedResult:
    """Rank a split in four directions.

    Args:
        score: scores blocks of images against captions, and within each modality.
        answers: the right answers, in the order of the score's images and captions.

    Raises:
        InputError: the model only compares images with captions, or a score is NaN.
    """
    metrics, rank_Q, recalls, chance, tied = {}, {}, {}, {}, 0
    ranked = _ranked(score, answers)
    for direction, positives in answers.of.items():
        ranks = ranked[direction]
        answerable_Q = positives.count_Q > 0
        rank_Q[direction] = in_places(ranks.rank_Q, answerable_Q, size=len(positives))
        recalls |= {
            f"{direction}/R{k}": in_places(ranks.recall_Q(k), answerable_Q, size=len(positives)) for k in KS
        }
        numbers = recall(ranks) | {"skipped": float((~answerable_Q).sum())}
        metrics |= {f"{direction}/{name}": value for name, value in numbers.items()}
        # a query is no part of its own gallery
        others = positives if direction in _BETWEEN else replace(positives, gallery=positives.gallery - 1)
        chance |= {f"{direction}/{name}": value for name, value in chance_recall(others).items()}
        tied += ranks.tied
    for numbers in (metrics, chance):
        numbers["rsum"] = sum(numbers[f"{direction}/R{k}"] for direction in _BETWEEN for k in KS)
    metrics |= {"ties": float(tied), "unknown_ratings": float(answers.unknown)}
    return CrisscrossedResult(metrics=metrics, rank_Q=rank_Q, recalls=recalls, chance=chance)


def _ranked(score: Score, answers: RightAnswers) -> dict[str, Ranks]:
    """Rank each direction's queries against their whole gallery."""
    if not isinstance(score, AllScores):
        raise InputError(
            "this model scores pairs of an image and a caption and has no embeddings of one modality alone, so "
            "captions cannot be compared with captions; choose another protocol, such as coco-5k"
        )
    captions, images = (slice(0, answers.of[direction].gallery) for direction in _BETWEEN)
    rows = {
        "i2t": lambda start, stop: score(slice(start, stop), captions),
        "t2i": lambda start, stop: score(images, slice(start, stop)).T,
        "t2t": _others(score.of_captions, captions),
        "i2i": _others(score.of_images, images),
    }
    return {
        direction: rank_queries(
            rows[direction], positives, skip=direction not in _BETWEEN, progress=f"ranking {direction}"
        )
        for direction, positives in answers.of.items()
    }


def _others(score: Score, items: slice) -> Callable[[int, int], Tensor]:
    """Return the rows of scores within one modality, with each item excluded from its own gallery."""

    def rows(start: int, stop: int) -> Tensor:
        sim_QG = score(slice(start, stop), items)
        self_Q1 = torch.arange(start, stop, device=sim_QG.device)[:, None]
        return sim_QG.scatter(1, self_Q1, -torch.inf)

    return rows
