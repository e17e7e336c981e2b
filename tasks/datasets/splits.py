"""Splits of data sets: their names, and random ones that are the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

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
    """Return the name of a split here: `val` for `Validation` or `dev`; unknown words stay."""
    small = word.strip().lower()
    return _OTHER_WORDS.get(small, small if small in SPLITS else word.strip())


def rank_key(id: str, *, seed: int) -> bytes:
    """Return the SHA-256 of an id and a seed: ids in the order of these are in a random one, on every machine."""
    return hashlib.sha256(f"{seed}/{id}".encode("utf-8", "surrogatepass")).digest()


def choose(ids: Iterable[str], count: int, *, seed: int) -> set[str]:
    """Return `count` random ids: those whose `rank_key` is smallest.

    So the choice depends neither on the order of the ids nor on the version of a random generator.
    """
    return set(sorted(ids, key=lambda id: rank_key(id, seed=seed))[:count])


@dataclass(frozen=True, kw_only=True)
class RandomSplits:
    """Random splits, as a reader's options `--split`, `--val` and `--seed` say.

    Attributes:
        split: the shares of train, val and test, such as `80/10/10`.
        seed: of the random choice.
        val: how many pictures or videos of train become val, where data have splits of their own.

    Raises:
        InputError: shares other than three numbers from 0, of which the first is above 0.
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
        """Return the split of each id; a share above 0 gets one id at least.

        A share gets two at least where there are enough for all, since retrieval is scored on two. What is test depends
        on the ids and the seed alone, not on their order, nor on the share of val.

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
        for place, split in reversed([*enumerate(wanted)][1:]):
            most = len(ranked) - start - place  # one for each that is to come
            end = start + min(max(least, round(self.shares[split] * len(ranked))), most)
            split_of |= dict.fromkeys(ranked[start:end], split)
            start = end
        return split_of

    def held_out(self, ids: Mapping[str, Set[str]]) -> set[str]:
        """Return the ids of train that become val.

        Args:
            ids: of each split.

        Raises:
            InputError: there is a val split, or nothing of train would be left.
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
