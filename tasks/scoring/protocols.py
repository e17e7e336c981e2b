"""Named ways to score retrieval, so that two numbers with one name can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polypool.infra.errors import InputError, unknown

Rescore = Literal["dsl", "qbnorm", "sinkhorn"]
RESCORED: dict[Rescore, str] = {
    "dsl": "scores times their softmax over the queries (dual softmax), so that each query sees all others",
    "qbnorm": "scores normalised by a bank of training queries (QB-Norm)",
    "sinkhorn": "scores balanced over the gallery by a bank of training queries (Sinkhorn)",
}
"""What each way to rescore does, by its name, which stands at the end of a protocol's: `f8k-1k-qbnorm`."""

# Raised whenever the same model would get other numbers by `polypool.tasks.scoring.ranking.reranking`.
_RERANKED = 1


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
        distinct: a caption that several items share is in the gallery once, with several right answers.
        floor_median: the median rank is rounded down, as in VSE++ and its followers, but not in HGR.
        folds: contiguous parts of equal size, each a gallery of its own; their metrics are averaged.
        right: which answers are right: each image's `own` captions; by the ratings of Crisscrossed Captions, `cxc`,
            between modalities and within them (`tasks.scoring.crisscrossed`); or those of ECCV Caption, `eccv`, for its
            queries alone (`polypool.tasks.scoring.extended`). Or nothing is ranked, and scores are compared with what
            people said of pairs of Flickr8k, `expert` or `crowd` (`polypool.tasks.scoring.agreement`).
        rerank: how many of each query's gallery are scored, for models that look at every pair
            (`polypool.tasks.scoring.ranking.reranking`); 0 for all.
        rescore: how scores are changed before they are ranked (`polypool.tasks.scoring.ranking.rescoring`): by dual
            softmax, `dsl`, or by a bank of training queries, `qbnorm` and `sinkhorn`; not where empty.
        vectors: how many vectors of each set are compared, the first ones, for models trained so that these say most
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
    right: Literal["own", "cxc", "eccv", "expert", "crowd"] = "own"
    rerank: int = 0
    rescore: Rescore | Literal[""] = ""
    vectors: int = 0

    @property
    def by_bank(self) -> bool:
        """Whether training queries are scored with the split, too."""
        return self.rescore in ("qbnorm", "sinkhorn")

    @property
    def warning(self) -> str:
        """What readers of its numbers must know; empty for nothing."""
        if self.rescore != "dsl":
            return ""
        return (
            f"{self.name}: dual softmax looks at all other queries of the split, so its numbers hold for queries that "
            "come together, and cannot be compared with those of queries that come one by one"
        )

    def rescored(self, how: Rescore) -> ScoringProtocol:
        """Return the same protocol with scores that are changed before they are ranked, under a name of its own.

        Raises:
            InputError: the protocol needs the scores as they are.
        """
        if self.right != "own" or self.rerank or self.rescore:
            why = "scores few of the pairs" if self.rerank else "does not rank a split by its own pairs alone"
            why = "rescores already" if self.rescore else why
            raise InputError(f"protocol {self.name!r} {why}; it cannot be rescored by {how}")
        return replace(self, name=f"{self.name}-{how}", about=f"{self.about}; {RESCORED[how]}", rescore=how)

    def reranked(self, k: int) -> ScoringProtocol:
        """Return the same protocol with `k` of each query's gallery scored, which has a name and numbers of its own.

        Raises:
            InputError: k is below 1, or the protocol needs scores that reranking does not compute.
        """
        if k < 1:
            raise InputError(f"rerank={k}: at least 1 of each query's gallery must be scored, such as 100")
        if self.right != "own":
            why = {
                "cxc": "compares captions with captions, which a model of pairs does not",
                "eccv": "asks for few of the queries, whose whole gallery is scored",
            } | dict.fromkeys(("expert", "crowd"), "ranks nothing: it scores the pairs that people judged")
            raise InputError(f"protocol {self.name!r} {why[self.right]}; it cannot be reranked")
        return replace(
            self,
            name=f"{self.name}{RERANK}{k}",
            about=f"{self.about}; {k} of each query's gallery are scored",
            version=self.version + _RERANKED - 1,
            rerank=k,
        )

    def with_vectors(self, k: int) -> ScoringProtocol:
        """Return the same protocol with the first `k` vectors of each set compared, under a name of its own.

        Raises:
            InputError: k is below 1.
        """
        if k < 1:
            raise InputError(f"vectors={k}: at least 1 vector of each set must be compared, such as 4")
        name, about = f"{self.name}{VECTORS}{k}", f"{self.about}; {k} vectors of each set are compared"
        return replace(self, name=name, about=about, vectors=k)

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
            advice = f"protocols that fit it: {', '.join(others)}"
            if not others:
                advice = "no protocol fits it: ingest the data again with a larger split (--split, --val)"
            raise InputError(
                f"protocol {self.name!r} is defined on {exact}, and this split has {items:,} items and "
                f"{captions:,} captions; {advice}"
            )


