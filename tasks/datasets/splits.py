"""Splits of data sets: names, random splits that are the same on every machine, and published sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from polypool.infra.errors import InputError

SPLITS = ("train", "val", "test")
USUAL_SHARES = "80/10/10"
_OTHER_WORDS = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "validate": "val",
    "dev": "val",
    "development": "val",
    "testing": "test",
}


def split_called(word: str) -> str:
    """Return our name of a split, such as `val` for `Validation` or `dev`; an unknown word is only stripped."""
    small = word.strip().lower()
    return _OTHER_WORDS.get(small, small if small in SPLITS else word.strip())


def rank_key(id: str, *, seed: int) -> bytes:
    """Return the SHA-256 of an id and a seed; sorting by it gives the same random order on every machine."""
    return hashlib.sha256(f"{seed}/{id}".encode("utf-8", "surrogatepass")).digest()


def choose(ids: Iterable[str], count: int, *, seed: int) -> set[str]:
    """Return the `count` ids with the smallest `rank_key`: a random choice.

    It depends neither on the order of the ids nor on the version of a random generator.
    """
    return set(sorted(ids, key=lambda id: rank_key(id, seed=seed))[:count])


def held_out(ids: Collection[str], count: int, *, seed: int, option: str, file: Path) -> set[str]:
    """Return `count` random training videos, which will be the val split.

    Raises:
        InputError: a negative `count`, or one that leaves no training video; the message names the option and the file.
    """
    if not 0 <= count < len(ids):
        raise InputError(
            f"{option}={count:,}: expected 0 or more, and fewer than the {len(ids):,} usable training videos of {file}"
        )
    return choose(ids, count, seed=seed)


@dataclass(frozen=True, kw_only=True)
class RandomSplits:
    """Random splits by a reader's options `--split`, `--val` and `--seed`.

    Attributes:
        split: the shares of train, val and test, such as `80/10/10`.
        seed: of the random choice.
        val: number of pictures or videos to move from train to val, for data that have splits.

    Raises:
        InputError: shares other than three nonnegative numbers, the first above 0.
    """

    split: str
    seed: int
    val: int = 0

    def __post_init__(self) -> None:
        _ = self.shares

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the splits, which sum to one."""
        try:
            shares = [float(part) for part in self.split.split("/")]
        except ValueError:
            shares = []
        if len(shares) != len(SPLITS) or not all(0 <= x < float("inf") for x in shares) or not shares[0]:
            raise InputError(
                f"--split {self.split!r}: expected the shares of train, val and test, such as 80/10/10; the first "
                "above 0"
            )
        return {split: share / sum(shares) for split, share in zip(SPLITS, shares, strict=True)}

    def divide(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the split of each id; each split with a share above 0 gets at least one id.

        Unless there are few ids or one share is nearly 1, it gets at least two, because retrieval needs two candidates.
        The test split depends on the ids, the seed and its share, but not on the order of the ids or the share of val.

        Raises:
            InputError: fewer ids than splits.
        """
        ranked = sorted(ids, key=lambda id: rank_key(id, seed=self.seed))
        wanted = [split for split, share in self.shares.items() if share]
        if len(ranked) < len(wanted):
            raise InputError(
                f"{len(ranked)} pictures or videos cannot be divided into {' and '.join(wanted)}"
            )
        split_of, start = dict.fromkeys(ranked, wanted[0]), 0
        least = 2 if len(ranked) >= 2 * len(wanted) else 1
        for later, split in reversed([*enumerate(wanted)][1:]):
            most = len(ranked) - start - later  # at least one for each remaining split
            end = start + min(max(least, round(self.shares[split] * len(ranked))), most)
            split_of |= dict.fromkeys(ranked[start:end], split)
            start = end
        return split_of

    def held_out(self, ids: Mapping[str, Set[str]]) -> set[str]:
        """Return the ids of train that become val.

        Args:
            ids: of each split.

        Raises:
            InputError: a val split exists, `val` is below 1, or train would become empty.
        """
        train = ids.get("train", set())
        if "val" in ids:
            raise InputError(f"--val {self.val} makes a val split of train, and the data have one")
        if not 0 < self.val < len(train):
            raise InputError(
                f"--val {self.val}: expected 1 or more, and fewer than the {len(train):,} of train"
            )
        return choose(train, self.val, seed=self.seed)

    def __str__(self) -> str:
        return f"splits are random: train/val/test {self.split}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Published:
    """The counts of a data set.

    Args:
        name: the data set and its division.
        splits: rows of each split; `train+val` counts both together, for a val split held out of train.
        rows: the counted unit.
        captions: in all splits; None if unknown.
        absent: splits that may be missing.
    """

    name: str
    splits: Mapping[str, int]
    rows: str = "items"
    captions: int | None = None
    absent: frozenset[str] = field(default_factory=frozenset)

    def differences(self, splits: Mapping[str, int], captions: int | None = None) -> list[str]:
        """Return the differences, such as `train 6,512 of 6,513 items`; empty if all counts are as published."""
        differences = []
        for names, expected in self.splits.items():
            found = sum(splits.get(split, 0) for split in names.split("+"))
            if found != expected and (found or names not in self.absent):
                differences.append(f"{names} {found:,} of {expected:,} {self.rows}")
        if self.captions is not None and captions is not None and captions != self.captions:
            differences.append(f"{captions:,} of {self.captions:,} captions")
        return differences


def compare_counts(
    published: Sequence[Published], splits: Mapping[str, int], *, captions: int | None = None
) -> str:
    """Return a line on whether the counts of a corpus match a published data set, or how they differ.

    Without a match, the line compares with the data set that has the fewest differences (the first, if several do).
    """
    nearest = min(published, key=lambda each: len(each.differences(splits, captions)))
    differences = nearest.differences(splits, captions)
    if not differences:
        return f"counts match the published ones: {nearest.name}"
    return f"counts differ from the published ones ({nearest.name}): {', '.join(differences)}"


# Karpathy and Fei-Fei, CVPR 2015: restval is part of the training split; most images have five captions.
COCO = Published(
    name="COCO, Karpathy's splits",
    splits={"train+restval": 113_287, "val": 5_000, "test": 5_000},
    captions=616_767,
)
FLICKR30K = Published(
    name="Flickr30K, Karpathy's splits",
    splits={"train": 29_000, "val": 1_014, "test": 1_000},
    captions=155_070,
)
# Hodosh et al., JAIR 2013: five captions of every image; Karpathy's splits are the official ones.
FLICKR8K = Published(
    name="Flickr8k, Karpathy's splits",
    splits={"train": 6_000, "val": 1_000, "test": 1_000},
    captions=40_000,
)
# Lee et al., ECCV 2018 (SCAN): five captions of every image; testall of COCO.
SCAN = (
    Published(
        name="COCO, SCAN's features", splits={"train": 113_287, "val": 5_000, "test": 5_000}, captions=616_435
    ),
    Published(
        name="Flickr30K, SCAN's features",
        splits={"train": 29_000, "val": 1_014, "test": 1_000},
        captions=155_070,
    ),
)
# Xu et al., CVPR 2016: 20 captions of every video.
MSRVTT = Published(
    name="MSR-VTT, full splits", splits={"train": 6_513, "val": 497, "test": 2_990}, captions=200_000
)
# Yu et al., ECCV 2018 (the test set, a caption a video); Gabeur et al., ECCV 2020 (9k); Miech et al., ICCV 2019 (7k).
MSRVTT_1KA = tuple(
    Published(
        name=f"MSR-VTT, split 1k-A with {name} training videos",
        splits={"train+val": train, "test": 1_000},
        captions=20 * train + 1_000,
    )
    for name, train in (("9k", 9_000), ("7k", 7_010))
)
# Wang et al., ICCV 2019; Chen et al., CVPR 2020 (the halves of the validation videos): ten English captions each.
VATEX = Published(
    name="VATEX, validation in halves",
    splits={"train": 25_991, "val": 1_500, "test": 1_500},
    captions=289_910,
)
# Venugopalan et al., ICCV 2015 (the division).
MSVD = Published(name="MSVD", splits={"train": 1_200, "val": 100, "test": 670})
# Hendricks et al., ICCV 2017, and Krishna et al., ICCV 2017: a paragraph a video; ActivityNet's val_1 is test.
DIDEMO = Published(name="DiDeMo", splits={"train+val": 9_460, "test": 1_004})
ACTIVITYNET = Published(name="ActivityNet Captions", splits={"train+val": 10_009, "test": 4_917})
# Goyal et al., CVPR 2017: train2014 is train and val, val2014 is test.
VQA2 = Published(
    name="VQA 2.0",
    splits={"train+val": 443_757, "test": 214_354, "test-dev": 107_394, "test2015": 447_793},
    rows="questions",
    absent=frozenset({"test-dev", "test2015"}),
)
# Parekh et al., EACL 2021: rows of the official files of a split.
CXC = {
    "val": Published(
        name="Crisscrossed Captions, val",
        splits={"sits": 44_722, "sts": 44_009, "sis": 42_767},
        rows="ratings",
    ),
    "test": Published(
        name="Crisscrossed Captions, test",
        splits={"sits": 44_833, "sts": 44_045, "sis": 46_719},
        rows="ratings",
    ),
}
# Chun et al., ECCV 2022 (the statistics published with the files): right answers of all queries.
ECCV = Published(
    name="ECCV Caption", splits={"image_to_caption": 22_550, "caption_to_image": 11_279}, rows="pairs"
)
