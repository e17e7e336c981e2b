"""How data of one's own are divided: by a column, whose words may be other people's, or by lot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.errors import InputError
from tasks.datasets.draws import draw

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
    """Return what a split is called here: `val` for `Validation` or `dev`; words that nobody knows stay."""
    small = word.strip().lower()
    return _OTHER_WORDS.get(small, small if small in SPLITS else word.strip())


def read_shares(text: str) -> dict[str, float]:
    """Return the shares of train, val and test that `80/10/10` says, which sum to one.

    Raises:
        InputError: other than three numbers from 0, of which the first is above 0.
    """
    try:
        shares = [float(part) for part in text.split("/")]
    except ValueError:
        shares = []
    if len(shares) != len(SPLITS) or not all(0 <= share < float("inf") for share in shares) or not shares[0]:
        raise InputError(
            f"--split {text!r}: expected the shares of train, val and test, such as 80/10/10; the first above 0"
        )
    return {split: share / sum(shares) for split, share in zip(SPLITS, shares, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Splits that are drawn by lot, as a reader's options `--split` and `--seed` say.

    Attributes:
        split: the shares of train, val and test, such as `80/10/10`.
        seed: of the draw.

    Raises:
        InputError: what `read_shares` refuses.
    """

    split: str
    seed: int

    def __post_init__(self) -> None:
        read_shares(self.split)

    def __call__(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the split of each id; see `divide`."""
        return divide(ids, read_shares(self.split), seed=self.seed)

    def __str__(self) -> str:
        return f"splits are drawn: train/val/test {self.split}, seed {self.seed}"


def divide(ids: Iterable[str], shares: Mapping[str, float], *, seed: int) -> dict[str, str]:
    """Return the split of each id, drawn by lot; a share above 0 gets one at least.

    What is test depends on the ids and the seed alone, not on their order, nor on the share of val.

    Raises:
        InputError: fewer ids than splits.
    """
    ids = list(dict.fromkeys(ids))
    wanted = [split for split, share in shares.items() if share]
    if len(ids) < len(wanted):
        raise InputError(f"{len(ids)} pictures or videos cannot be divided into {' and '.join(wanted)}")
    splits, rest = {}, ids
    for split in reversed(wanted[1:]):
        most = len(rest) - wanted.index(split)  # one for each that is to come
        chosen = draw(rest, min(max(1, round(shares[split] * len(ids))), most), seed=seed)
        splits |= dict.fromkeys(chosen, split)
        rest = [id for id in rest if id not in chosen]
    return splits | dict.fromkeys(rest, wanted[0])