# Stand before K in the name of a protocol that scores K of each query's gallery, `coco-5k-rerank100`, or compares K
# vectors of each set, `coco-5k-vectors4`.
RERANK, VECTORS = "-rerank", "-vectors"

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
            name="flickr8k-expert",
            about="Flickr8k, test: tau-c of scores and experts' marks of 5,664 pairs, as metrics of captions report it",
            items=1000,
            captions=5000,
            right="expert",
        ),
        ScoringProtocol(
            name="flickr8k-crowd",
            about="Flickr8k, test: tau-b of scores and the share of people who said yes to 47,830 pairs, likewise",
            items=1000,
            captions=5000,
            right="crowd",
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
    """Return a protocol by its name, such as `coco-5k`, `coco-5k-rerank100` or `coco-5k-dsl`."""
    plain, how = _parted(name)
    if how:
        return protocol_named(plain).rescored(how)
    exact, mark, k = _numbered(name)
    if exact not in PROTOCOLS:
        raise unknown("protocol", exact, PROTOCOLS)
    if not mark:
        return PROTOCOLS[exact]
    if not re.fullmatch(r"-?[0-9]+", k):
        raise InputError(f"protocol {name!r}: expected a number behind {mark!r}, such as {exact}{mark}100")
    return PROTOCOLS[exact].reranked(int(k)) if mark == RERANK else PROTOCOLS[exact].with_vectors(int(k))


def _numbered(name: str) -> tuple[str, str, str]:
    """Return the name of a protocol in `PROTOCOLS`, the mark behind it, if any, and what is behind that."""
    marks = (RERANK, VECTORS)
    return next((parts for parts in map(name.partition, marks) if parts[1]), (name, "", ""))


def _parted(name: str) -> tuple[str, Rescore | Literal[""]]:
    """Return the name of a protocol as it scores, and how that is rescored, if at all."""
    for how in RESCORED:
        if name not in PROTOCOLS and name.endswith(f"-{how}"):
            return name.removesuffix(f"-{how}"), how
    return name, ""


def check_model(protocol: ScoringProtocol, *, looks_at_pairs: bool) -> None:
    """Refuse to rerank for a model that need not look at every pair, and a bank of queries for one that must.

    Raises:
        InputError: says what to do.
    """
    if protocol.rerank and not looks_at_pairs:
        exact, _, _ = protocol.name.partition(RERANK)
        raise InputError(
            f"protocol {protocol.name!r} is for models that look at every pair, and this one encodes images and "
            f"captions apart, so that all its scores are quickly had; evaluate it under {exact!r}"
        )
    if protocol.vectors and looks_at_pairs:
        raise InputError(
            f"protocol {protocol.name!r} compares few vectors of each set, and this model looks at every pair; "
            f"evaluate it under {_numbered(protocol.name)[0]!r}"
        )
    if protocol.by_bank and looks_at_pairs:
        raise InputError(
            f"protocol {protocol.name!r} scores all training queries with the whole split, which takes a model that "
            f"looks at every pair too long; evaluate it under {_parted(protocol.name)[0]!r}"
        )


def is_for_test(name: str) -> bool:
    """Whether a protocol of this name is one for the test split."""
    if _numbered(_parted(name)[0])[0] not in PROTOCOLS:
        return False  # without the search for a name that is near, of which there may be thousands
    try:
        return protocol_named(name).split == "test"
    except InputError:
        return False


def warnings_of(names: Iterable[str]) -> list[str]:
    """Return the warnings of protocols of retrieval; names of other protocols have none."""
    known = [protocol_named(name) for name in dict.fromkeys(names) if is_for_test(name)]
    return [protocol.warning for protocol in known if protocol.warning]
