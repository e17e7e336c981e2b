"""Commands in the documentation: every verb, sub-command and option that they name exists."""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

import pytest
from places import ROOT

from polypool.__main__ import main, verbs

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ROOT / "docs/aggregators"
COMMAND = re.compile(r"(?:^ {4}|`|python -m )(polypool [a-z].*?)(?:`|$)", re.MULTILINE)


def commands() -> dict[str, str]:
    """Return every command that a file names as code, with the file."""
    found = {}
    for path in FILES:
        if GENERATED in path.parents:
            continue
        text = re.sub(r"<!-- table.*?end of table -->", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"\\\n +", "", text)
        found |= {command.partition(" #")[0]: path.name for command in COMMAND.findall(text)}
    return found


@cache
def help_of(*words: str) -> str:
    """Return what `polypool WORDS --help` prints."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown), redirect_stderr(shown):
        patch.setattr(sys, "argv", ["polypool", *words, "--help"])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code, shown.getvalue()
    return shown.getvalue()


def helps(verb: str, words: list[str]) -> str:
    """Return the help that a command's options stand in; sub-commands are the words before any option."""
    if verb == "train":
        return help_of("train") + help_of("train", "demo") + help_of("train", "rerun")
    if verb == "sweep":
        return help_of("sweep") + help_of("train", "demo")
    known, shown = [verb], help_of(verb)
    for word in words:
        if re.search(rf"[•{{,|] *{re.escape(word)}\b", shown) and re.fullmatch(r"[a-z0-9-]+", word):
            known.append(word)
            shown += help_of(*known)
    return shown


@pytest.mark.parametrize(("command", "file"), commands().items())
def test_a_command_of_the_documentation_exists(command: str, file: str) -> None:
    _, verb, *words = shlex.split(
        command.replace("'", "").replace('"', "").replace("$(", "").replace(")", "")
    )
    if verb == verb.upper():  # `polypool VERB`
        return
    assert verb in verbs(), f"{file}: {command}"
    shown = helps(verb, words)
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert re.search(rf"{re.escape(option)}\b", shown), f"{file}: {command}"
