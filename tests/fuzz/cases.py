"""Kinds of fuzzed files with their readers, and the outcomes of a damaged case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Form = Literal["json", "jsonl", "lines", "csv", "npy", "npz", "hdf5", "safetensors", "tar", "raw"]
"""How a file is damaged, beside its bytes: a module of `fuzz.damage` each."""

GOOD = ("accepted", "counted", "message")
"""How a case may end: all of it was taken, what was left out was counted and listed, or one message said why not."""
BAD = ("traceback", "hang", "crash", "silently wrong")


class SilentlyWrong(AssertionError):
    """What was read is not what the files say, and nothing was said."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of file, and who reads it.

    Attributes:
        name: of the reader, in tables.
        make: writes small files that are valid to a folder.
        read: reads them, runs where a crash ends no test; returns how many cases were counted as skipped. It raises
            InputError where the files are refused and SilentlyWrong where they were misread.
        damaged: the files that are damaged, and how.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], int]
    damaged: Mapping[str, Form]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a case ended, one of `GOOD` or `BAD`, and what was printed or raised."""

    outcome: str
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether a case may end so."""
        return self.outcome in GOOD


def expect(holds: bool, what: str) -> None:
    """Hold what was read to what the files say.

    Raises:
        SilentlyWrong: it does not hold.
    """
    if not holds:
        raise SilentlyWrong(what)
