from __future__ import annotations

import io
import signal
import sys
from unittest.mock import patch

import pytest
from programs import begin_until
from verbs import exit_code

from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.process.terminal import Printable, printable

HOSTILE = "\x1b[2J\x1b]0;title\x07caf\u00e9 \udcff\u202e\r\x9b31m"
SHOWN = r"\x1b[2J\x1b]0;title\x07café \udcff\u202e\r\x9b31m"


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", SHOWN), ("ascii", SHOWN.replace("é", "\\xe9"))])
def test_a_stream_passes_on_what_its_encoding_spells(encoding, expected):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    assert printable("a\tb\nc") == "a\tb\nc"
    print(HOSTILE, file=Printable(stream), flush=True)
    assert stream.buffer.getvalue().decode(encoding) == f"{expected}\n"


def test_verbs_print_text_and_errors_of_others_as_text(capsys):
    @command
    def verb() -> None:
        print(HOSTILE)
        raise InputError(HOSTILE)

    assert exit_code(verb) == 2
    assert capsys.readouterr() == (f"{SHOWN}\n", f"error: {SHOWN}\n")


def test_help_is_without_colours(capsys):
    from polypool.pipelines.commands import ingest

    with patch.object(sys, "argv", ["ingest", "--help"]), pytest.raises(SystemExit):
        ingest.main()
    out = capsys.readouterr().out
    assert "karpathy" in out
    assert "x1b" not in out


def test_a_verb_whose_output_nobody_reads_ends_without_a_word():
    code = (
        "import time\nfrom polypool.infra.process.command import command\n"
        "@command\ndef main():\n    for n in range(20000): print('a line', n)\nmain()"
    )
    verb = begin_until("a line 0", "-c", code)
    verb.stdout.close()
    assert verb.stderr.read() == ""
    assert verb.wait(60) == 128 + signal.SIGPIPE
