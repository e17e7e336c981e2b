"""Ids of sets: the rule for feature stores and the corpora that they belong to, and sets of millions of ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from polypool.infra.fields import is_unicode

_MAX_LENGTH = 1000
_HASH = 16  # bytes


def wrong_id(id: str) -> str | None:
    """Return why a text cannot be an id, in the same words for every such text; None where it can.

    An id has 1 to 1,000 characters, all of them printable, so that it can be listed, searched for and typed.
    """
    if not id:
        return "an id that is empty"
    if not is_unicode(id):
        return "an id that is not valid UTF-8"
    if not id.isprintable():
        return "an id with characters that cannot be printed"
    if len(id) > _MAX_LENGTH:
        return f"an id of more than {_MAX_LENGTH:,} characters"
    return None


def text_id(text: str) -> str:
    """Return the id of a text in a store of texts: its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


class IdSet:
    """A set of ids in some 20 to 40 bytes each, where Python's takes 150: for millions of rows.

    It holds 128 bits of each id's hash: among 10^7 ids two are taken for one with a probability of 10^-25. Most are in
    a sorted array, the latest in a set.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._sorted, self._latest = np.empty(0, f"S{_HASH}"), set[bytes]()
        self.update(ids)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._latest)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._has(_hash(id))

    def add(self, id: str) -> None:
        hashed = _hash(id)
        if self._has(hashed):
            return
        self._latest.add(hashed)
        if 8 * len(self._latest) > len(self._sorted) + 4096:
            latest = np.array([*self._latest], self._sorted.dtype)
            self._sorted, self._latest = np.concatenate([self._sorted, np.sort(latest)]), set()
            self._sorted.sort(kind="stable")  # which merges sorted parts

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
