"""Ids of sets: the rule for feature stores and the corpora that they belong to, and sets of millions of ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from polypool.infra.fields import is_unicode

_MAX_LENGTH = 1000
_HASH = 8  # bytes
_LATEST = 1 << 16  # hashes that wait to be sorted, at most; each takes 90 bytes


def wrong_id(id: Any, *, what: str = "an id") -> str | None:
    """Return why a value cannot be an id, in the same words for every such value; None where it can.

    An id has 1 to 1,000 characters, all of them printable, so that it can be listed, searched for and typed.
    """
    if not isinstance(id, str):
        return f"{what} that is not a string"
    if not id:
        return f"{what} that is empty"
    if not is_unicode(id):
        return f"{what} that is not valid UTF-8"
    if not id.isprintable():
        return f"{what} with characters that cannot be printed"
    if len(id) > _MAX_LENGTH:
        return f"{what} of more than {_MAX_LENGTH:,} characters"
    return None


def text_id(text: str) -> str:
    """Return the id of a text in a store of texts: its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


class IdSet:
    """A set of ids in 8 bytes each, where Python's takes 150: for millions of rows.

    It holds 64 bits of each id's hash: among 10^7 ids two are taken for one with a probability of 3 * 10^-6. Most are
    in a sorted array, which takes 16 bytes an id while the latest, in a set, are merged into it.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._sorted, self._latest = np.empty(0, f"S{_HASH}"), set[bytes]()
        self.update(ids)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._latest)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._has(_hash(id))

    def add(self, id: str) -> bool:
        """Add an id; return whether it is new."""
        hashed = _hash(id)
        if self._has(hashed):
            return False
        self._latest.add(hashed)
        if len(self._latest) > min(_LATEST, (len(self._sorted) + 4096) // 8):
            latest = np.array([*self._latest], self._sorted.dtype)
            self._sorted, self._latest = np.concatenate([self._sorted, np.sort(latest)]), set()
            self._sorted.sort(kind="stable")  # which merges sorted parts
        return True

    def update(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.add(id)

    def issuperset(self, ids: Iterable[str]) -> bool:
        return all(id in self for id in ids)

    def _has(self, hashed: bytes) -> bool:
        if hashed in self._latest:
            return True
        at = self._sorted.searchsorted(hashed)
        return self._sorted[at : at + 1].tobytes() == hashed


def _hash(id: str) -> bytes:
    return hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=_HASH).digest()
