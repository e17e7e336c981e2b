"""Options of every verb, and the commands that come next."""

import shlex
import sys

import pytest
from verbs import called, exit_code

from polypool.infra.errors import InputError
from polypool.infra.process import output
from polypool.infra.process.command import command
from polypool.infra.process.output import (
    LOG,
    WITHIN,
    command_line,
    print_next,
    printed_as,
    take_options,
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a", "--quiet", "b"], ("quiet", ["a", "b"])),
        (["--log-format", "json", "a"], ("json", ["a"])),
        (["--log-format=json", "--log"], ("json", ["--log"])),
        (["--log_format", "text"], ("text", [])),
        ([], ("text", [])),
    ],
)
def test_options_of_every_verb_are_taken_from_its_words(words, expected):
    assert take_options(words) == expected


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError, match=r"unknown format of progress \(--log-format\) 'xml'"):
        take_options(["--log-format", "xml"])
    assert called("ingest", "--log-format", "xml")[0] == 2


def test_a_verb_sees_its_own_words_and_its_children_the_format(monkeypatch):
    seen = []

    @command
    def main() -> None:
        seen.append((sys.argv[1:], output.mode()))

    monkeypatch.delenv(LOG, raising=False)
    exit_code(main, "--quiet", "a")
    assert seen == [(["a"], "quiet")]
    assert output.mode() == "text"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('(RayTrainWorker pid=27774) {"event": "progress"}\n', '{"event": "progress"}\n'),
        ('(Trial pid=1, ip=10.0.0.2) {"event": "progress"}\n', '{"event": "progress"}\n'),
        ("(RayTrainWorker pid=27774) a warning\n", "(RayTrainWorker pid=27774) a warning\n"),
        ('a {"b": 1}\n', 'a {"b": 1}\n'),
    ],
)
def test_json_lines_of_workers_are_lines_of_json(capsys, line, expected):
    with printed_as("json"):
        sys.stderr.write(line)
    assert capsys.readouterr().err == expected
    with printed_as("text"):
        sys.stderr.write(line)
    assert capsys.readouterr().err == line


def test_help_names_the_options_that_all_verbs_have():
    code, out, _ = called("search", "--help")
    assert (code, "--log-format json" in out) == (0, True)


def test_next_steps_are_commands_that_can_be_pasted(capsys, monkeypatch):
    monkeypatch.setattr(output.shutil, "which", lambda name: "/bin/polypool")
    print_next(
        ("ask it", ("search", "id", "two words")),
        ("look", ("$mlflow", "ui", "a;b")),
        ("read", ("ingest", "hdf5", "--file", "FILE")),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["", "next:"]
    assert [shlex.split(line, comments=True) for line in lines[2:]] == [
        ["polypool", "search", "id", "two words"],
        ["mlflow", "ui", "a;b"],
        ["polypool", "ingest", "hdf5", "--file", "FILE"],
    ]
    assert {line.index("  # ") for line in lines[2:]} == {lines[2].index("  # ")}
    monkeypatch.setattr(output.shutil, "which", lambda name: None)
    assert command_line(("runs",)) == "python -m polypool runs"


@pytest.mark.parametrize(("name", "value"), [(LOG, "quiet"), (LOG, "json"), (WITHIN, "demo")])
def test_programs_get_no_next_steps(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    print_next(("ask it", ("search", "id", "two words")))
    assert capsys.readouterr().out == ""
