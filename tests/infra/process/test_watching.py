from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import programs
import pytest
from programs import end

VERB = """
import os, signal, sys, time
from pathlib import Path
from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.infra.process.command import command
from polypool.infra.process import watching
from polypool.infra.process.stopping import graceful_stop
watching.PAUSE = {pause}
tries, progress = Path("tries"), Path("progress")

class Work:
    def do(self, attempt):
        with tries.open("a") as file:
            file.write(attempt.note + ";")
        number = tries.read_text().count(";")
{body}
    def progress(self, note):
        return progress.exists() and progress.read_text()
    def died(self, note, process):
        with open("dead", "a") as file:
            file.write(str(process) + " ")
        return note and f"go on with {{note}}"
    def given_up(self, note):
        print("given up", note, flush=True)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

@command
def main():
    watching.watched(Work(), retries={retries})
    print("the work alone comes here", flush=True)

main()
"""


def begin(folder: Path, body: str, *, retries: int = 1, pause: float = 0) -> subprocess.Popen:
    """Start a process that watches the lines of some work, in a group of its own and a folder."""
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    (folder / "verb.py").write_text(VERB.format(body=lines, retries=retries, pause=pause))
    return programs.begin("verb.py", folder=folder, process_group=0)


def ended(folder: Path, body: str, **options: float) -> tuple[int, str, str]:
    """Return the exit code of a watching process, and what it printed."""
    return end(begin(folder, body, **options))


def tries(folder: Path) -> list[str]:
    """Return the note of every try."""
    return (folder / "tries").read_text().split(";")[:-1]


PROGRESSES = """
if number < 6:
    if number % 2:
        attempt.keep("not this")
        attempt.keep(f"kept {number}")
    progress.write_text(str(number))
    kill()
"""


def test_work_is_begun_again_as_long_as_it_progresses_and_finds_what_was_kept(tmp_path):
    code, out, err = ended(tmp_path, PROGRESSES)
    assert (code, out) == (0, "the work alone comes here\n")
    assert tries(tmp_path) == ["", "kept 1", "kept 1", "kept 3", "kept 3", "kept 5"]
    again = (
        "was killed (SIGKILL) and is begun again now: 1 in a row without progress, of which 1 are tried again"
    )
    assert err == f"note: the process at work {again}\n" * 5
    assert len({*(tmp_path / "dead").read_text().split()}) == 5


def test_without_progress_it_is_tried_so_often_and_given_up(tmp_path):
    body = "attempt.keep('it')\nif number == 2:\n    progress.write_text('once')\nkill()"
    code, out, err = ended(tmp_path, body, retries=2)
    assert (code, out) == (137, "given up it\n")
    assert len(tries(tmp_path)) == 4, "the second one made progress"
    assert err.splitlines()[-1] == (
        "note: the process at work was killed (SIGKILL) and is not begun again: 3 in a row without progress, and 2 are "
        "tried again; to go on: go on with it"
    )


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("raise InputError('no')", 2, "error: no"),
        ("raise AwayError('away')", 2, "error: away"),
        ("raise RuntimeError('broken')", 1, "RuntimeError: broken"),
        ("raise SystemExit(3)", 3, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", 143, "stopped by SIGTERM; to go on: "),
        ("signal.signal(signal.SIGINT, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGINT)", 130, ""),
    ],
)
def test_what_is_no_fault_is_not_tried_again(last, code, said, tmp_path):
    found, out, err = ended(tmp_path, last, retries=5)
    assert (found, out, tries(tmp_path)) == (code, "", [""])
    assert "begun again" not in err
    assert err.rstrip("\n").rpartition("\n")[2].startswith(said)


def test_what_carries_the_work_may_fail_and_come_back(tmp_path):
    body = """
if number == 1:
    raise FaultError("the cluster is gone")
if number == 2:
    raise AwayError("nobody answers")
if number == 3:
    raise InputError("this is wrong")
"""
    code, _, err = ended(tmp_path, body, retries=2)
    assert (code, len(tries(tmp_path))) == (2, 3)
    assert [line.partition(" and ")[0] for line in err.splitlines()] == [
        "error: the cluster is gone",
        "note: the process at work ended as said above",
        "error: nobody answers",
        "note: the process at work ended as said above",
        "error: this is wrong",
    ]
    code, out, _ = ended(tmp_path, "raise FaultError('again')", retries=0)
    assert (code, out) == (1, "given up \n")


ASKED = """
asked = []
with graceful_stop(lambda: asked.append(1), seconds=60):
    print("ready", os.getpid(), flush=True)
    while not asked:
        time.sleep(0.05)
    time.sleep(1)
    print("asked", len(asked), flush=True)
"""


@pytest.mark.parametrize("to_both", [True, False])
def test_a_signal_comes_to_the_work_once_whoever_was_sent_it(to_both, tmp_path):
    process = begin(tmp_path, ASKED)
    assert process.stdout.readline().startswith("ready")
    (os.killpg if to_both else os.kill)(process.pid, signal.SIGTERM)
    code, out, err = end(process)
    assert (code, out) == (143, "asked 1\n")
    assert err.startswith("stopped by SIGTERM")
    assert err.count("\n") == 1


def test_work_that_nobody_watches_any_more_is_asked_to_end(tmp_path):
    process = begin(tmp_path, ASKED)
    process.stdout.readline()
    process.kill()
    assert end(process)[1] == "asked 1\n"


def test_work_that_is_killed_after_it_was_asked_to_end_is_not_begun_again(tmp_path):
    process = begin(tmp_path, ASKED)
    child = int(process.stdout.readline().split()[1])
    os.kill(child, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    os.kill(child, signal.SIGKILL)
    assert end(process) == (137, "", "")


def test_a_pause_is_stopped_with_what_goes_on(tmp_path):
    process = begin(tmp_path, "attempt.keep('it')\nkill()", retries=5, pause=600)
    lines = [process.stderr.readline() for _ in range(2)]
    assert lines[1].startswith(
        "note: the process at work was killed (SIGKILL) and is begun again in 120 seconds"
    )
    code, _, err = end(process, signal.SIGINT)
    assert (code, err) == (130, "stopped by Ctrl-C; to go on: go on with it\n")
    assert len(tries(tmp_path)) == 2
