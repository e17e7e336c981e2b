"""Strict readers of third-party annotations: JSON, CSV, lists of ids and `.npy`, never a pickle.

Paths must stay in their folder, and texts lose control characters, so that pages and terminals can show them.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.fields import is_unicode
from polypool.infra.files import existing, read_json

PICKLED = "pickled objects; pickles are not read, as they can run code"
FORM = "not of the expected form"
DUPLICATE = "duplicate id; the first is kept"
_TYPES: dict[type, str] = {str: "string", int: "whole number", list: "list", dict: "object"}
_IDS = "a .json, .npy or .txt file of ids"
_MOST_WORDS, _MOST_CHARACTERS = 1000, 10_000
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]+")
"""Control characters other than white space, and marks that change the direction of text."""


def read_form(
    path: str | Path,
    *,
    what: str,
    lists: Sequence[str] = (),
    entry: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Read a JSON file: an object with lists in some fields, or a list.

    Args:
        path: the file.
        what: expected content, for messages.
        lists: names of the fields; empty for a list.
        entry: as in `read_json`.

    Raises:
        InputError: a missing, truncated or malformed file.
    """
    data = read_json(path, what=what, entry=entry)
    values = [data.get(name) for name in lists] if isinstance(data, dict) else [None if lists else data]
    if not values or not all(isinstance(each, list) for each in values):
        raise InputError(f"{path}: {FORM}: {what}")
    return data


def misfit(entry: Any, what: str, **kinds: type | tuple[type, ...]) -> str | None:
    """Return why an entry of a JSON file, such as `an image`, lacks fields of these types; None if it has them."""
    if not isinstance(entry, dict):
        return f"{FORM}: {what} that is not an object"
    for name, kind in kinds.items():
        types = kind if isinstance(kind, tuple) else (kind,)
        if type(entry.get(name)) not in types:
            return (
                f"{FORM}: {what} whose {name} is missing or no {' or '.join(_TYPES[each] for each in types)}"
            )
    return None


