"""The sets of a shard that is not full yet, kept once a minute, so that a writer that is killed loses no more work.

A shard may take an hour to fill where features are slow to compute. What is kept goes into the shard as it would have
gone, so that an interrupted store is the same as another, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from infra.errors import InputError
from infra.store import journal
from infra.store.findings import Flagged
from infra.store.open_shard import OpenShard
from infra.store.shard import MappedShard, write_shard, written

NAME = "draft.arrow"
SECONDS = 60.0


class Draft:
    """The draft in a store's folder.

    Args:
        folder: of the store.
        dim, dtype: of its vectors.
    """

    def __init__(self, folder: Path, *, dim: int, dtype: str) -> None:
        self._path, self._dim, self._dtype = folder / NAME, dim, dtype
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether the last one is a minute old."""
        return time.monotonic() - self._since >= SECONDS

    def keep(self, shard: OpenShard, *, flagged: Sequence[Flagged]) -> None:
        """Write a draft of a shard in the place of the last one; `flagged` is what is odd about its sets.

        Raises:
            InputError: no space is left.
        """
        journal.keep(self._path.parent, NAME, flagged)
        write_shard(self._path, **shard.columns())
        self._since = time.monotonic()

    def read(self, done: Collection[str]) -> tuple[MappedShard | None, tuple[Flagged, ...]]:
        """Return the sets that an interrupted writer kept, all of them checked, and what is odd about them.

        One that is damaged, or whose shard was finished, is dropped: its sets are stored anew, or are stored.

        Args:
            done: ids in finished shards.
        """
        if not self._path.exists():
            return None, ()
        try:
            _, kept = written(self._path, dim=self._dim, dtype=self._dtype)
            flagged = journal.kept(self._path.parent, NAME)
        except InputError:
            kept = None
        if kept is None or kept.changed() or any(id in done for id in kept.names()):
            self.drop()
            return None, ()
        return kept, flagged

    def drop(self) -> None:
        """Remove it, as its shard is finished."""
        drop(self._path.parent)
        self._since = time.monotonic()


def drop(folder: Path) -> None:
    """Remove the draft of a folder, if it has one."""
    (folder / NAME).unlink(missing_ok=True)
    journal.keep(folder, NAME, ())
