"""What a feature store says about itself: `manifest.json`, written last; without it a store is unreadable."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import existing_folder, read_json, write_json

VERSION = 1
NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Arrow file of a store: its name, what it holds, its size in bytes and the SHA-256 of its bytes."""

    file: str
    sets: int
    vectors: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A complete store.

    Args:
        source: where the features come from: reader and files, or extractor and layer.
        dim: width D of the vectors.
        dtype: `float16` or `float32`.
        shards: the files, in the order of their sets.
        statistics: `{"sets", "vectors", "mean", "std"}` over chosen sets, mean and std per channel; or None.
        skipped: what was left out, as `infra.store.skipped.SkipLog.summary` gives it.
    """

    source: dict[str, Any]
    dim: int
    dtype: str
    shards: tuple[Shard, ...]
    statistics: dict[str, Any] | None = None
    skipped: dict[str, Any] = field(default_factory=lambda: {"count": 0, "reasons": {}})

    @property
    def sets(self) -> int:
        """Number of sets in all shards."""
        return sum(shard.sets for shard in self.shards)

    @property
    def vectors(self) -> int:
        """Number of vectors in all sets."""
        return sum(shard.vectors for shard in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256 over the shards' SHA-256: equal for equal ids and features, whatever their source."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write `manifest.json` to `folder`, atomically."""
        totals = {"version": VERSION, "sets": self.sets, "vectors": self.vectors}
        write_json(folder / NAME, totals | asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read the manifest of a store.

        Raises:
            InputError: there is no store, it is half written, of another version, or its manifest is damaged.
        """
        path = existing_folder(folder, what="a feature store, as ingest and extract write it") / NAME
        if not path.exists():
            raise InputError(
                f"{folder}: not a complete feature store: it has no {NAME}, which is written last. "
                f"Run the command that writes it again (it goes on where it stopped), or check the path"
            )
        data = read_json(path, what="the manifest of a feature store")
        if not isinstance(data, dict) or data.get("version") != VERSION:
            version = data.get("version") if isinstance(data, dict) else None
            raise InputError(f"{path}: store version {version}, expected {VERSION}; write the store again")
        try:
            names = ("source", "dim", "dtype", "statistics", "skipped")
            shards = tuple(Shard(**shard) for shard in data["shards"])
            return cls(**{name: data[name] for name in names}, shards=shards)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged: {error}; write the store again") from error
