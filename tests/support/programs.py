"""Python programs in separate processes, with the checkout on their path."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from places import ROOT


def begin(
    *words: str, folder: Path = ROOT, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen:
    """Start Python with pipes for its output; `env` replaces the environment."""
    env = {"PYTHONPATH": str(ROOT)} if env is None else env
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=env, **pipes | options)


def begin_until(said: str, *words: str, **options: Any) -> subprocess.Popen:
    """Start Python and check that the first line that it prints is `said`."""
    process = begin(*words, **options)
    assert process.stdout.readline() == f"{said}\n"
    return process


def end(process: subprocess.Popen, number: int | None = None) -> tuple[int, str, str]:
    """Send a signal, if any, and wait; return the exit code, standard output and standard error."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def soon(there: Callable[[], object], *, seconds: float = 60) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    limit = time.monotonic() + seconds
    while not (found := there()) and time.monotonic() < limit:
        time.sleep(0.05)
    return bool(found)
