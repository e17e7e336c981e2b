"""Local folders of published models: those that `extract` used on this machine, and those in POLYPOOL_MODELS.

A feature store records a model by the last part of its folder, or of its file of weights, and by the digest of its
weights, so that stores can be moved and published. A file in polypool's home records the path by this digest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import make_folder, write_json
from polypool.infra.paths import home

MODELS = "POLYPOOL_MODELS"
"""Environment variable with folders of models, separated as in PATH."""
REMEMBERED = "data/model_folders.json"


def local_folder(name: str) -> Path | None:
    """Return a model's folder: `name`, or that path or its last part in a folder of POLYPOOL_MODELS; else None."""
    named = Path(name).expanduser()
    listed = [Path(each).expanduser() for each in os.environ.get(MODELS, "").split(os.pathsep) if each]
    within = (folder / part for folder in listed for part in (name, named.name))
    return next((folder for folder in (named, *within) if folder.is_dir()), None) if named.name else None


def remember_model(name: str, described: Mapping[str, Any]) -> None:
    """Record the folder or file that a backbone's model was read from, and drop records of deleted ones.

    Args:
        name: the model or the file of its weights, as in the backbone's spec.
        described: output of `Backbone.describe`.
    """
    local, sha256 = local_folder(name) or Path(name).expanduser(), described.get("sha256")
    if name and local.exists() and sha256:
        path = home() / REMEMBERED
        still = {of: known for of, known in _remembered(path).items() if Path(known).exists()}
        make_folder(path.parent)
        write_json(path, still | {sha256: str(local.resolve())})


def remembered_model(described: Mapping[str, Any]) -> Path | None:
    """Return the recorded folder or file of a model, which may no longer exist; None without a record."""
    local = _remembered(home() / REMEMBERED).get(str(described.get("sha256")))
    return Path(local) if local else None


def _remembered(path: Path) -> dict[str, str]:
    """Return folders and files of models by the SHA-256 of their weights."""
    if not path.exists():
        return {}
    try:
        return read_record(dict[str, str], path, what="folders of models")
    except InputError as error:
        raise InputError(f"{error}; delete the file: `extract` writes it again") from error
