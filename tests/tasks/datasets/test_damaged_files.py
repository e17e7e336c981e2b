"""Damaged files of every format: cases where fuzzing once found a traceback, a hang or wrong numbers."""

from __future__ import annotations

import re
import shutil

import pytest
from fuzz import FORMS
from verbs import run

from polypool.infra.errors import InputError

WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?')


def instead(value: str):
    """Return a function that replaces a string or number in the middle of a file by a value."""

    def damaged(data: bytes) -> bytes:
        words = [*WORD.finditer(data)] or [re.search(b"", data)]
        found = words[len(words) // 2]
        return data[: found.start()] + value.encode() + data[found.end() :]

    return damaged


CASES = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "deep": instead("[" * 50_000),
    "digits": instead("9" * 5_000),
    "no Unicode": instead('"\\ud800"'),
    "control characters": instead('"\\u001b[2J\\u202e"'),
    "of another type": instead("null"),
    "a path that leaves": instead('"../../etc/passwd"'),
    "bytes": lambda data: data[:40] + b"\xff\xfe\x00" + data[43:],
}


BINARY = ("cut", "empty", "deep", "bytes")
"""The cases for binary files."""


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files_cause_no_traceback(form, tmp_path, monkeypatch):
    make, files, action = FORMS[form]
    (tmp_path / "whole").mkdir()
    make(tmp_path / "whole")
    binary = files.split()[0].endswith((".npy", ".tar", ".h5", ".parquet"))
    for name in BINARY if binary else CASES:
        damage = CASES[name]
        case = shutil.copytree(tmp_path / "whole", tmp_path / name)
        file = case / files.split()[0]
        file.write_bytes(damage(file.read_bytes()))
        monkeypatch.chdir(case)
        if isinstance(action, str):
            code, out, err = run(*action.split(), "--out", "out", "--allow-skipped")
            assert code in (0, 2), (name, err)
            assert "Traceback" not in err, (name, err)
            assert not {char for char in out if not char.isprintable()} - {*"\n\r\t"}, (name, out)
        else:
            try:
                action(case)
            except InputError:
                continue
