"""Rows of a table together by their ids, on disk: a table may have more of them than memory."""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Self

from polypool.infra.errors import InputError

_CACHE = 16 << 10  # kB of pages, and as much for each sort
_MAKE = (
    f"pragma cache_size = -{_CACHE}",
    "pragma journal_mode = off",
    "create table rows (number integer primary key, key blob, row blob)",
    "create table ids (rank integer primary key, key blob, first integer)",
    "begin",
)
_RANK = (
    "insert into ids (key, first) select key, min(number) from rows group by key order by key",
    "create unique index places on ids (key, first, rank)",
)
_IN_ORDER = "select rank - 1, row from rows join ids using (key) order by first, number"


class Gathering:
    """Rows in a file without a name, which goes with the object; use it as a context manager.

    Args:
        key: returns the bytes of an id by which ids are told apart and ranked.
    """

    def __init__(self, key: Callable[[str], bytes]) -> None:
        self._key = key
        with _storing():
            self._rows = sqlite3.connect("", isolation_level=None)
            for line in _MAKE:
                self._rows.execute(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def add(self, id: str, row: tuple[Any, ...]) -> None:
        """Keep a row of text, numbers and tuples of them."""
        with _storing():
            held = (self._key(id), marshal.dumps(row))
            self._rows.execute("insert into rows (key, row) values (?, ?)", held)

    def rank(self) -> int:
        """Rank the ids by their keys, after the last row; return how many there are."""
        with _storing():
            for line in _RANK:
                self._rows.execute(line)
            return self._rows.execute("select count(*) from ids").fetchone()[0]

    def groups(self) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
        """Yield the rank of each id, from 0, and its rows as they came, in the order in which ids begin."""
        with _storing():
            for rank, rows in groupby(self._rows.execute(_IN_ORDER), key=lambda pair: pair[0]):
                yield rank, (marshal.loads(row) for _, row in rows)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"no room for the rows of the table in the folder of temporary files: {error}; make room, or name another "
            "folder in TMPDIR"
        ) from error
