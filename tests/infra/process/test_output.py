"""Output of commands: common options, escaped untrusted text, and suggested next commands."""

import io
import shlex
import signal
import sys

import pytest
from programs import begin_until
from verbs import called, exit_code

from polypool.infra.errors import InputError
from polypool.infra.process import output
from polypool.infra.process.command import command
from polypool.infra.process.output import (
    LOG,
    WITHIN,
    Printable,
    command_line,
    print_next,
    printable,
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
def test_take_options_removes_common_options(words, expected):
    assert take_options(words) == expected


def test_unknown_log_format_is_refused():
    with pytest.raises(InputError, match=r"unknown format of progress \(--log-format\) 'xml'"):
        take_options(["--log-format", "xml"])
    assert called("ingest", "--log-format", "xml")[0] == 2


def test_quiet_option_sets_mode_during_command_only(monkeypatch):
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
        ('(Trial pid=1, ip=10.0.0.2) {"event": "progress"}\n', '{"event": "progress"}\n'),
        ("(RayTrainWorker pid=27774) a warning\n", "(RayTrainWorker pid=27774) a warning\n"),
    ],
)
def test_json_mode_strips_worker_prefix_of_json_lines(capsys, line, expected):
    with printed_as("json"):
        sys.stderr.write(line)
    assert capsys.readouterr().err == expected
    with printed_as("text"):
        sys.stderr.write(line)
    assert capsys.readouterr().err == line


def test_next_steps_can_be_pasted_into_a_shell(capsys, monkeypatch):
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
def test_next_steps_are_omitted_for_programs(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    print_next(("ask it", ("search", "id", "two words")))
    assert capsys.readouterr().out == ""


HOSTILE = "\x1b[2J\x1b]0;title\x07caf\u00e9 \udcff\u202e\r\x9b31m"
SHOWN = r"\x1b[2J\x1b]0;title\x07café \udcff\u202e\r\x9b31m"


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", SHOWN), ("ascii", SHOWN.replace("é", "\\xe9"))])
def test_printable_stream_escapes_unsafe_characters(encoding, expected):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    assert printable("a\tb\nc") == "a\tb\nc"
    print(HOSTILE, file=Printable(stream), flush=True)
    assert stream.buffer.getvalue().decode(encoding) == f"{expected}\n"


def test_commands_escape_untrusted_output_and_errors(capsys):
    @command
    def verb() -> None:
        print(HOSTILE)
        raise InputError(HOSTILE)

    assert exit_code(verb) == 2
    assert capsys.readouterr() == (f"{SHOWN}\n", f"error: {SHOWN}\n")


def test_closed_output_pipe_ends_command_silently():
    code = (
        "import time\nfrom polypool.infra.process.command import command\n"
        "@command\ndef main():\n    for n in range(20000): print('a line', n)\nmain()"
    )
    verb = begin_until("a line 0", "-c", code)
    verb.stdout.close()
    assert verb.stderr.read() == ""
    assert verb.wait(60) == 128 + signal.SIGPIPE
