"""GloVe text files: `word v1 ... vD`, separated by single spaces; and how a word is looked for in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from infra.errors import InputError


def read_glove(path: str | Path, words: Iterable[str], *, dim: int) -> dict[str, np.ndarray]:
    """Return the `(dim,)` vectors of those of `words` that the file holds.

    Lines are split from the right, because some words of the 840B file contain spaces.

    Raises:
        InputError: the file is missing, or a line does not end in `dim` numbers.
    """
    path, vocabulary, vectors = Path(path), set(words), {}
    if not path.is_file():
        raise InputError(
            f"there is no GloVe file {path}; give the path of a text file such as glove.6B.300d.txt"
        )
    with (
        path.open(encoding="utf-8", errors="replace") as lines,
        tqdm(desc=f"reading {path.name}", unit=" words") as bar,
    ):
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip("\n").rsplit(" ", dim)
            if word in vocabulary:
                try:
                    vector = np.array(values, dtype=np.float32)
                except ValueError:
                    vector = np.empty(0)
                if vector.shape != (dim,) or not np.isfinite(vector).all():
                    raise InputError(
                        f"{path}, line {number}: expected a word and {dim} numbers; is the width {dim}?"
                    )
                vectors[word] = vector
            bar.update()
    return vectors


def simpler(word: str) -> str:
    """Return what stands for a word without a vector in the codes of PVSE and DivE.

    Hyphens, periods and apostrophes go, and of `and/or` the first half stays.
    """
    return word.translate(str.maketrans("", "", "-.'")).split("/")[0]
