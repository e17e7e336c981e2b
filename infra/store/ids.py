"""What may be an id, by the one rule for feature stores and for the corpora whose items they describe, and many ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from infra.fields import is_unicode

_LONGEST = 1000
_HASH = 16  # bytes
_SLOTS = 1024  # of a set that is empty; when two thirds are taken there are half as many again
_FREE = bytes(_HASH)


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
    if len(id) > _LONGEST:
        return f"an id of more than {_LONGEST:,} characters"
    return None


def text_id(text: str) -> str:
    """Return the id of a text in a store of texts: its SHA-256, the same wherever the text stands."""
    return hashlib.sha256(text.encode()).hexdigest()


class IdSet:
    """A set of ids in some 24 to 36 bytes each, where Python's takes 150: for millions of rows.

    It keeps 128 bits of each id's hash, by which two of 10^7 ids are taken for one with a probability of 10^-25.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._table = bytearray(_HASH * _SLOTS)
        self._size = 0
        self.update(ids)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, id: str) -> bool:
        hashed = _hashed(id)
        return self._held(self._slot(hashed)) == hashed

    def add(self, id: str) -> None:
        """Take up an id."""
        hashed = _hashed(id)
        slot = self._slot(hashed)
        if self._held(slot) == hashed:
            return
        self._table[slot : slot + _HASH] = hashed
        self._size += 1
        if 3 * self._size > 2 * len(self._table) // _HASH:
            self._grow()

    def update(self, ids: Iterable[str]) -> None:
        """Take up several ids."""
        for id in ids:
            self.add(id)

    def issuperset(self, ids: Iterable[str]) -> bool:
        """Say whether it has all of some ids."""
        return all(id in self for id in ids)

    def _slot(self, hashed: bytes) -> int:
        """Return where a hash is, or else the place that it would take: the first free one from its own on."""
        slot = _HASH * (int.from_bytes(hashed[:8]) % (len(self._table) // _HASH))
        while (held := self._held(slot)) != hashed and held != _FREE:
            slot = (slot + _HASH) % len(self._table)
        return slot

    def _held(self, slot: int) -> bytes:
        return self._table[slot : slot + _HASH]

    def _grow(self) -> None:
        slots = len(self._table) // _HASH
        old, self._table = self._table, bytearray(_HASH * (slots + slots // 2))
        for start in range(0, len(old), _HASH):
            if (hashed := old[start : start + _HASH]) != _FREE:
                slot = self._slot(hashed)
                self._table[slot : slot + _HASH] = hashed


def _hashed(id: str) -> bytes:
    return hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=_HASH).digest()
