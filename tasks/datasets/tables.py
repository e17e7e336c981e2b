"""An Arrow table on disk beside a manifest that has its SHA-256: how every corpus is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.errors import InputError
from infra.files import read_json, sha256


def open_table(folder: Path, *, name: str, version: int, what: str) -> tuple[dict[str, Any], pa.Table]:
    """Return the manifest `<name>.json`, and the table `<name>.arrow`, memory-mapped.

    Args:
        folder: where both are.
        name: of the files, without their endings.
        version: the one that can be read.
        what: what the table is, for messages, such as `a corpus`.

    Raises:
        InputError: there is none, it is half written or of another version, or its bytes were changed.
    """
    path = folder / f"{name}.json"
    manifest = read_json(path, what=f"the manifest of {what}, as ingest writes it")
    if not isinstance(manifest, dict) or manifest.get("version") != version:
        raise InputError(f"{path}: not {what} of version {version}; ingest it again")
    path = folder / f"{name}.arrow"
    if not path.is_file() or sha256(path) != manifest.get("sha256"):
        raise InputError(f"{path}: missing, half written or changed (SHA-256 differs); ingest it again")
    return manifest, pa.ipc.open_file(pa.memory_map(str(path))).read_all()
