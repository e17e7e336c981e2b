"""Lists of ids in files: `.txt`, `.json` or `.npy`, never a pickle."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from infra.arrays import PICKLED, map_array
from infra.errors import InputError
from infra.files import existing, read_json

_FORMS = "a .json, .npy or .txt file of ids"


def read_ids(path: str | Path, *, what: str = _FORMS) -> list[str]:
    """Return the ids of a file, in its order: a JSON list, an array of text or numbers, or words of a text file.

    Args:
        path: the file; its suffix says what it is.
        what: what is looked for, for the message where the file is missing.

    Raises:
        InputError: it is missing or damaged, holds something else than ids, or is a pickle.
    """
    ids = _load(existing(path, what=what))
    if isinstance(ids, dict):
        raise InputError(f"{path}: expected a list of ids, and it holds an object")
    return ids


def read_id_rows(path: str | Path) -> list[tuple[str, Any]]:
    """Return pairs of id and row: those of a JSON object `{id: row}`, or a list's ids and their places in it.

    Raises:
        InputError: as `read_ids`.
    """
    rows = _load(existing(path, what=_FORMS))
    return list(rows.items()) if isinstance(rows, dict) else [(id, row) for row, id in enumerate(rows)]


def as_text(id: Any) -> str:
    """Return an id as text, whether it was stored as text, bytes or a number."""
    return id.decode("utf-8", "surrogateescape") if isinstance(id, bytes) else str(id)


def _load(path: Path) -> list[str] | dict[str, Any]:
    if path.suffix in (".pkl", ".pickle"):
        name = json.dumps(str(path))
        code = f'import json, pickle; json.dump(pickle.load(open({name}, "rb")), open("ids.json", "w"))'
        raise InputError(
            f"{path}: pickles are not read, as they can run code. If you trust it: python -c {shlex.quote(code)}"
        )
    if path.suffix == ".npy":
        return [as_text(id) for id in _array(path).reshape(-1).tolist()]
    if path.suffix != ".json":
        return path.read_text("utf-8-sig", "surrogateescape").split()
    data = read_json(path, what="a list of ids, or {id: row}")
    if isinstance(data, dict):
        return data
    if not isinstance(data, list) or not all(isinstance(id, str | int) for id in data):
        raise InputError(f"{path}: expected a list of ids, or {{id: row}}")
    return [as_text(id) for id in data]


def _array(path: Path) -> np.ndarray:
    """Load an array; one of Python objects is a pickle, and the message tells how to turn it into text."""
    try:
        return map_array(path, what="an array of ids")
    except InputError as error:
        if PICKLED not in str(error):
            raise
        name = json.dumps(str(path))
        code = f"import numpy as n; p = {name}; n.save(p, n.asarray(n.load(p, allow_pickle=True), str))"
        raise InputError(
            f"{path}: cannot be read as an array of ids: it holds {PICKLED}. If you trust it, this writes it anew as "
            f"text: python -c {shlex.quote(code)}"
        ) from error
