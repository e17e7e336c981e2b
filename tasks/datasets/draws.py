"""Parts of a data set drawn by lot, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def draw(ids: Iterable[str], count: int, *, seed: int) -> set[str]:
    """Return `count` of the ids: those whose SHA-256, together with the seed, is smallest.

    So a draw depends neither on the order of the ids nor on the version of a random generator.
    """

    def lot(id: str) -> bytes:
        return hashlib.sha256(f"{seed}/{id}".encode("utf-8", "surrogatepass")).digest()

    return set(sorted(ids, key=lot)[:count])
