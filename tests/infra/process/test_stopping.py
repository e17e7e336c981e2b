"""Commands that are asked to end: what they print, their exit code, and what they undo."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT

VERB = """
import asyncio, contextlib, os, sys, time
from polypool.infra.process.command import command
from polypool.infra.process.stopping import cleanup_on_exit, graceful_stop, resume_hint, run_async

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


def begin(
    folder: Path, body: str = SLEEP, *, clean_up: float = 0, words: tuple[str, ...] = ()
) -> subprocess.Popen:
    """Start a command and wait until it is ready."""
    verb = folder / "a verb.py"
    verb.write_text(VERB.format(body=body, clean_up=clean_up))
    process = subprocess.Popen(
        [sys.executable, str(verb), *words],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "stopped by Ctrl-C; to go on: python '{verb}' --query 'it'\"'\"'s'\n"),
        (signal.SIGTERM, "stopped by SIGTERM; to go on: python '{verb}' --query 'it'\"'\"'s'\n"),
        (signal.SIGHUP, ""),
    ],
)
def test_one_line_says_how_to_go_on_and_nothing_is_left(number: int, said: str, tmp_path: Path) -> None:
    process = begin(tmp_path, words=("--query", "it's"))
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (128 + number, "undone\n")
    assert err == said.format(verb=tmp_path / "a verb.py")


def test_what_began_says_itself_how_to_go_on(tmp_path: Path) -> None:
    body = """        with resume_hint("polypool train resume 12ab"):
            with resume_hint("this is over"):
                pass
            print('ready', flush=True)
            time.sleep(60)"""
    process = begin(tmp_path, body)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == ("stopped by Ctrl-C; to go on: polypool train resume 12ab\n")


def test_a_second_signal_ends_the_clean_up_but_for_what_takes_no_time(tmp_path: Path) -> None:
    body = """        stack = contextlib.ExitStack()
        stack.enter_context(cleanup_on_exit(lambda: os.write(1, b"at once\\n")))
        stack.enter_context(cleanup_on_exit(lambda: 1 / 0))
        with cleanup_on_exit(lambda: print("this is over", flush=True)):
            pass
        print('ready', flush=True)
        time.sleep(60)"""
    process = begin(tmp_path, body, clean_up=60)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "undone\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert (process.returncode, out) == (130, "at once\n")
    assert err.count("\n") == 1


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = begin(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    process.communicate()


ASYNC = """        async def sleep():
            print('ready', flush=True)
            try:
                await asyncio.sleep(60)
            finally:
                print('cancelled', flush=True)
        async def both():
            await asyncio.gather(sleep(), asyncio.sleep(60))
        run_async(both())
        print('unreachable', flush=True)"""


def test_what_runs_side_by_side_is_cancelled_first(tmp_path: Path) -> None:
    process = begin(tmp_path, ASYNC)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (143, "cancelled\nundone\n")
    assert err.startswith("stopped by SIGTERM")
    assert err.count("\n") == 1


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
        (signal.SIGINT, True, 30, "undone\n"),
    ],
)
def test_sigterm_asks_for_a_checkpoint_first_and_waits_so_long(
    number: int, gives_way: bool, seconds: float, said: str, tmp_path: Path
) -> None:
    process = begin(tmp_path, ASKED.format(seconds=seconds, gives_way=gives_way))
    began = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=50)
    assert (out, process.returncode) == (said, 128 + number)
    assert time.monotonic() - began < 10


def test_an_import_is_stopped_with_the_line_alone(tmp_path: Path) -> None:
    # in the place of the first package that a verb imports
    (tmp_path / "tyro.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    for words in (
        ["-m", "polypool", "ingest", "verify"],
        ["-c", "from polypool.__main__ import main; main()", "ingest"],
    ):
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert err.startswith("stopped by Ctrl-C; to go on: python -")
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


def test_a_signal_is_not_taken_for_the_absence_of_a_library() -> None:
    words = [sys.executable, "-c", IMPORTING]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (143, "undone\n")
    assert done.stderr.startswith("stopped by SIGTERM; to go on: ")