def read_csv(path: str | Path, *, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the place of each row (file and line) and its values in some columns.

    Args:
        path: a UTF-8 file, whose first row names its columns.
        columns: names of the columns to return.

    Raises:
        InputError: a missing file, a header without each of these columns exactly once, or a damaged row.
    """
    path = existing(path, what=f"a CSV file with the column(s) {', '.join(columns)}")
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            names = [name.strip() for name in next(rows, [])]
            if wrong := [name for name in columns if names.count(name) != 1]:
                raise InputError(
                    f"{path}: expected the columns {', '.join(columns)}, each once; it has "
                    f"{', '.join(names) or 'none':.200}, and {', '.join(wrong)} not once"
                )
            for fields in rows:
                where = f"{path.name}, line {rows.line_num}"
                if fields and len(fields) != len(names):
                    raise InputError(
                        f"{path.parent / where}: a row of {len(fields)} fields, where the header has {len(names)}; "
                        "correct it, or fetch the file again"
                    )
                if fields:
                    yield where, tuple(fields[names.index(name)].strip() for name in columns)
        except csv.Error as error:
            raise InputError(
                f"{path}, line {rows.line_num}: {error}; perhaps a quote is not closed: correct it, or fetch the "
                "file again"
            ) from error


def read_ids(path: str | Path, *, what: str = _IDS) -> list[str]:
    """Return the ids of a file, in its order; errors as in `read_id_rows`."""
    return [id for id, _ in read_id_rows(path, what=what)]


def read_id_rows(path: str | Path, *, what: str = _IDS) -> list[tuple[str, Any]]:
    """Return pairs of id and row, from a JSON object `{id: row}` or a list of ids in the order of the rows.

    By its suffix, the file is JSON, a `.npy` array, or text with ids separated by white space (any other suffix).

    Raises:
        InputError: a missing or damaged file, content other than ids, or a pickle.
    """
    path = existing(path, what=what)
    if path.suffix in (".pkl", ".pickle"):
        raise InputError(f"{path}: {PICKLED}; write the ids as text, one a line")
    if path.suffix == ".npy":
        try:
            ids = map_array(path, what="an array of ids").reshape(-1).tolist()
        except InputError as error:
            if PICKLED not in str(error):
                raise
            name = json.dumps(str(path))  # HGR's release has such files
            code = f"import numpy as n; p = {name}; n.save(p, n.asarray(n.load(p, allow_pickle=True), str))"
            raise InputError(
                f"{path}: cannot be read as an array of ids: it holds {PICKLED}. If you trust it, this writes it anew "
                f"as text: python -c {shlex.quote(code)}"
            ) from error
    elif path.suffix == ".json":
        ids = read_json(path, what="a list of ids, or {id: row}")
        if isinstance(ids, dict):
            return [*ids.items()]
        if not isinstance(ids, list) or not all(isinstance(id, str | int) for id in ids):
            raise InputError(f"{path}: expected a list of ids, or {{id: row}}")
    else:
        ids = path.read_text("utf-8-sig", "surrogateescape").split()
    return [(as_text(id), row) for row, id in enumerate(ids)]


def as_text(id: Any) -> str:
    """Return an id as text, whether it was stored as text, bytes or a number."""
    return id.decode("utf-8", "surrogateescape") if isinstance(id, bytes) else str(id)


def map_array(path: str | Path, *, what: str) -> np.ndarray:
    """Memory-map the array of a `.npy` file; nothing is unpickled.

    Args:
        path: the file.
        what: its expected content, for messages.

    Raises:
        InputError: a missing or damaged file, one shorter than its header says, pickled objects, or an array of a
            structured type.
    """
    path = existing(path, what=what)
    try:
        x = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's header parser raises many types
        why = unreadable(path, error)
        raise InputError(
            f"{path}: cannot be read as {what}: {why}; fetch it again, or write it anew"
        ) from error
    if x.dtype.kind == "V":
        raise InputError(f"{path}: cannot be read as {what}: an array of {x.dtype}, expected numbers or text")
    return x


def unreadable(path: Path, error: Exception) -> str:
    """Return why a file could not be loaded, for a message: pickled objects, or damage."""
    with path.open("rb") as file:
        pickle = file.read(1) == b"\x80"
    objects = isinstance(error, ValueError) and (
        "Python objects" in str(error) or "Object arrays" in str(error)
    )
    return PICKLED if pickle or objects else "damaged or cut short"


def wrong_path(path: str, *, images: str | Path) -> str | None:
    """Return why a path, absolute or below `images`, is invalid; None if it is valid."""
    if not is_unicode(path):
        return "a path that is not valid UTF-8"
    return "a path that leaves the folder of images" if leaves(path, folder=images) else None


def leaves(path: str, *, folder: str | Path) -> bool:
    """Whether a path, absolute or relative to a folder, leaves that folder; False without a folder.

    Symbolic links in the folder may lead anywhere: the user made them, whereas others wrote the annotations.
    """
    if not folder or not (os.path.isabs(path) or os.pardir in path):
        return False
    top = os.path.normpath(folder)
    return not Path(os.path.normpath(os.path.join(top, path))).is_relative_to(top)


def wrong_text(text: Any, *, what: str) -> str | None:
    """Return why a value is not a non-empty text; None if it is. `what` is its name in the message: `a caption`."""
    if not isinstance(text, str):
        return f"{what} that is not a string"
    if not is_unicode(text):
        return f"{what} that is not valid UTF-8"
    return None if printed(text).strip() else f"{what} that is empty"


def printed(text: str) -> str:
    """Replace control characters, which pages and terminals may execute, by spaces."""
    return _CONTROL.sub(" ", text)


def plain(text: Any, *, what: str) -> tuple[str, str | None]:
    """Return a caption or question with single spaces between its words, and a warning about it, or None.

    A value other than a text becomes empty. A text of more than 1,000 words or 10,000 characters is cut: models read a
    few dozen words, and such a text is probably a file of another kind.
    """
    if why := wrong_text(text, what=what):
        return "", why
    odd = f"{what} with control characters, which are left out" if printed(text) != text else None
    words = printed(text).split()
    if len(words) > _MOST_WORDS:
        words, odd = words[:_MOST_WORDS], f"{what} of over {_MOST_WORDS:,} words, cut to these"
    text = " ".join(words)
    if len(text) > _MOST_CHARACTERS:
        text, odd = text[:_MOST_CHARACTERS], f"{what} of over {_MOST_CHARACTERS:,} characters, cut to these"
    if not any(character.isalnum() for character in text):
        return text, f"{what} without a word"
    return text, odd
