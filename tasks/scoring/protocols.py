"""Named evaluation protocols of retrieval, so that numbers under one name are comparable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from polypool.infra.errors import InputError, unknown

if TYPE_CHECKING:  # verbs that only read results, such as `compare`, do not import torch
    from polypool.tasks.models.retrieval_model import RetrievalModel

Rescore = Literal["dsl", "qbnorm"]
RESCORED: dict[Rescore, str] = {
    "dsl": "scores times their softmax over the queries (dual softmax), so that each query sees all others",
    "qbnorm": "scores normalised by a bank of training queries (QB-Norm)",
}
"""Description of each rescoring by name, the suffix of a protocol's name: `f8k-1k-qbnorm`."""


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """An evaluation protocol of retrieval.

    Args:
        name: in runs and tables.
        version: incremented when the same scores would give other numbers; recorded with them.
        about: one-line description.
        split: the intended split.
        items: required number of images or videos; any if None.
        captions: required number of captions; any if None.
        first: number of the split's first items to use; all if None.
        distinct: a caption shared by several items is in the gallery once, with several right answers.
        floor_median: round the median rank down, as in VSE++ and its followers, but not in HGR.
        folds: contiguous parts of equal size, each a separate gallery; metrics are averaged.
        right: right answers: each image's `own` captions; by the ratings of Crisscrossed Captions, `cxc`, between and
            within modalities (`tasks.scoring.crisscrossed`); or of ECCV Caption, `eccv`, for its queries only
            (`polypool.tasks.scoring.extended`).
        rescore: rescoring before ranking (`polypool.tasks.scoring.rescoring`): dual softmax, `dsl`, or a bank of
            training queries, `qbnorm`; empty for none.
        vectors: compare only the first vectors of each set, this many, for models trained with nested sets
            (`polypool.tasks.models.matryoshka`); 0 for all.
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
    right: Literal["own", "cxc", "eccv"] = "own"
    rescore: Rescore | Literal[""] = ""
    vectors: int = 0

    @property
    def by_bank(self) -> bool:
        """Whether it needs the scores of training queries."""
        return self.rescore == "qbnorm"

    @property
    def warning(self) -> str:
        """A warning for readers of its numbers; empty for none."""
        if self.rescore != "dsl":
            return ""
        return (
            f"{self.name}: dual softmax ranks each query with all other queries of the split; its numbers are not "
            "comparable with those of single queries"
        )

    def rescored(self, how: Rescore) -> ScoringProtocol:
        """Return the protocol with rescoring before ranking, under a derived name.

        Raises:
            InputError: the protocol does not support rescoring.
        """
        if self.right != "own" or self.rescore:
            why = "rescores already" if self.rescore else "does not rank a split by its own pairs alone"
            raise InputError(f"protocol {self.name!r} {why}; it cannot be rescored by {how}")
        return replace(self, name=f"{self.name}-{how}", about=f"{self.about}; {RESCORED[how]}", rescore=how)

    def fits(self, items: int, captions: int) -> bool:
        """Whether a split of this size can be scored."""
        expected = self.items or items, self.captions or captions
        return items >= 2 * self.folds and expected == (items, captions)

    def check_split(self, split: str, captions: Sequence[int]) -> None:
        """Check a split before it is scored.

        Args:
            split: its name.
            captions: number of captions of each of its items.

        Raises:
            InputError: the wrong size, or the test split under a protocol for model selection.
        """
        if split == "test" and self.split != "test":
            others = [protocol.name for protocol in PROTOCOLS.values() if protocol.split == "test"]
            raise InputError(
                f"protocol {self.name!r} selects epochs on the split {self.split!r} and cannot score the test split; "
                f"choose one of {', '.join(others)}"
            )
        captions = captions[: self.first]
        self.check(len(captions), sum(captions))

    def check(self, items: int, captions: int) -> None:
        """Check the size of a split.

        Raises:
            InputError: gives actual and expected size, and protocols that fit.
        """
        if not self.fits(items, captions):
            exact = f"{self.items:,} items" if self.items else f"at least {2 * self.folds} items"
            exact += f" and {self.captions:,} captions" if self.captions else ""
            others = [p.name for p in PROTOCOLS.values() if p.split == self.split and p.fits(items, captions)]
            advice = f"protocols that fit it: {', '.join(others)}"
            if not others:
                advice = "no protocol fits it: ingest the data again with a larger split (--split, --val)"
            raise InputError(
                f"protocol {self.name!r} is defined on {exact}, and this split has {items:,} items and "
                f"{captions:,} captions; {advice}"
            )


# Precedes K in the name of a protocol that compares K vectors of each set, such as `coco-5k-vectors4`.
VECTORS = "-vectors"

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
            right="cxc",
        ),
        ScoringProtocol(
            name="coco-eccv",
            about="COCO, Karpathy test, by the right answers of ECCV Caption to its queries: mAP@R, R-Precision, R@1",
            items=5000,
            captions=25000,
            right="eccv",
        ),
        ScoringProtocol(
            name="f30k-1k",
            about="Flickr30K, Karpathy test: 1,000 images and 5,000 captions",
            items=1000,
            captions=5000,
        ),
        ScoringProtocol(
            name="f8k-1k",
            about="Flickr8k, Karpathy test: 1,000 images and 5,000 captions",
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


def protocol_named(name: str) -> ScoringProtocol:
    """Return a protocol by its name, such as `coco-5k`, `coco-5k-vectors4` or `coco-5k-dsl`."""
    plain, how = _base_and_rescoring(name)
    if how:
        return protocol_named(plain).rescored(how)
    exact, mark, k = name.partition(VECTORS)
    if exact not in PROTOCOLS:
        raise unknown("protocol", exact, PROTOCOLS)
    protocol = PROTOCOLS[exact]
    if not mark:
        return protocol
    if not re.fullmatch("[1-9][0-9]*", k):
        raise InputError(
            f"protocol {name!r}: expected a number from 1 after {mark!r}, such as {exact}{mark}4"
        )
    about = f"{protocol.about}; {k} vectors of each set are compared"
    return replace(protocol, name=name, about=about, vectors=int(k))


def _base_and_rescoring(name: str) -> tuple[str, Rescore | Literal[""]]:
    """Split a protocol's name into the base protocol and its rescoring, if any."""
    for how in RESCORED:
        if name not in PROTOCOLS and name.endswith(f"-{how}"):
            return name.removesuffix(f"-{how}"), how
    return name, ""


