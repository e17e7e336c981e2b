"""Shards of a feature store in object storage: the sets that are read are fetched, and kept in this machine's cache.

A shard is fetched in pieces: first what surrounds its vectors (ids, offsets, checks: thousands of times smaller), then
sets, in many requests at once, each for several neighbours. So the first batch comes as soon as its own sets are there,
and an evaluation of few ids fetches few. A piece is compared with its checks before it is storage_cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import xxhash

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder
from polypool.infra.storage import cache as storage_cache
from polypool.infra.storage.cache import Pieces
from polypool.infra.storage.places import Url
from polypool.infra.storage.remote import RemoteFile, retry
from polypool.infra.store.manifest import Manifest, Shard
from polypool.infra.store.mapped import MappedFile
from polypool.infra.store.shard import MappedShard, Place, check_of, map_shard, shard_of

PIECE = 128 << 10
"""Sets that begin within so many bytes are one piece: a request for them takes about as long as for one."""
_MAX_REQUEST = 8 << 20  # bytes of neighbouring pieces that one request fetches
_REQUESTS = 24  # at a time; they wait for the network, not for a processor


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS, thread_name_prefix="storage")


@dataclass(frozen=True, kw_only=True)
class FetchedShard(MappedShard):
    """A shard of which some pieces are in the cache; its views show zeros in the place of others.

    Args:
        source: the file in storage.
        pieces: those in the cache: number 0 is what surrounds the vectors, then those of the sets in order.
        row_P: the first set of each of P pieces of sets, and the number of sets, `(P + 1,)`.
        coming: requests under way, by the piece.
        lock: guards `coming`.
    """

    source: RemoteFile
    pieces: Pieces
    row_P: np.ndarray
    coming: dict[int, Future] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)  # a request may end while it is submitted

    @property
    def gone(self) -> bool:
        """Whether the cache has deleted it."""
        return self.pieces.gone

    def request(self, rows: Iterable[int]) -> list[Future]:
        """Begin to fetch the sets that are not in the cache; return the requests for them."""
        self.pieces.used()
        piece_K = np.unique(np.searchsorted(self.row_P, np.fromiter(rows, np.int64), side="right"))
        absent = piece_K[~self.pieces.there()[piece_K]].tolist()
        with self.lock:
            futures = dict.fromkeys(self.coming[piece] for piece in absent if piece in self.coming)
            for first, last in self._runs([piece for piece in absent if piece not in self.coming]):
                future = _requests().submit(self._fetch, first, last)
                futures[future] = None
                self.coming.update(dict.fromkeys(range(first, last + 1), future))
                future.add_done_callback(lambda _, run=range(first, last + 1): self._came(run))
        return list(futures)

    def check(self, row: int, x_ND: np.ndarray) -> None:
        """Compare a set with its check, as of any shard; a damaged copy is removed from the cache.

        Raises:
            InputError: its bytes changed since they were fetched.
        """
        try:
            super().check(row, x_ND)
        except InputError as error:
            self.pieces.path.unlink(missing_ok=True)
            raise InputError(
                f"{self.pieces.path}: this copy of {self.path} in the cache was damaged and is removed; run the "
                "command again, which fetches what it needs"
            ) from error

    def changed(self) -> list[int]:
        """Fetch all sets; return those whose bytes changed since they were written."""
        while futures := self.request(range(len(self.ids))):
            finish(futures)
        return super().changed()

    def _runs(self, pieces: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last of successive pieces that one request fetches."""
        run: list[int] = []
        for piece in pieces:
            if run and (piece > run[-1] + 1 or np.ptp(self._bytes(run[0], piece)) > _MAX_REQUEST):
                yield run[0], run[-1]
                run = []
            run.append(piece)
        if run:
            yield run[0], run[-1]

    def _bytes(self, first: int, last: int) -> tuple[int, int]:
        """Return where in the file some pieces of sets begin and end."""
        width = self.vectors_VD.strides[0]
        start, end = self.offsets[self.row_P[[first - 1, last]]].tolist()
        return self.vectors_at + start * width, self.vectors_at + end * width

    def _fetch(self, first: int, last: int) -> None:
        start, end = self._bytes(first, last)
        rows = range(int(self.row_P[first - 1]), int(self.row_P[last]))
        offsets = self.offsets[rows.start : rows.stop + 1]
        at = (offsets - offsets[0]) * self.vectors_VD.strides[0]

        def checked() -> dict[int, bytes]:
            data = self.source.read(start, end)
            for number, row in enumerate(rows):
                if check_of(memoryview(data)[at[number] : at[number + 1]]) != self.checks[row]:
                    raise OSError(f"the set {self.ids[row].as_py()!r} is not the one that was written")
            return {start: data}

        fetch = partial(retry, self.source.url, "read", checked)
        self.pieces.fill(first, last, lock=(start, end), fetch=fetch)

    def _came(self, run: range) -> None:
        with self.lock:
            for piece in run:
                self.coming.pop(piece, None)


