from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import programs
import pytest
from places import ROOT
from programs import begin_until, end

VERB = """
import contextlib, os, sys, time
from polypool.infra.process.command import command
from polypool.infra.process.stopping import cleanup_on_exit, graceful_stop, resume_hint

@command
def main():
    try:
{body}
    finally:
        print("undone", flush=True)
        time.sleep({clean_up})

main()
"""
READY = "        print('ready', flush=True)\n"
SLEEP = READY + "        time.sleep(60)"


def begin(folder: Path, body: str = SLEEP, *words: str, clean_up: float = 0) -> subprocess.Popen:
    """Start a command and wait until it is ready."""
    verb = folder / "a verb.py"
    verb.write_text(VERB.format(body=body, clean_up=clean_up))
    return begin_until("ready", str(verb), *words)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "stopped by Ctrl-C; to resume: python '{verb}' --query 'it'\"'\"'s'\n"),
        (signal.SIGTERM, "stopped by SIGTERM; to resume: python '{verb}' --query 'it'\"'\"'s'\n"),
        (signal.SIGHUP, ""),
    ],
)
def test_signal_prints_resume_command_and_cleans_up(number, said, tmp_path):
    found = end(begin(tmp_path, SLEEP, "--query", "it's"), number)
    assert found == (128 + number, "undone\n", said.format(verb=tmp_path / "a verb.py"))


def test_second_signal_skips_slow_cleanup(tmp_path):
    body = """        stack = contextlib.ExitStack()
        stack.enter_context(cleanup_on_exit(lambda: os.write(1, b"at once\\n")))
        stack.enter_context(cleanup_on_exit(lambda: 1 / 0))
        with cleanup_on_exit(lambda: print("this is over", flush=True)):
            pass
        stack.enter_context(resume_hint("polypool train resume 12ab"))
        with resume_hint("this is over"):
            pass
        print('ready', flush=True)
        time.sleep(60)"""
    process = begin(tmp_path, body, clean_up=60)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "undone\n"
    began = time.monotonic()
    code, out, err = end(process, signal.SIGINT)
    assert time.monotonic() - began < 5
    assert (code, out) == (130, "at once\n")
    assert err == "stopped by Ctrl-C; to resume: polypool train resume 12ab\n"


def test_ignored_signal_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = begin(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert end(process, signal.SIGTERM)[0] == 143


ASKED = """        asked = []
        with graceful_stop(lambda: asked.append(1), seconds={seconds}):
            print('ready', flush=True)
            limit = time.monotonic() + 60
            while not (asked and {gives_way}) and time.monotonic() < limit:
                time.sleep(0.05)
            print('checkpoint', len(asked), flush=True)
        print('unreachable', flush=True)"""


@pytest.mark.parametrize(
    ("number", "gives_way", "seconds", "said"),
    [
        (signal.SIGTERM, True, 30, "checkpoint 1\nundone\n"),
        (signal.SIGTERM, False, 0.3, "undone\n"),
        (signal.SIGINT, True, 30, "checkpoint 1\nundone\n"),
    ],
)
def test_graceful_stop_waits_for_checkpoint_until_timeout(number, gives_way, seconds, said, tmp_path):
    process = begin(tmp_path, ASKED.format(seconds=seconds, gives_way=gives_way))
    began = time.monotonic()
    code, out, _ = end(process, number)
    assert (out, code) == (said, 128 + number)
    assert time.monotonic() - began < 10


def test_signal_during_import_prints_only_resume_command(tmp_path):
    # shadows the first package that the command imports
    (tmp_path / "tyro.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    words, env = ("-m", "polypool", "ingest", "verify"), {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    code, _, err = end(begin_until("ready", *words, env=env), signal.SIGINT)
    assert code == 130
    assert err.startswith("stopped by Ctrl-C; to resume: python -")
    assert err.count("\n") == 1


IMPORTING = """
import os, signal, sys
from polypool.infra.process.command import command
from polypool.infra.process.stopping import cleanup_on_exit

class Signalling:
    def find_spec(self, name, path, target=None):
        if name == "numpy.lib._iotools":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

@command
def main():
    sys.meta_path.insert(0, Signalling())
    with cleanup_on_exit(lambda: print("undone", flush=True)):
        import torch
    print("went on without", "numpy.lib._iotools" in sys.modules)

main()
"""


def test_signal_is_not_mistaken_for_missing_library():
    code, out, err = end(programs.begin("-c", IMPORTING, env=os.environ))
    assert (code, out) == (143, "undone\n")
    assert err.startswith("stopped by SIGTERM; to resume: ")
