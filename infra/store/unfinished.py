"""State of an unfinished feature store, for the writer that resumes it.

`writing.json` records the job and the finished shards. A shard may take an hour to fill if features are slow to
compute, so its sets are saved to a draft every minute. A resumed store is identical to an uninterrupted one, byte for
byte.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import write_json
from polypool.infra.store.findings import REFUSED, SKIPPED, WARNINGS, Flagged
from polypool.infra.store.manifest import COLUMNS, Manifest, Shard
from polypool.infra.store.manifest import NAME as MANIFEST
from polypool.infra.store.shard import MappedShard, check_of, open_written, write_shard

JOURNAL, DRAFT = "writing.json", "draft.arrow"
DRAFT_SECONDS = 60.0
_MOST_SETS = 1 << 18  # sets of a shard, whose ids are in memory while it is filled


class OpenShard:
    """The shard being filled.

    Args:
        dim, dtype: of the vectors.
        rows: capacity in vectors; a set is never split.
    """

    def __init__(self, *, dim: int, dtype: str, rows: int) -> None:
        self._vectors = np.empty((rows, dim), dtype)  # untouched pages take no memory
        self.clear()

    def clear(self) -> None:
        """Start the next shard."""
        self._ids, self._ends, self._checks = list[str](), [0], list[int]()

    def __len__(self) -> int:
        return len(self._ids)

    def has_room(self, vectors: int) -> bool:
        """Whether a set with this many vectors fits."""
        return not len(self) or (len(self) < _MOST_SETS and self._ends[-1] + vectors <= len(self._vectors))

    def put(self, id: str, x_ND: np.ndarray) -> np.ndarray:
        """Add a set; return it in the stored precision."""
        start, end = self._ends[-1], self._ends[-1] + len(x_ND)
        if end > len(self._vectors):  # a set larger than a shard gets a separate shard
            self._vectors = np.empty((end, self._vectors.shape[1]), self._vectors.dtype)
        stored_ND = self._vectors[start:end]
        stored_ND[:] = x_ND
        self._ids.append(id)
        self._ends.append(end)
        self._checks.append(check_of(stored_ND))
        return stored_ND

    def columns(self) -> dict[str, Any]:
        """Return the arguments of `write_shard`."""
        return {
            "ids": pa.array(self._ids, pa.string()),
            "offsets": np.array(self._ends, np.int64),
            "vectors_VD": self._vectors[: self._ends[-1]],
            "checks": np.array(self._checks, np.uint64),
        }


@dataclass(frozen=True, kw_only=True)
class _Journal:
    """The content of `writing.json`.

    Args:
        job: version, dim, dtype and source of the store.
        shards: the finished ones, in order; other files in the folder are unfinished.
        flagged: warnings about the sets of each finished shard and of the draft, which a resuming writer does not
            process again.
    """

    job: dict[str, Any]
    shards: tuple[Shard, ...] = ()
    flagged: dict[str, tuple[Flagged, ...]] = field(default_factory=dict)


class Unfinished:
    """The files of an unfinished store.

    Args:
        folder: of the store.
        job: version, dim, dtype and source of the store.
    """

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self._folder, self._draft = folder, folder / DRAFT
        self._job = json.loads(json.dumps(job))  # as read back from JSON: no tuples
        self._kept_at = time.monotonic()
        self._journal = _Journal(job={})

    def begin(self) -> tuple[Shard, ...]:
        """Start or resume the job; return the shards that an interrupted writer finished.

        Raises:
            InputError: the folder holds a complete store, shards of another job, or shards without a valid journal.
        """
        if (self._folder / MANIFEST).exists() and not (self._folder / JOURNAL).exists():
            raise InputError(
                f"{self._folder}: holds a complete store; choose another folder, or recreate it: ingest does with "
                "--replace, and adds to it with --extend; else remove this folder"
            )
        there = sorted(path.name for path in self._folder.glob("shard-*.arrow"))
        try:
            self._journal = self._load()
        except InputError as error:
            if there:
                raise InputError(
                    f"{error}. It is damaged, or of another version; remove this folder"
                ) from error
        drafted = self._draft.exists() and "extractor" in self._journal.job.get("source", ())
        if (there or drafted) and self._journal.job != self._job:
            other = [
                f"{key} was {self._journal.job.get(key)}, is {value}"
                for key, value in self._job.items()
                if self._journal.job.get(key) != value
            ]
            raise InputError(
                f"{self._folder}: holds unfinished work of another job ({'; '.join(other)}). "
                f"Repeat that job to resume it, or remove this folder to start over"
            )
        if self._journal.job != self._job:
            self._draft.unlink(missing_ok=True)
            self._journal = _Journal(job=self._job)
        finished = self._journal.shards[: len(there)]
        for name in there[len(finished) :]:  # written, but not recorded before the writer died
            (self._folder / name).unlink()
        self._note(shards=finished)
        return finished

    def extend(self) -> None:
        """Start a job that extends the complete store in the folder, whose shards count as finished.

        The existing store remains readable until the extended one replaces it.

        Raises:
            InputError: the store has another version, dim or dtype, or its manifest is damaged.
        """
        if not (self._folder / MANIFEST).exists() or (self._folder / JOURNAL).exists():
            return
        kept = Manifest.read(self._folder)
        for name, value in {"version": kept.version, "dim": kept.dim, "dtype": kept.dtype}.items():
            if value != self._job[name]:
                raise InputError(
                    f"{self._folder}: holds a complete store of {name} {value}, and the new sets have "
                    f"{self._job[name]}; remove this folder to recreate it"
                )
        warnings = self._folder / WARNINGS
        lines = [json.loads(line) for line in warnings.read_bytes().splitlines()] if warnings.exists() else []
        flagged = {kept.shards[0].file: tuple(Flagged(**line) for line in lines)}
        self._note(job=self._job, shards=kept.shards, flagged=flagged)

    def discard(self, *, complete: bool) -> None:
        """Remove the unfinished work of another job, except of `extract`; if `complete`, a complete store, too."""
        if (self._folder / MANIFEST).exists():
            if not complete:
                return
        else:
            try:
                job = self._load().job
            except InputError:  # no journal, or a damaged one
                return
            if job == self._job or "extractor" in job.get("source", ()):
                return
        gone = (MANIFEST, JOURNAL, DRAFT, SKIPPED, WARNINGS, REFUSED, "shard-*.arrow")
        for pattern in gone:  # the manifest first: without it, the folder is no store
            for path in self._folder.glob(pattern):
                path.unlink()
        shutil.rmtree(self._folder / COLUMNS, ignore_errors=True)

    def finish(self, shard: Shard, flagged: Sequence[Flagged]) -> None:
        """Record a finished shard and the warnings about its sets, and delete its draft."""
        noted = self._journal.flagged | {shard.file: tuple(flagged)}
        self._note(shards=(*self._journal.shards, shard), flagged=noted)
        self.delete_draft()

    def end(self) -> None:
        """Delete the journal after the store is complete."""
        (self._folder / JOURNAL).unlink(missing_ok=True)

    def flagged(self, file: str) -> tuple[Flagged, ...]:
        """Return the warnings about the sets of a finished shard or of the draft."""
        return self._journal.flagged.get(file, ())

    @property
    def draft_due(self) -> bool:
        """Whether a minute has passed since the last draft or shard."""
        return time.monotonic() - self._kept_at >= DRAFT_SECONDS

    def save_draft(self, shard: OpenShard, flagged: Sequence[Flagged]) -> None:
        """Write a draft of a shard, and the warnings about its sets.

        Raises:
            InputError: the disk is full.
        """
        self._note(flagged=self._journal.flagged | {DRAFT: tuple(flagged)})
        write_shard(self._draft, **shard.columns())
        self._kept_at = time.monotonic()

    def read_draft(self, done: Container[str]) -> tuple[MappedShard | None, tuple[Flagged, ...]]:
        """Return the verified sets of the draft, and the warnings about them.

        A damaged draft, or one whose shard is finished, is deleted: its sets are stored again, or already stored.

        Args:
            done: ids in finished shards.
        """
        if not self._draft.exists():
            return None, ()
        try:
            _, kept = open_written(self._draft, dim=self._job["dim"], dtype=self._job["dtype"])
        except InputError:
            kept = None
        if kept is None or kept.changed() or any(id in done for id in kept.names()):
            self.delete_draft()
            return None, ()
        return kept, self.flagged(DRAFT)

    def delete_draft(self) -> None:
        """Remove the draft."""
        self._draft.unlink(missing_ok=True)
        self._kept_at = time.monotonic()

    def _note(self, **changes: Any) -> None:
        self._journal = replace(self._journal, **changes)
        write_json(self._folder / JOURNAL, asdict(self._journal))

    def _load(self) -> _Journal:
        return read_record(_Journal, self._folder / JOURNAL, what="the journal of an interrupted writer")


def describe_unfinished(folder: Path) -> str:
    """Return what an interrupted writer left in a folder, and the remedy; empty if nothing."""
    shards = len([*folder.glob("shard-*.arrow")])
    if (folder / JOURNAL).exists():
        return f"a half-written store, {shards} shards; repeat the command that writes it to resume"
    return f"{shards} shards without {MANIFEST} and {JOURNAL}; remove this folder" if shards else ""