def finish(futures: Sequence[Future]) -> None:
    """Wait for requests that are not cancelled.

    Raises:
        InputError: one failed; those that have not begun are cancelled.
    """
    done, waiting = wait_for(futures, return_when="FIRST_EXCEPTION")
    for future in waiting:
        future.cancel()
    for future in done:
        if not future.cancelled():
            future.result()


class RemoteShards:
    """The shards of a store in object storage."""

    def __init__(self, folder: Url, manifest: Manifest) -> None:
        self._folder, self._shards = folder, manifest.shards
        self._form: dict[str, Any] = {"dim": manifest.dim, "dtype": manifest.dtype}
        self._sources = {shard.file: RemoteFile(folder / shard.file) for shard in manifest.shards}

    def request(self, places: Iterable[Place]) -> list[Future]:
        """Begin to fetch sets; return the requests for them."""
        rows: dict[int, tuple[FetchedShard, list[int]]] = {}
        for shard, row in places:
            if isinstance(shard, FetchedShard):
                rows.setdefault(id(shard), (shard, []))[1].append(row)
        return [future for shard, wanted in rows.values() for future in shard.request(wanted)]

    def fetch(self, places: Sequence[Place]) -> None:
        """Fetch the sets that are not in the cache.

        Raises:
            InputError: the storage does not answer or refuses, or the sets are damaged there.
        """
        while futures := self.request(places):  # another thread may have cancelled one
            finish(futures)

    def fetch_ids(self) -> None:
        """Fetch what surrounds the vectors of all shards, in parallel."""
        finish([_requests().submit(self._head, shard) for shard in self._shards if shard.check])

    def map(self, shard: Shard) -> MappedShard:
        """Map a shard in the cache; all of it is checked but the vectors.

        Raises:
            InputError: the storage does not answer or refuses, or the shard is damaged there.
        """
        url, form = self._folder / shard.file, self._form
        if not shard.check:  # of version 1, which has no checks of sets
            return map_shard(storage_cache.whole(url, sha256=shard.sha256), shard, **form)
        pieces = self._head(shard)
        mapped = shard_of(url, MappedFile(pieces.descriptor, size=shard.bytes), shard, **form)
        start_S = mapped.offsets[:-1] * mapped.vectors_VD.strides[0]
        first_P = np.flatnonzero(np.diff(start_S // PIECE, prepend=-1))
        row_P = np.append(first_P, len(start_S))
        return FetchedShard(**vars(mapped), source=self._sources[shard.file], pieces=pieces, row_P=row_P)

    def _head(self, shard: Shard) -> Pieces:
        """Return the file in the cache, with what surrounds the vectors."""
        url, source = self._folder / shard.file, self._sources[shard.file]
        # with its URL: a manifest may lie about the hashes of its shards
        key = storage_cache.key(url, shard.sha256, shard.check, shard.bytes, PIECE)
        path = make_folder(storage_cache.folder() / "shards") / key
        with storage_cache.no_space_explained(path):
            pieces = Pieces(path, size=shard.bytes, count=2 + shard.bytes // PIECE)
        start, end = shard.vector_bytes(**self._form)

        def checked() -> dict[int, bytes]:
            if source.size != shard.bytes:
                raise InputError(
                    f"{url}: has {source.size:,} bytes, not {shard.bytes:,}; copy the store again, or write it anew"
                )
            before, after = source.read(0, start), source.read(end, shard.bytes)
            check = xxhash.xxh3_64(before)
            check.update(after)
            if check.hexdigest() != shard.check:
                raise OSError("its ids, offsets or checks are not those that were written")
            return {0: before, end: after}

        pieces.fill(0, 0, lock=(0, start), fetch=partial(retry, url, "read", checked))
        return pieces
