"""Processes with limited memory and page cache: control groups of Linux, versions 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import apart
from polypool.infra.errors import InputError

_GROUPS = Path("/sys/fs/cgroup")


def within(memory_MB: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return `work(*arguments)` of a fresh process that has no more memory than this, in 10^6 bytes.

    Raises:
        InputError: no such group can be made here.
    """
    with _group(1_000_000 * memory_MB) as group:
        return apart(_enter, [(group, work, *arguments)])[0]


def _enter(group: Path, work: Callable[..., Any], *arguments: Any) -> Any:
    """Enter a group and work in a process that is born there: what one has already stays counted where it was."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return apart(work, [arguments])[0]


@contextmanager
def _group(limit: int) -> Iterator[Path]:
    """Make a group with a limit in bytes, and remove it when its processes have ended."""
    reasons = []
    for parent, knob in _places():
        group = parent / f"polypool-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            if not (group / knob).exists():
                raise OSError(f"{parent} gives its groups no {knob}")
            (group / knob).write_text(str(limit))
        except OSError as error:
            reasons.append(str(error))
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    why = "; ".join(reasons) or f"there are none in {_GROUPS}"
    raise InputError(f"no control group that limits memory can be made ({why}); run it as root on Linux")


def _places() -> Iterator[tuple[Path, str]]:
    """Yield where a group may be made, and the name of its limit: beside this process's own, then at the top."""
    if (_GROUPS / "memory").is_dir():
        root, knob, kind = _GROUPS / "memory", "memory.limit_in_bytes", "memory"
    else:
        root, knob, kind = _GROUPS, "memory.max", ""
    try:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    except OSError:
        own = {}
    beside = (root / own.get(kind, "/").lstrip("/")).parent
    for parent in dict.fromkeys((beside, root)):
        if root in (parent, *parent.parents) and parent.is_dir():
            yield parent, knob
