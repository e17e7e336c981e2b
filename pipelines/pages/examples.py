"""Which queries of a split a page shows: right and wrong ones in turn, the same ones each time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

import numpy as np


def choose(right_Q: np.ndarray, *, count: int, type_Q: Sequence[str] | None = None) -> list[int]:
    """Return the numbers of up to `count` queries, right and wrong ones in turn, as long as there are both.

    Args:
        right_Q: whether each query is answered rightly.
        count: how many are wanted.
        type_Q: kinds of queries, of which as many as there are come in, the most frequent first.
    """
    groups: dict[bool, dict[str, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    for number in np.random.default_rng(0).permutation(len(right_Q)).tolist():
        groups[bool(right_Q[number])][type_Q[number] if type_Q else ""].append(number)
    pairs = zip_longest(_in_turn(groups[True]), _in_turn(groups[False]))
    return list(islice((number for pair in pairs for number in pair if number is not None), count))


def _in_turn(groups: dict[str, list[int]]) -> Iterator[int]:
    """Yield one of each group, then another of each, the largest group first."""
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for turn in zip_longest(*(numbers for _, numbers in largest_first)):
        yield from (number for number in turn if number is not None)
