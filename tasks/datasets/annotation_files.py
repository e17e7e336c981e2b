"""Annotation files read strictly: JSON, also larger than memory, CSV line by line, and lists of ids, never a pickle."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from polypool.infra.errors import InputError
from polypool.infra.files import existing, json_object, read_json
from polypool.infra.limits import LARGEST_LINE, LARGEST_ROW
from polypool.infra.store.findings import Skipped
from polypool.infra.untrusted_arrays import PICKLED, map_array

FORM = "not of the expected form"
DUPLICATE = "duplicate id; the first is kept"
_TYPES: dict[type, str] = {str: "string", int: "whole number", list: "list", dict: "object"}
_NO_SPACE = re.compile(r"\S")
_PIECE = 1 << 20  # characters that are read at once
_DECODER = json.JSONDecoder(object_pairs_hook=json_object)
_IDS = "a .json, .npy or .txt file of ids"


def read_form(
    path: str | Path,
    *,
    what: str,
    lists: Sequence[str] = (),
    entry: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Return what a JSON file holds: an object in which these fields are lists, or a list where there are none.

    Args:
        path: the file.
        what: what is expected, for messages.
        lists: names of the fields.
        entry: as of `read_json`.

    Raises:
        InputError: it is missing, cut short or of another form.
    """
    data = read_json(path, what=what, entry=entry)
    held = [data.get(name) for name in lists] if isinstance(data, dict) else [None if lists else data]
    if not held or not all(isinstance(each, list) for each in held):
        raise InputError(f"{path}: {FORM}: {what}")
    return data


def misfit(entry: Any, what: str, **kinds: type | tuple[type, ...]) -> str | None:
    """Return why an entry of a JSON file, such as `an image`, lacks fields of these types, None where it has them."""
    if not isinstance(entry, dict):
        return f"{FORM}: {what} that is not an object"
    for name, kind in kinds.items():
        types = kind if isinstance(kind, tuple) else (kind,)
        if type(entry.get(name)) not in types:
            return (
                f"{FORM}: {what} whose {name} is missing or no {' or '.join(_TYPES[each] for each in types)}"
            )
    return None


def read_csv(path: str | Path, *, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]] | Skipped]:
    """Yield where each row is, and its values in some columns; rows that cannot be trusted are skipped.

    A line is a row: a quote that is not closed on its line would make one row of all lines to the next quote, and a
    row of more or fewer fields than the header has its values in the wrong columns. Empty lines are passed over.

    Args:
        path: a UTF-8 file, whose first line names its columns.
        columns: those that are wanted.

    Raises:
        InputError: there is no such file, or its header has not these columns, each once.
    """
    path, what = Path(path), f"a CSV file with the column(s) {', '.join(columns)}"
    lines = read_lines(path, what=what)
    header = _fields(next(lines, ""))
    names = [name.strip() for name in header] if isinstance(header, list) else []
    missing = [name for name in columns if name not in names]
    if wrong := missing or [name for name in columns if names.count(name) > 1]:
        many = "no column" if missing else "more than one column"
        found = header if isinstance(header, str) else ", ".join(names) or "none"
        raise InputError(
            f"{path}: {many} {', '.join(wrong)}; expected {', '.join(columns)}, and it has {found:.200}"
        )
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        where, fields = f"{path.name}, line {number}", _fields(line)
        if isinstance(fields, list) and len(fields) == len(names):
            yield where, tuple(fields[names.index(name)].strip() for name in columns)
            continue
        if isinstance(fields, list):
            fields = f"a row of {len(fields)} fields, where the header has {len(names)}"
        yield Skipped(where=where, why=fields)


def read_lines(path: str | Path, *, what: str) -> Iterator[str]:
    """Yield the lines of a text file; bytes that are no UTF-8 are escaped.

    Raises:
        InputError: it is missing, or a line is longer than any row.
    """
    path = existing(path, what=what)
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        while line := file.readline(LARGEST_ROW + 1):
            if len(line) > LARGEST_ROW:
                raise InputError(f"{path}: a line of over {LARGEST_ROW:,} characters; expected {what}")
            yield line


def _fields(line: str) -> list[str] | str:
    """Return the fields of a line, or why it has none."""
    try:
        (fields,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError) as error:
        if "field larger" in str(error):
            return "a row with a field that is far too long"
        return "a row with a quote that is not closed where its field or line ends"
    return fields


def read_ids(path: str | Path, *, what: str = _IDS) -> list[str]:
    """Return the ids of a file, in its order: by its suffix a JSON list, an array, or words of a text file.

    Raises:
        InputError: it is missing or damaged, holds something else than ids, or is a pickle.
    """
    ids = _load_ids(existing(path, what=what))
    if isinstance(ids, dict):
        raise InputError(f"{path}: expected a list of ids, and it holds an object")
    return ids


def read_id_rows(path: str | Path) -> list[tuple[str, Any]]:
    """Return pairs of id and row: those of a JSON object `{id: row}`, or a list's ids and their places in it.

    Raises:
        InputError: as `read_ids`.
    """
    rows = _load_ids(existing(path, what=_IDS))
    return list(rows.items()) if isinstance(rows, dict) else [(id, row) for row, id in enumerate(rows)]


