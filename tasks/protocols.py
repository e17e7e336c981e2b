"""Named ways to score retrieval, so that two numbers with one name can be compared.

Scores are asked for block by block, `score(images, captions)` with two slices, and never held together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from infra.errors import InputError, unknown
from tasks.metrics import Positives, Ranks, Ties, chance_rsum, rank_queries, retrieval_metrics
from tasks.scores import Score


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a split is scored.

    Args:
        name: what runs and tables call it.
        about: one line for people.
        split: the split it is meant for.
        images: images that it must have; any number where None.
        captions: captions that it must have, likewise.
        first: how many of the split's first images are used; all where None.
        folds: contiguous parts of equal size, each a gallery of its own; their metrics are averaged.
        crisscrossed: right answers are those of Crisscrossed Captions, between modalities and within them
            (`tasks.crisscrossed`), instead of each image's own captions.
    """

    name: str
    about: str
    split: str = "test"
    images: int | None = None
    captions: int | None = None
    first: int | None = None
    folds: int = 1
    crisscrossed: bool = False

    def fits(self, images: int, captions: int) -> bool:
        """Say whether a split of this size can be scored so."""
        return images >= self.folds and (self.images or images, self.captions or captions) == (
            images,
            captions,
        )

    def check(self, images: int, captions: int) -> None:
        """Refuse a split of the wrong size.

        Raises:
            InputError: says what was found, what is expected and which protocol fits.
        """
        if not self.fits(images, captions):
            exact = (
                f"{self.images:,} images and {self.captions:,} captions"
                if self.images
                else "at least one image"
            )
            others = [
                p.name for p in PROTOCOLS.values() if p.split == self.split and p.fits(images, captions)
            ]
            raise InputError(
                f"protocol {self.name!r} is defined on {exact}, and this split has {images:,} images and "
                f"{captions:,} captions; protocols that fit it: {', '.join(others) or 'none'}"
            )


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="coco-5k",
            about="COCO, Karpathy test: 5,000 images and 25,000 captions in one gallery",
            images=5000,
            captions=25000,
        ),
        Protocol(
            name="coco-1k-5fold",
            about="COCO, Karpathy test: mean over five folds of 1,000 images and their captions",
            images=5000,
            captions=25000,
            folds=5,
        ),
        Protocol(
            name="coco-5k-cxc",
            about="COCO, Karpathy test, by the ratings of Crisscrossed Captions; also text-text and image-image",
            images=5000,
            captions=25000,
            crisscrossed=True,
        ),
        Protocol(
            name="f30k-1k",
            about="Flickr30K, Karpathy test: 1,000 images and 5,000 captions",
            images=1000,
            captions=5000,
        ),
        Protocol(name="whole", about="every image and caption of the split, whatever their number"),
        Protocol(
            name="val-1k",
            about="the first 1,000 images of the validation split, or all if fewer: for choosing models",
            split="val",
            first=1000,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class ProtocolResult:
    """What `evaluate_protocol` found.

    Args:
        metrics: `i2t/R1`, ..., `rsum`; means over the folds.
        ranks_i2t: 0-based rank of each image's best caption, in its own fold.
        ranks_t2i: 0-based rank of each caption's image, in its own fold.
        ties: queries of both directions whose right answer has the same score as a wrong one.
        chance: the `rsum` that random scores reach on average.
    """

    metrics: dict[str, float]
    ranks_i2t: np.ndarray
    ranks_t2i: np.ndarray
    ties: int
    chance: float


def protocol_named(name: str) -> Protocol:
    """Return a protocol by its name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def evaluate_protocol(
    protocol: Protocol, score: Score, owner_G: np.ndarray, n_images: int, *, ties: Ties = "expected"
) -> ProtocolResult:
    """Score a split under a protocol.

    Args:
        protocol: how.
        score: the scores of a block, `score(images, captions) -> (images, captions)`; higher is more alike.
        owner_G: the image of each caption of the split, in the images' order.
        n_images: images of the split.
        ties: see `rank_queries`.

    Raises:
        InputError: the split has the wrong size, captions are out of order, an image has no caption, or a
            score is NaN.
    """
    owner_G = np.asarray(owner_G)
    if np.any(np.diff(owner_G) < 0):
        at = int(np.argmax(np.diff(owner_G) < 0)) + 1
        raise InputError(
            f"caption {at} belongs to an earlier image than caption {at - 1}: sort them by image"
        )
    images = min(n_images, protocol.first or n_images)
    if images < n_images:
        owner_G = owner_G[: np.searchsorted(owner_G, images)]
    protocol.check(images, len(owner_G))

    bounds = np.linspace(0, images, protocol.folds + 1, dtype=int)
    folds = [_score_fold(score, owner_G, slice(*fold), ties) for fold in itertools.pairwise(bounds.tolist())]
    metrics = [retrieval_metrics(i2t.rank_Q, t2i.rank_Q) for i2t, t2i, _ in folds]
    return ProtocolResult(
        metrics={name: float(np.mean([fold[name] for fold in metrics])) for name in metrics[0]},
        ranks_i2t=np.concatenate([i2t.rank_Q for i2t, _, _ in folds]),
        ranks_t2i=np.concatenate([t2i.rank_Q for _, t2i, _ in folds]),
        ties=sum(i2t.tied + t2i.tied for i2t, t2i, _ in folds),
        chance=float(np.mean([chance for _, _, chance in folds])),
    )


def _score_fold(score: Score, owner_G: np.ndarray, rows: slice, ties: Ties) -> tuple[Ranks, Ranks, float]:
    """Rank the images `rows` and their captions among themselves; also return the level of chance."""
    columns = slice(*np.searchsorted(owner_G, (rows.start, rows.stop)).tolist())
    owner_G, images = owner_G[columns] - rows.start, rows.stop - rows.start

    def of_images(start: int, stop: int) -> Tensor:
        return score(slice(rows.start + start, rows.start + stop), columns)

    def of_captions(start: int, stop: int) -> Tensor:
        return score(rows, slice(columns.start + start, columns.start + stop)).T

    images_P, captions_P = (
        Positives.of_images(owner_G, images=images),
        Positives.of_captions(owner_G, images=images),
    )
    i2t = rank_queries(of_images, images_P, ties=ties, progress="ranking captions")
    t2i = rank_queries(of_captions, captions_P, ties=ties, progress="ranking images")
    return i2t, t2i, chance_rsum(owner_G, images=images)