def check_model(protocol: ScoringProtocol, model: RetrievalModel) -> None:
    """Check that a model supports a protocol with few vectors, rescoring, or comparisons within a modality.

    Raises:
        InputError: names an alternative.
    """
    base = _base_and_rescoring(protocol.name)[0]
    if protocol.vectors and not model.has_embeddings:
        raise InputError(
            f"protocol {protocol.name!r} compares few vectors of each set, and this model has no embeddings; "
            f"evaluate it under {protocol.name.partition(VECTORS)[0]!r}"
        )
    if protocol.vectors > model.set_size:
        sets = f"sets of at most {model.set_size:g} vectors" if model.set_size else "no sets of vectors"
        raise InputError(
            f"protocol {protocol.name!r} compares {protocol.vectors} vectors of each set, and this model has {sets}; "
            f"evaluate it under {protocol.name.partition(VECTORS)[0]!r}, or train one with more, such as --model "
            "matryoshka --aggregator 'map(k=16)'"
        )
    if protocol.by_bank and model.looks_at_pairs:
        raise InputError(
            f"protocol {protocol.name!r} scores all training queries with the whole split, which takes a model that "
            f"looks at every pair too long; evaluate it under {base!r}"
        )
    if protocol.rescore == "dsl" and model.similarity.of_distributions:
        raise InputError(
            f"protocol {protocol.name!r} multiplies scores by their softmax, and scores of distributions are negative, "
            f"so that the best would become the worst; evaluate it under '{base}-qbnorm' (--rescore qbnorm)"
        )
    if protocol.right == "cxc" and not model.has_embeddings:
        raise InputError(
            f"protocol {protocol.name!r} also compares captions with captions, and this model has no embeddings; "
            "choose another protocol, such as coco-5k"
        )


def is_for_test(name: str) -> bool:
    """Whether a protocol with this name is for the test split."""
    if _base_and_rescoring(name)[0].partition(VECTORS)[0] not in PROTOCOLS:
        return False  # skip the slow search for similar names in `unknown`: there may be thousands of names
    return protocol_named(name).split == "test"


def warnings_of(names: Iterable[str]) -> list[str]:
    """Return the warnings of retrieval protocols; other protocols have none."""
    known = [protocol_named(name) for name in dict.fromkeys(names) if is_for_test(name)]
    return [protocol.warning for protocol in known if protocol.warning]
