"""The id of a run in a file, by which the same command, given again, goes on with the run that it began.

What starts commands anew by itself, such as a scheduler, knows the command and not the run.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from infra.errors import InputError
from infra.files import atomic, existing, make_folder
from infra.paths import home, resolve
from infra.tracking import Tracker, tracking_uri
from infra.tracking.tracker import flattened
from tasks.run import Run, from_json, to_params

FLAG = "--run-id-file"
_ID = re.compile(rb"[0-9a-f]{32}\r?\n?")
_MOST_BYTES = 1 << 10


def take_flag(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file that a command line names with `--run-id-file`, if it does, and the other words.

    Raises:
        SystemExit: with code 2, the flag has no value, which was said.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.train RECIPE", add_help=False, allow_abbrev=False
    )
    parser.add_argument(FLAG, type=Path, metavar="FILE")
    found, rest = parser.parse_known_args(words)
    return (resolve(found.run_id_file) if found.run_id_file else None), rest


def write_run_id(file: Path, run_id: str) -> None:
    """Write the id of a run that begins."""
    make_folder(file.parent)
    with atomic(file) as written:
        written.write(f"{run_id}\n".encode())


def begun_by(file: Path, run: Run) -> str | None:
    """Return the id of the run that the same command has begun before; None where the file is not there.

    Args:
        file: that holds the id.
        run: what the command describes.

    Raises:
        InputError: the file holds no id; MLflow does not know the run, or does not answer; the run is another one.
    """
    if not file.exists():
        return None
    with existing(file, what="the id of a run").open("rb") as opened:
        data = opened.read(_MOST_BYTES)
    if not _ID.fullmatch(data):
        raise InputError(
            f"{file}: holds no id of a run, which is 32 of 0-9 and a-f; name another file after {FLAG}"
        )
    run_id = data.decode().strip()
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    then = from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
    if then != run:
        before, now = (dict(flattened(to_params(each))) for each in (then, run))
        other = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        raise InputError(
            f"{file}: run {run_id} was begun with other settings ({', '.join(other)}); name another file after {FLAG} "
            f"for a new run, or go on with that one: `python -m pipelines.train resume {run_id}`"
        )
    return run_id