def as_text(id: Any) -> str:
    """Return an id as text, whether it was stored as text, bytes or a number."""
    return id.decode("utf-8", "surrogateescape") if isinstance(id, bytes) else str(id)


def _load_ids(path: Path) -> list[str] | dict[str, Any]:
    name = json.dumps(str(path))
    if path.suffix in (".pkl", ".pickle"):
        code = f'import json, pickle; json.dump(pickle.load(open({name}, "rb")), open("ids.json", "w"))'
        raise InputError(
            f"{path}: pickles are not read, as they can run code. If you trust it: python -c {shlex.quote(code)}"
        )
    if path.suffix == ".npy":
        try:
            return [as_text(id) for id in map_array(path, what="an array of ids").reshape(-1).tolist()]
        except InputError as error:
            if PICKLED not in str(error):
                raise
            code = f"import numpy as n; p = {name}; n.save(p, n.asarray(n.load(p, allow_pickle=True), str))"
            raise InputError(
                f"{path}: cannot be read as an array of ids: it holds {PICKLED}. If you trust it, this writes it anew "
                f"as text: python -c {shlex.quote(code)}"
            ) from error
    if path.suffix != ".json":
        return path.read_text("utf-8-sig", "surrogateescape").split()
    data = read_json(path, what="a list of ids, or {id: row}")
    if isinstance(data, dict):
        return data
    if not isinstance(data, list) or not all(isinstance(id, str | int) for id in data):
        raise InputError(f"{path}: expected a list of ids, or {{id: row}}")
    return [as_text(id) for id in data]


def read_entries(path: str | Path, *, what: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of the object that a UTF-8 JSON file holds, in its order; keys may repeat.

    The file may be larger than memory: one value is held at a time.

    Raises:
        InputError: it is missing, or is not a JSON object; the message says where it breaks off.
    """
    with existing(path, what=what).open(encoding="utf-8-sig") as file:
        text = _Text(file, Path(path), what)
        for _ in text.members("{", "}"):
            if text.peek() != '"':
                raise text.broken('expected a key, which begins with "')
            key = text.value()
            text.expect(":")
            yield key, text.value()


def read_elements(path: str | Path, *, what: str) -> Iterator[Any]:
    """Yield the elements of the list that a UTF-8 JSON file holds, as `read_entries` does those of an object."""
    with existing(path, what=what).open(encoding="utf-8-sig") as file:
        text = _Text(file, Path(path), what)
        for _ in text.members("[", "]"):
            yield text.value()


class _Text:
    """The text of a JSON file from the place `at` on, of which no more is in memory than the value that is read."""

    def __init__(self, file: TextIO, path: Path, what: str) -> None:
        self.file, self.path, self.what = file, path, what
        self.text, self.at, self.before, self.ended = "", 0, 0, False

    def members(self, opening: str, closing: str) -> Iterator[None]:
        """Yield at the beginning of each member of a list or object, which is the whole file."""
        self.expect(opening)
        if self.peek() == closing:
            self.at += 1
        else:
            yield
            while self.expect(f",{closing}") == ",":
                yield
        if self.peek():
            raise self.broken("there is more after the end")

    def value(self) -> Any:
        """Decode the value here; one that the text in memory does not hold whole is tried again with more of it."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended or len(self.text) - self.at > LARGEST_LINE:
                    raise self.broken(error.msg) from error
            except (ValueError, RecursionError) as error:  # a key twice, or more digits than Python reads
                raise self.broken(str(error)) from error
            else:
                if end < len(self.text) or self.ended:  # a number that ends here may go on in the next piece
                    self.at = end
                    return value
            self._more()

    def expect(self, choices: str) -> str:
        """Return the next character that is not white space, which is one of some choices, and go beyond it."""
        if not (char := self.peek()) or char not in choices:
            raise self.broken(f"expected {' or '.join(choices)}, found {char or 'the end of the file'}")
        self.at += 1
        return char

    def peek(self) -> str:
        """Go to the next character that is not white space; return it, or nothing at the end of the file."""
        while True:
            rest = _NO_SPACE.search(self.text, self.at)
            self.at = rest.start() if rest else len(self.text)
            if rest or self.ended:
                return self.text[self.at : self.at + 1]
            self._more()

    def _more(self) -> None:
        """Forget what has been read and take in as much again as is left, so that long values take few tries."""
        try:
            piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        except UnicodeDecodeError as error:
            raise self.broken(f"not UTF-8: {error.reason}") from error
        self.ended, self.before = not piece, self.before + self.at
        self.text, self.at = self.text[self.at :] + piece, 0

    def broken(self, why: str) -> InputError:
        """Return the error of what stands here."""
        return InputError(
            f"{self.path}: cannot be read at character {self.before + self.at:,}: {why}; expected {self.what}. "
            f"The file may be cut short: fetch it again"
        )
