"""Named ways to score retrieval, so that two numbers with one name can be compared.

Scores are asked for block by block, `score(images, captions)` with two slices, and never held together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infra.errors import InputError, unknown
from tasks.base import Score
from tasks.scoring.gallery import RetrievalGallery
from tasks.scoring.metrics import KS, Ties, retrieval_metrics


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """How a split is scored.

    Args:
        name: what runs and tables call it.
        version: raised whenever the same scores would get other numbers; tracking keeps it with them.
        about: one line for people.
        split: the split it is meant for.
        items: images or videos that it must have; any number where None.
        captions: captions that it must have, likewise.
        first: how many of the split's first items are used; all where None.
        distinct: a caption that several items share stands in the gallery once, with several right answers.
        floor_median: the median rank is rounded down, as in VSE++ and its followers, but not in HGR.
        folds: contiguous parts of equal size, each a gallery of its own; their metrics are averaged.
        crisscrossed: right answers are those of Crisscrossed Captions, between modalities and within them
            (`tasks.scoring.crisscrossed`), instead of each image's own captions.
    """

    name: str
    about: str
    version: int = 1
    split: str = "test"
    items: int | None = None
    captions: int | None = None
    first: int | None = None
    distinct: bool = False
    floor_median: bool = True
    folds: int = 1
    crisscrossed: bool = False

    def fits(self, items: int, captions: int) -> bool:
        """Say whether a split of this size can be scored so."""
        expected = self.items or items, self.captions or captions
        return items >= 2 * self.folds and expected == (items, captions)

    def check_split(self, split: str, captions: Sequence[int]) -> None:
        """Refuse a split before anything of it is scored.

        Args:
            split: its name.
            captions: how many captions each of its items has.

        Raises:
            InputError: it has the wrong size, or it is the test split and this protocol is for choosing models.
        """
        if split == "test" and self.split != "test":
            others = [protocol.name for protocol in PROTOCOLS.values() if protocol.split == "test"]
            raise InputError(
                f"protocol {self.name!r} is for the split {self.split!r}, where epochs are chosen, and not for the "
                f"test split; protocols of that: {', '.join(others)}"
            )
        captions = captions[: self.first]
        self.check(len(captions), sum(captions))

    def check(self, items: int, captions: int) -> None:
        """Refuse a split of the wrong size.

        Raises:
            InputError: says what was found, what is expected and which protocol fits.
        """
        if not self.fits(items, captions):
            exact = f"{self.items:,} items" if self.items else f"at least {2 * self.folds} items"
            exact += f" and {self.captions:,} captions" if self.captions else ""
            others = [p.name for p in PROTOCOLS.values() if p.split == self.split and p.fits(items, captions)]
            raise InputError(
                f"protocol {self.name!r} is defined on {exact}, and this split has {items:,} items and "
                f"{captions:,} captions; protocols that fit it: {', '.join(others) or 'none'}"
            )


PROTOCOLS: dict[str, ScoringProtocol] = {
    protocol.name: protocol
    for protocol in (
        ScoringProtocol(
            name="coco-5k",
            about="COCO, Karpathy test: 5,000 images and 25,000 captions in one gallery",
            items=5000,
            captions=25000,
        ),
        ScoringProtocol(
            name="coco-1k-5fold",
            about="COCO, Karpathy test: mean over five folds of 1,000 images and their captions",
            items=5000,
            captions=25000,
            folds=5,
        ),
        ScoringProtocol(
            name="coco-5k-cxc",
            about="COCO, Karpathy test, by the ratings of Crisscrossed Captions; also text-text and image-image",
            items=5000,
            captions=25000,
            crisscrossed=True,
        ),
        ScoringProtocol(
            name="f30k-1k",
            about="Flickr30K, Karpathy test: 1,000 images and 5,000 captions",
            items=1000,
            captions=5000,
        ),
        ScoringProtocol(
            name="msrvtt-full",
            about="MSR-VTT, official test: 2,990 videos against their distinct captions, as in HGR",
            items=2990,
            captions=59800,
            distinct=True,
            floor_median=False,
        ),
        ScoringProtocol(
            name="msrvtt-1ka",
            about="MSR-VTT, the 1k-A test pairs: 1,000 videos, one caption each",
            items=1000,
            captions=1000,
            floor_median=False,
        ),
        ScoringProtocol(
            name="vatex-1500",
            about="VATEX, half of the official validation split: 1,500 videos against their distinct captions",
            items=1500,
            captions=15000,
            distinct=True,
            floor_median=False,
        ),
        ScoringProtocol(
            name="msvd", about="MSVD, test: 670 videos, all captions of each", items=670, floor_median=False
        ),
        ScoringProtocol(name="whole", about="every item and caption of the split, whatever their number"),
        ScoringProtocol(
            name="distinct",
            about="every item of the split against its distinct captions, whatever their number",
            distinct=True,
            floor_median=False,
        ),
        ScoringProtocol(
            name="val-1k",
            about="the first 1,000 items of the validation split, or all if fewer: for choosing models",
            split="val",
            first=1000,
        ),
        ScoringProtocol(
            name="val-distinct",
            about="every item of the validation split against its distinct captions: for choosing models",
            split="val",
            distinct=True,
            floor_median=False,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class ProtocolResult:
    """What `evaluate_protocol` found.

    Args:
        metrics: `i2t/R1`, ..., `rsum`; means over the folds.
        ranks_i2t: 0-based rank of each item's best caption, in its own fold.
        ranks_t2i: 0-based rank of each caption's best item, in its own fold.
        recalls: by `i2t/R1` and the like, the recall of each query, from 0 to 1, in the order of the ranks.
        caption_G: the captions that were ranked, as places in the split.
        ties: queries of both directions whose right answer has the same score as a wrong one.
        chance: what random scores reach of `i2t/R1`, ..., `rsum` on average.
    """

    metrics: dict[str, float]
    ranks_i2t: np.ndarray
    ranks_t2i: np.ndarray
    recalls: dict[str, np.ndarray]
    caption_G: np.ndarray
    ties: int
    chance: dict[str, float]


def protocol_named(name: str) -> ScoringProtocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def evaluate_protocol(
    protocol: ScoringProtocol,
    score: Score,
    owner_T: np.ndarray,
    n_items: int,
    *,
    texts: Sequence[str] | None = None,
    directions: tuple[str, str] = ("i2t", "t2i"),
    ties: Ties = "expected",
) -> ProtocolResult:
    """Score a split under a protocol.

    Args:
        protocol: how.
        score: the scores of a block, `score(items, captions) -> (items, captions)`; higher is more alike.
        owner_T: the image or video of each caption of the split, in the items' order.
        n_items: images or videos of the split.
        texts: the captions themselves, which `distinct` protocols compare.
        directions: what items to captions and captions to items are called.
        ties: see `rank_queries`.

    Raises:
        InputError: the split has the wrong size, captions are out of order, an item has no caption, or a
            score is NaN.
    """
    owner_T = np.asarray(owner_T)
    if np.any(np.diff(owner_T) < 0):
        at = int(np.argmax(np.diff(owner_T) < 0)) + 1
        raise InputError(f"caption {at} belongs to an earlier item than caption {at - 1}: sort them by item")
    items = min(n_items, protocol.first or n_items)
    if items < n_items:
        owner_T = owner_T[: np.searchsorted(owner_T, items)]
    protocol.check(items, len(owner_T))
    assert texts is not None or not protocol.distinct, "distinct captions are told apart by their texts"

    bounds = np.linspace(0, items, protocol.folds + 1, dtype=int).tolist()
    folds = [
        RetrievalGallery.of(slice(*fold), owner_T, texts=texts if protocol.distinct else None)
        for fold in itertools.pairwise(bounds)
    ]
    ranked = [fold.rank(score, ties=ties) for fold in folds]
    metrics = [
        retrieval_metrics(i2t, t2i, directions=directions, floor_median=protocol.floor_median)
        for i2t, t2i in ranked
    ]
    chance = [fold.chance(directions=directions) for fold in folds]
    recalls = {
        f"{direction}/R{k}": np.concatenate([ranks[side].recall_Q(k) for ranks in ranked])
        for side, direction in enumerate(directions)
        for k in KS
    }
    return ProtocolResult(
        metrics=_mean(metrics),
        ranks_i2t=np.concatenate([i2t.rank_Q for i2t, _ in ranked]),
        ranks_t2i=np.concatenate([t2i.rank_Q for _, t2i in ranked]),
        recalls=recalls,
        caption_G=np.concatenate([fold.column_G for fold in folds]),
        ties=sum(i2t.tied + t2i.tied for i2t, t2i in ranked),
        chance=_mean(chance),
    )


def _mean(folds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}
