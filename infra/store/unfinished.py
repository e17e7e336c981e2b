"""The state of an unfinished feature store, for the writer that resumes it.

`writing.json` has the job and the finished shards. As a shard may take an hour to fill where features are slow to
compute, its sets are kept in a draft once a minute. A resumed store is the same as an uninterrupted one, byte for byte.
"""

from __future__ import annotations

import json
import shutil
import time
from array import array
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import read_json, write_json
from polypool.infra.store.findings import REFUSED, SKIPPED, WARNINGS, Flagged
from polypool.infra.store.manifest import COLUMNS, Manifest, Shard
from polypool.infra.store.manifest import NAME as MANIFEST
from polypool.infra.store.shard import MappedShard, check_of, write_shard, written

JOURNAL, DRAFT = "writing.json", "draft.arrow"
DRAFT_SECONDS = 60.0
_MOST_SETS = 1 << 18  # of a shard, whose ids are in memory while it is filled


class OpenShard:
    """The shard that is being filled; beside its vectors a set takes few bytes, for millions of small ones.

    Args:
        dim, dtype: of the vectors.
        rows: vectors that make it full; a set is never divided.
    """

    def __init__(self, *, dim: int, dtype: str, rows: int) -> None:
        self._vectors = np.empty((rows, dim), dtype)  # pages that are never touched take no memory
        self.clear()

    def clear(self) -> None:
        """Begin the next one."""
        # of each set its id, where that ends, where its vectors end, and their check: as objects they are 170 bytes
        self._ids, self._id_ends = bytearray(), array("i", [0])
        self._ends, self._checks = array("q", [0]), array("Q")

    def __len__(self) -> int:
        return len(self._checks)

    def has_room(self, vectors: int) -> bool:
        """Whether a set of so many vectors fits."""
        return not len(self) or (len(self) < _MOST_SETS and self._ends[-1] + vectors <= len(self._vectors))

    def put(self, id: str, x_ND: np.ndarray) -> np.ndarray:
        """Add a set; return it as it is stored."""
        start, end = self._ends[-1], self._ends[-1] + len(x_ND)
        if end > len(self._vectors):  # a set larger than a shard has one to itself
            self._vectors = np.empty((end, self._vectors.shape[1]), self._vectors.dtype)
        self._vectors[start:end] = x_ND
        self._checks.append(check_of(self._vectors[start:end]))
        self._ids += id.encode()
        self._id_ends.append(len(self._ids))
        self._ends.append(end)
        return self._vectors[start:end]

    def columns(self) -> dict[str, Any]:
        """Return the arguments of `write_shard`, as views: no set may be added while they are in use."""
        return {
            "ids": pa.StringArray.from_buffers(
                len(self), pa.py_buffer(self._id_ends), pa.py_buffer(self._ids)
            ),
            "offsets": np.frombuffer(self._ends, np.int64),
            "vectors_VD": self._vectors[: self._ends[-1]],
            "checks": np.frombuffer(self._checks, np.uint64),
        }


@dataclass(frozen=True, kw_only=True)
class _Journal:
    """The content of `writing.json`.

    Args:
        job: what is written: version, dim, dtype and source.
        shards: the finished ones, in order; others in the folder are not finished.
    """

    job: dict[str, Any]
    shards: tuple[Shard, ...] = ()


