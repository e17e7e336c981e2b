"""Reading a feature store in object storage: of each shard what is wanted, kept in the cache of this machine.

A shard is fetched in pieces: first what is around its vectors (ids, offsets, checks: thousands of times smaller), then
sets, many side by side, and neighbours in one request. So the first batch comes as soon as its own sets are there, and
an evaluation of few ids fetches few. A piece is held to its checks before it is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa
import xxhash

from infra.errors import InputError
from infra.files import make_folder
from infra.storage import cache as kept
from infra.storage.pieces import Pieces
from infra.storage.places import Url
from infra.storage.remote import RemoteFile, tried
from infra.store.manifest import Manifest, Shard
from infra.store.mapped import MappedFile, allow_files
from infra.store.reader import FeatureStore, Place
from infra.store.shard import MappedShard, check_of, map_shard, shard_of

PIECE = 128 << 10
"""Sets that begin within so many bytes are one piece: fetched together, as a request takes about as long."""
_RUN = 8 << 20  # bytes of neighbouring pieces that one request asks for, at most
_REQUESTS = 24  # at a time; each waits for the network, and not for a processor


@cache
def _requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS, thread_name_prefix="storage")


@dataclass(frozen=True, kw_only=True)
class FetchedShard(MappedShard):
    """A shard of which some pieces are in the cache; its views show zeros where others belong.

    Args:
        source: where they come from.
        pieces: those that are there: number 0 is what is around the vectors, then those of the sets in order.
        row_P: the first set of each of P pieces of sets, and the number of sets, `(P + 1,)`.
        coming: requests that are under way, by the piece.
        lock: guards `coming`.
    """

    source: RemoteFile
    pieces: Pieces
    row_P: np.ndarray
    coming: dict[int, Future] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)  # a request may end while it is begun

    def ask(self, rows: Iterable[int]) -> list[Future]:
        """Begin to fetch the sets that are not there; return the requests that they come with."""
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
        """Compare a set with its check, as of any shard; a copy in the cache that is damaged is removed.

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
        """Fetch all sets; return those whose bytes are not those that were written."""
        while futures := self.ask(range(len(self.ids))):
            finish(futures)
        return super().changed()

    def _runs(self, pieces: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last of pieces that follow one another, as far as one request takes them."""
        first = last = None
        for piece in pieces:
            if first is not None and (piece > last + 1 or np.ptp(self._bytes(first, piece)) > _RUN):
                yield first, last
                first = None
            first, last = piece if first is None else first, piece
        if first is not None:
            yield first, last

    def _bytes(self, first: int, last: int) -> tuple[int, int]:
        """Return where in the file some pieces of sets begin and end."""
        width = self.vectors_VD.strides[0]
        start, end = self.offsets[self.row_P[[first - 1, last]]].tolist()
        return self.vectors_at + start * width, self.vectors_at + end * width

    def _fetch(self, first: int, last: int) -> None:
        start, end = self._bytes(first, last)
        with self.pieces.locked(start, end):
            if self.pieces.there()[first : last + 1].all():
                return  # another process was faster
            data = tried(self.path, "read", lambda: self._checked(first, last, self.source.read(start, end)))
            with kept.room(self.pieces.path):
                self.pieces.write(start, data)
                self.pieces.mark(first, last)
        kept.grown(len(data))

    def _checked(self, first: int, last: int, data: bytes) -> bytes:
        """Return what came, if it is what was written."""
        rows = range(int(self.row_P[first - 1]), int(self.row_P[last]))
        at = (self.offsets[rows.start : rows.stop + 1] - self.offsets[rows.start]) * self.vectors_VD.strides[
            0
        ]
        view = memoryview(data)
        for number, row in enumerate(rows):
            if check_of(view[at[number] : at[number + 1]]) != self.checks[row]:
                raise OSError(f"the set {self.ids[row].as_py()!r} is not the one that was written")
        return data

    def _came(self, run: range) -> None:
        with self.lock:
            for piece in run:
                self.coming.pop(piece, None)


def finish(futures: Sequence[Future]) -> None:
    """Wait for requests, as far as they are not cancelled.

    Raises:
        InputError: one failed; those that have not begun are cancelled.
    """
    done, waiting = wait_for(futures, return_when="FIRST_EXCEPTION")
    for future in waiting:
        future.cancel()
    for future in done:
        if not future.cancelled():
            future.result()


class RemoteStore(FeatureStore):
    """A complete store in object storage."""

    def __init__(self, folder: Url, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._sources = {shard.file: RemoteFile(folder / shard.file) for shard in manifest.shards}

    @classmethod
    def open_url(cls, folder: Url) -> RemoteStore:
        """Open a store; only its manifest is read.

        Raises:
            InputError: it is missing or half written, or the storage does not answer or refuses.
        """
        store = cls(folder, Manifest.read(folder))
        allow_files(2 * len(store.manifest.shards))
        return store

    @property
    def ids(self) -> pa.ChunkedArray:
        """The id of every row; what is around the vectors of all shards is fetched side by side."""
        finish([_requests().submit(self._head, shard) for shard in self.manifest.shards])
        return super().ids

    def place(self, row: int) -> Place:
        """Return the shard that a row is in, and its number there; a shard that the cache has deleted is let go of."""
        shard, local = super().place(row)
        if isinstance(shard, FetchedShard) and shard.pieces.gone:
            with self._mapping:
                self._mapped = [None if mapped is shard else mapped for mapped in self._mapped]
            return super().place(row)
        return shard, local

    def ready(self, places: Sequence[Place]) -> None:
        """Wait for the sets that are not in the cache.

        Raises:
            InputError: the storage does not answer or refuses, or what came of it is damaged.
        """
        while futures := self._ask(places):  # one may have been cancelled by who asked for it first
            finish(futures)

    def fetch_ahead(self, rows: np.ndarray) -> Sequence[Future]:
        """Begin to fetch the sets in `rows`, which will be asked for soon; return what may be cancelled of that."""
        return self._ask([self.place(row) for row in np.asarray(rows).tolist()])

    def _ask(self, places: Sequence[Place]) -> list[Future]:
        rows: dict[int, tuple[MappedShard, list[int]]] = {}
        for shard, row in places:
            rows.setdefault(id(shard), (shard, []))[1].append(row)
        fetched = [each for each in rows.values() if isinstance(each[0], FetchedShard)]
        return [future for shard, wanted in fetched for future in shard.ask(wanted)]

    def _map(self, shard: Shard) -> MappedShard:
        url, form = self.folder / shard.file, {"dim": self.dim, "dtype": self.dtype}
        if not shard.check:  # of a version that has no checks of sets, by which to take a part
            return map_shard(kept.whole(url, sha256=shard.sha256), shard, **form)
        pieces = self._head(shard)
        mapped = shard_of(url, MappedFile(pieces.descriptor, size=shard.bytes), shard, **form)
        start_S = mapped.offsets[:-1] * mapped.vectors_VD.strides[0]
        first_P = np.flatnonzero(np.diff(start_S // PIECE, prepend=-1))
        row_P = np.append(first_P, len(start_S))
        return FetchedShard(**vars(mapped), source=self._sources[shard.file], pieces=pieces, row_P=row_P)

    def _head(self, shard: Shard) -> Pieces | None:
        """Return the file in the cache, with what is around the vectors in it."""
        if not shard.check:
            return None
        # of this URL: what another store says that its shard is, is no reason to take it for this one
        key = kept.key(self.folder / shard.file, shard.sha256, shard.check, shard.bytes, PIECE)
        path = make_folder(kept.folder() / "shards") / key
        with kept.room(path):
            pieces = Pieces(path, size=shard.bytes, count=2 + shard.bytes // PIECE)
        source, url = self._sources[shard.file], self.folder / shard.file
        start, end = (
            shard.vectors_at,
            shard.vectors_at + shard.vectors * self.dim * np.dtype(self.dtype).itemsize,
        )

        def around() -> tuple[bytes, bytes]:
            parts = source.read(0, start), source.read(end, shard.bytes)
            check = xxhash.xxh3_64(parts[0])
            check.update(parts[1])
            if check.hexdigest() != shard.check:
                raise OSError("its ids, offsets or checks are not those that were written")
            return parts

        with pieces.locked(0, start):
            if not pieces.has(0):
                if source.size != shard.bytes:
                    raise InputError(
                        f"{url}: has {source.size:,} bytes, not {shard.bytes:,}; copy the store again, or write it anew"
                    )
                before, after = tried(url, "read", around)
                with kept.room(path):
                    pieces.write(0, before)
                    pieces.write(end, after)
                    pieces.mark(0, 0)
                kept.grown(len(before) + len(after))
        return pieces
