"""Agreement of a model's scores with people's judgments of pairs: Kendall's tau, as metrics of captions report it.

Experts: tau-c over every single mark, three for a pair, of the pairs whose caption was not written for the image
(5,664 of 5,822, 16,992 marks). Crowd: tau-b over the share of yes, of all 47,830 pairs. All images and captions are of
the test split, so that a model that was trained on the training split has seen none of them.

Source: Hessel et al., CLIPScore, EMNLP 2021, section 4.1 and appendix A, after Anderson et al., SPICE, ECCV 2016.

The interval is of 95 %, by a normal approximation with the deviation over bootstrap samples of the images, each with
all its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, get_args

import numpy as np
import torch
from scipy.stats import kendalltau

from polypool.infra.errors import InputError
from polypool.infra.ragged import ragged
from polypool.tasks.adapter import Evaluation, Metric, Score
from polypool.tasks.datasets.flickr8k_judgments import Judgments, Kind
from polypool.tasks.scoring.protocols import ScoringProtocol
from polypool.tasks.scoring.retrieval_metrics import RetrievalSplit
from polypool.tasks.scoring.scores import PairsScore

KINDS = get_args(Kind)
RESAMPLES = 100
_CHUNK = 1 << 22  # scores that are computed at a time
_VARIANT: dict[Kind, Literal["b", "c"]] = {"expert": "c", "crowd": "b"}


@dataclass(frozen=True, kw_only=True)
class JudgedPairs:
    """The judged pairs that a split has.

    Attributes:
        item_P, caption_P: places of the images and of the captions in the split.
        rating_PR: the R ratings of each.
        unknown: judged pairs of which the split lacks the image or the caption.
        own: pairs that are left out, since the caption was written for the image.
    """

    item_P: np.ndarray
    caption_P: np.ndarray
    rating_PR: np.ndarray
    unknown: int
    own: int


def judged_pairs(
    judgments: Judgments, *, files: Sequence[str], count_N: np.ndarray, own: bool
) -> JudgedPairs:
    """Find judged pairs in a split.

    Args:
        judgments: by the images' files.
        files: of the split's N images, whatever their folder and ending.
        count_N: how many captions each image has; they are in the order of Flickr8k's own file.
        own: keep pairs whose caption was written for the image.

    Raises:
        InputError: the split has none of them.
    """
    place = {PurePath(file).stem: at for at, file in enumerate(files)}
    item_P, owner_P = (
        np.array([place.get(name, -1) for name in names.tolist()])
        for names in (judgments.image_P, judgments.owner_P)
    )
    known_P = (item_P >= 0) & (owner_P >= 0) & (judgments.number_P < count_N[owner_P])
    if not known_P.any():
        found = next(iter(files), "") or "without a file"
        raise InputError(
            f"none of the {len(judgments):,} judged pairs, such as that of {judgments.image_P[0]}.jpg, is of this "
            f"split, whose first image is {found}: ingest Flickr8k with its images, and score its test split"
        )
    kept_P = known_P if own else known_P & ~judgments.own_P
    first_N = count_N.cumsum() - count_N
    return JudgedPairs(
        item_P=item_P[kept_P],
        caption_P=first_N[owner_P[kept_P]] + judgments.number_P[kept_P],
        rating_PR=judgments.rating_PR[kept_P],
        unknown=int((~known_P).sum()),
        own=int((known_P & ~kept_P).sum()),
    )


def scores_of(score: Score, pairs: JudgedPairs, *, items: int, captions: int) -> np.ndarray:
    """Return the score of each pair, `(P,)` float64.

    Args:
        score: of the split.
        pairs: of images and captions.
        items, captions: how many the split has.

    Raises:
        InputError: a score is NaN or infinite.
    """
    if isinstance(score, PairsScore):
        score_P = score.of_pairs(pairs.item_P, pairs.caption_P).double().cpu().numpy()
    else:
        score_P = np.empty(len(pairs.item_P))
        step = max(1, _CHUNK // captions)
        for start in range(0, items, step):
            block_IT = score(slice(start, min(start + step, items)), slice(0, captions))
            here_P = (pairs.item_P >= start) & (pairs.item_P < start + step)
            at = (pairs.item_P[here_P] - start, pairs.caption_P[here_P])
            score_P[here_P] = block_IT[tuple(map(torch.from_numpy, at))].double().cpu().numpy()
    if not np.isfinite(score_P).all():
        raise InputError(
            "the model gives scores that are no numbers; check the features and the checkpoint: a diverged model "
            "scores like this"
        )
    return score_P


def tau(score_P: np.ndarray, rating_PR: np.ndarray, variant: Literal["b", "c"]) -> float:
    """Return Kendall's tau in per cent, with every rating a point of its own; 0 where all scores are equal."""
    found = kendalltau(np.repeat(score_P, rating_PR.shape[1]), rating_PR.ravel(), variant=variant)
    return 100.0 * float(np.nan_to_num(found.statistic))


def deviation(
    score_P: np.ndarray, rating_PR: np.ndarray, item_P: np.ndarray, variant: Literal["b", "c"]
) -> float:
    """Return the standard deviation of `tau` over `RESAMPLES` bootstrap samples of the images; the same each time."""
    order_P = np.argsort(item_P, kind="stable")
    _, first_I, count_I = np.unique(item_P[order_P], return_index=True, return_counts=True)
    random, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        drawn_I = random.integers(len(first_I), size=len(first_I))
        sample_P = order_P[ragged(first_I[drawn_I], count_I[drawn_I])[1]]
        found.append(tau(score_P[sample_P], rating_PR[sample_P], variant))
    return float(np.std(found, ddof=1))


def agreement_evaluation(
    split: RetrievalSplit, score: Score, protocol: ScoringProtocol, judgments: Judgments
) -> Evaluation:
    """Compare the scores of a split's judged pairs with the judgments.

    Args:
        split: of images.
        score: of the split.
        protocol: whose `right` is the kind of judgments.
        judgments: of that kind.
    """
    kind, data = protocol.right, split.pairs
    assert kind in ("expert", "crowd")
    pairs = judged_pairs(
        judgments,
        files=[item.path for item in split.corpus.items(split.name)],
        count_N=data.count_N,
        own=kind == "crowd",
    )
    score_P = scores_of(score, pairs, items=len(data.item_ids), captions=len(data.texts))
    variant = _VARIANT[kind]
    value = tau(score_P, pairs.rating_PR, variant)
    margin = 1.96 * deviation(score_P, pairs.rating_PR, pairs.item_P, variant)
    other = "b" if variant == "c" else "c"
    described = {
        of: Metric(name=f"tau_{of}", chance=0.0, unit="%", in_tables=of == variant) for of in (variant, other)
    }
    primary, second = described.values()
    return Evaluation(
        protocol=protocol.name,
        protocol_version=protocol.version,
        primary=primary,
        others=(second,),
        metrics={
            primary.name: value,
            second.name: tau(score_P, pairs.rating_PR, other),
            "low": value - margin,
            "high": value + margin,
            "pairs": float(len(score_P)),
            "ratings": float(pairs.rating_PR.size),
            "own_left_out": float(pairs.own),
            "unknown": float(pairs.unknown),
        },
        per_query={
            "image_id": data.item_ids[pairs.item_P],
            "caption": pairs.caption_P,
            "score": score_P,
            "rating": pairs.rating_PR.mean(axis=1),
        },
    )