class Unfinished:
    """The files of an unfinished store.

    Args:
        folder: of the store.
        job: what is written: version, dim, dtype and source.
    """

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self._folder, self._draft = folder, folder / DRAFT
        self._job = json.loads(json.dumps(job))  # as it will be read back: no tuples
        self._kept_at = time.monotonic()

    def begin(self) -> tuple[Shard, ...]:
        """Begin or resume the job; return the shards that an interrupted writer has finished.

        Raises:
            InputError: the folder holds a complete store, or shards of another job, or some are missing.
        """
        if (self._folder / MANIFEST).exists() and not (self._folder / JOURNAL).exists():
            raise InputError(
                f"{self._folder}: holds a complete store; choose another folder, or write it anew: ingest does with "
                "--replace, else remove this folder"
            )
        there = sorted(path.name for path in self._folder.glob("shard-*.arrow"))
        if not there:
            if not self._is_resumed():
                for path in (*self._folder.glob("draft.*"), *self._folder.glob("flagged-*.json")):
                    path.unlink()
            self.note(())
            return ()
        try:
            journal = self._load()
        except InputError as error:
            raise InputError(f"{error}. It is damaged, or of another version; remove this folder") from error
        if journal.job != self._job:
            other = [
                f"{key} was {journal.job.get(key)}, is {value}"
                for key, value in self._job.items()
                if journal.job.get(key) != value
            ]
            raise InputError(
                f"{self._folder}: holds finished shards of another job ({'; '.join(other)}). "
                f"Repeat that job to go on with it, or remove this folder to start anew"
            )
        finished = journal.shards[: len(there)]
        for name in there[len(finished) :]:  # written, but not noted before the writer died
            (self._folder / name).unlink()
        return finished

    def reopen(self) -> None:
        """Begin this job where the folder holds a complete store of a part of it, whose shards are finished.

        The store can be read until the larger one takes its place.

        Raises:
            InputError: the store has other vectors, or no checks; or its warnings are damaged.
        """
        if not (self._folder / MANIFEST).exists() or (self._folder / JOURNAL).exists():
            return
        kept = Manifest.read(self._folder)
        for name, value in {"version": kept.version, "dim": kept.dim, "dtype": kept.dtype}.items():
            if value != self._job[name]:
                raise InputError(
                    f"{self._folder}: holds a complete store of {name} {value}, and what is to be added has "
                    f"{self._job[name]}; remove this folder to write it anew"
                )
        warnings = self._folder / WARNINGS
        lines = [json.loads(line) for line in warnings.read_bytes().splitlines()] if warnings.exists() else []
        self.keep_flagged(kept.shards[0].file, [Flagged(**line) for line in lines])
        self.note(kept.shards)

    def give_way(self, *, complete: bool) -> None:
        """Remove the unfinished work of another job, unless it is that of `extract`; if `complete`, a whole store."""
        if (self._folder / MANIFEST).exists():
            if not complete:
                return
        elif not (self._folder / JOURNAL).exists() or self._is_resumed() or self._is_extracted():
            return
        gone = (MANIFEST, JOURNAL, DRAFT, SKIPPED, WARNINGS, REFUSED, "flagged-*.json", "shard-*.arrow")
        for path in chain.from_iterable(
            map(self._folder.glob, gone)
        ):  # the manifest first, which makes it a store
            path.unlink()
        shutil.rmtree(self._folder / COLUMNS, ignore_errors=True)

    def note(self, finished: Sequence[Shard]) -> None:
        """Note the finished shards, and drop the draft, which is of the last one."""
        write_json(self._folder / JOURNAL, asdict(_Journal(job=self._job, shards=tuple(finished))))
        if finished:
            self.drop_draft()

    def end(self) -> None:
        """Remove these files, as the store is complete."""
        for path in (self._folder / JOURNAL, *self._folder.glob("flagged-*.json")):
            path.unlink(missing_ok=True)

    def keep_flagged(self, file: str, flagged: Sequence[Flagged]) -> None:
        """Keep the warnings about the sets of a shard or draft, which a resuming writer does not see again."""
        path = self._flagged_of(file)
        if flagged:
            write_json(path, [asdict(case) for case in flagged])
        else:
            path.unlink(missing_ok=True)

    def flagged(self, file: str) -> tuple[Flagged, ...]:
        """Return what `keep_flagged` kept."""
        path = self._flagged_of(file)
        kept = read_json(path, what="the warnings about a shard") if path.exists() else ()
        return tuple(Flagged(**case) for case in kept)

    @property
    def draft_due(self) -> bool:
        """Whether a minute has passed since the last draft or shard."""
        return time.monotonic() - self._kept_at >= DRAFT_SECONDS

    def keep_draft(self, shard: OpenShard, flagged: Sequence[Flagged]) -> None:
        """Write a draft of a shard, and the warnings about its sets.

        Raises:
            InputError: no space is left.
        """
        self.keep_flagged(DRAFT, flagged)
        write_shard(self._draft, **shard.columns())
        self._kept_at = time.monotonic()

    def read_draft(self, done: Container[str]) -> tuple[MappedShard | None, tuple[Flagged, ...]]:
        """Return the sets of the draft, all of them checked, and the warnings about them.

        A draft that is damaged, or whose shard was finished, is dropped: its sets are stored anew, or are stored.

        Args:
            done: ids in finished shards.
        """
        if not self._draft.exists():
            return None, ()
        try:
            _, kept = written(self._draft, dim=self._job["dim"], dtype=self._job["dtype"])
            flagged = self.flagged(DRAFT)
        except InputError:
            kept = None
        if kept is None or kept.changed() or any(id in done for id in kept.names()):
            self.drop_draft()
            return None, ()
        return kept, flagged

    def drop_draft(self) -> None:
        """Remove the draft."""
        self._draft.unlink(missing_ok=True)
        self.keep_flagged(DRAFT, ())
        self._kept_at = time.monotonic()

    def _flagged_of(self, file: str) -> Path:
        return self._folder / f"{Path(file).stem.replace('shard', 'flagged')}.json"

    def _is_resumed(self) -> bool:
        """Whether a writer of the same job left the folder as it is."""
        try:
            return self._load().job == self._job
        except InputError:
            return False

    def _is_extracted(self) -> bool:
        try:
            return "extractor" in self._load().job["source"]
        except (InputError, KeyError, TypeError):
            return True

    def _load(self) -> _Journal:
        return read_record(_Journal, self._folder / JOURNAL, what="the journal of an interrupted writer")


def left_behind(folder: Path) -> str:
    """Return what an interrupted writer left in a folder, and what to do with it; empty where it left nothing."""
    shards = len([*folder.glob("shard-*.arrow")])
    if (folder / JOURNAL).exists():
        return f"a half-written store, {shards} shards; give the command that writes it again, and it goes on"
    return f"{shards} shards without {MANIFEST} and {JOURNAL}; remove this folder" if shards else ""


def shard_name(index: int) -> str:
    """Return the file name of a store's shard."""
    return f"shard-{index:05d}.arrow"
