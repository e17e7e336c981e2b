"""Manifest of a feature store, `manifest.json`: written last, so that an incomplete store is unreadable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.fields import Rule, at_least, from_plain
from polypool.infra.files import existing_folder, write_json
from polypool.infra.storage import Url, place, read_json

VERSION = 2
"""The version that is written and read."""

NAME = "manifest.json"
COLUMNS = "columns"
"""Key of a source that lists further columns, and name of their folder; see `infra.store.writer`."""
_DERIVED = ("sets", "vectors", "check")  # the first two for readers without this class
_FILE_NAME = Rule("a file name without a folder", lambda name: Path(name).name == name != "")
_ANY = Rule("at least one", bool)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Arrow file of a store.

    Args:
        file: its name.
        sets: number of sets.
        vectors: number of vectors in all its sets.
        bytes: its size.
        sha256: of all its bytes.
        vectors_at: byte offset of its vectors.
        check: XXH3 of all its bytes except the vectors, in hexadecimal.
    """

    file: Annotated[str, _FILE_NAME]
    sets: Annotated[int, at_least(1)]
    vectors: Annotated[int, at_least(1)]
    bytes: Annotated[int, at_least(1)]
    sha256: str
    vectors_at: Annotated[int, at_least(0)]
    check: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A complete store.

    Args:
        version: of the format.
        source: origin of the features: reader and files, or `extractor`, the description of a backbone.
        dim: width D of the vectors.
        dtype: `float16` or `float32`.
        shards: the files, in the order of their sets.
        statistics: `{"sets", "vectors", "mean", "std"}` over chosen sets, mean and std per channel; or None.
        skipped: summary of `polypool.infra.store.findings.Findings.skipped`.
        flagged: summary of `polypool.infra.store.findings.Findings.flagged`.
    """

    version: Literal[2] = VERSION
    source: dict[str, Any]
    dim: Annotated[int, at_least(1)]
    dtype: Literal["float16", "float32"]
    shards: Annotated[tuple[Shard, ...], _ANY]
    statistics: dict[str, Any] | None = None
    skipped: dict[str, Any] = field(default_factory=lambda: {"count": 0, "reasons": {}})
    flagged: dict[str, Any] = field(default_factory=lambda: {"count": 0, "reasons": {}})

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
        """SHA-256 of the shards' SHA-256: equal for equal ids and features, independent of the source."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()

    @property
    def origin(self) -> str:
        """SHA-256 of the settings of `extract` and of the sizes; empty for other stores.

        Stores of one origin differ only by rounding, for example on another processor.
        """
        if "extractor" not in self.source:
            return ""
        sizes = {"dim": self.dim, "dtype": self.dtype, "sets": self.sets, "vectors": self.vectors}
        return _check_of({"source": self.source} | sizes)

    def write(self, folder: Path) -> None:
        """Write `manifest.json` to `folder`, atomically."""
        data = {"version": self.version, "sets": self.sets, "vectors": self.vectors} | asdict(self)
        write_json(folder / NAME, data | {"check": _check_of(data)})

    @classmethod
    def read(cls, folder: str | Path | Url) -> Manifest:
        """Read the manifest of a store.

        Raises:
            AbsentError: no store, or an incomplete one.
            InputError: another version, or a damaged manifest.
        """
        folder = place(folder)
        if isinstance(folder, Path):
            existing_folder(folder, what="a feature store, as ingest and extract write it")
        path = folder / NAME
        try:
            data = read_json(path, what="the manifest of a feature store")
        except AbsentError as error:
            raise AbsentError(
                f"{folder}: not a complete feature store: it has no {NAME}, which is written last. "
                f"Repeat the command that writes it to resume, or check the path"
            ) from error
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise InputError(f"{path}: store version {version}, expected {VERSION}; write the store again")
        if _check_of({name: data[name] for name in data if name != "check"}) != data.get("check"):
            raise InputError(
                f"{path}: changed since it was written (`check` differs); copy the store again, or recreate it"
            )
        return from_plain(cls, {name: data[name] for name in data if name not in _DERIVED}, where=str(path))


def _check_of(data: dict[str, Any]) -> str:
    """Return the SHA-256 of JSON data in canonical form."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
