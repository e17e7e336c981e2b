"""Provenance of a run: commit, versions, machine and command."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from polypool.infra.errors import InputError

COMMIT = "POLYPOOL_COMMIT"
"""Environment variable: the commit of code that was copied without its `.git`, to a cluster or into an image."""
PACKAGES = ("torch", "numpy", "transformers", "pyarrow", "ray", "mlflow")
"""Packages whose versions can change a result, or how it is made."""
_CPU = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")


def provenance(home: Path) -> dict[str, str]:
    """Return tags for a run: the git commit, whether files differ from it, the machine, and versions, also of plug-ins.

    Args:
        home: the project's home, whose checkout counts if the code runs from a copy without `.git`, as in a Ray job,
            and the environment does not name the commit.

    Raises:
        InputError: the environment names something else than a commit.
    """
    tags = {"python": platform.python_version(), "machine": machine(), **_versions()}
    here, named = Path(__file__).parents[2], os.environ.get(COMMIT, "")
    if named and not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", named):
        raise InputError(f"{COMMIT} must be what `git rev-parse HEAD` prints, not {named!r:.80}")
    if named and not (here / ".git").exists():
        return {**tags, "git_commit": named, "mlflow.source.git.commit": named}
    checkouts = [folder for folder in (here, home) if (folder / ".git").exists()]
    if not checkouts:
        return {**tags, "git_commit": "unknown"}
    try:
        commit = _git(checkouts[0], "rev-parse", "HEAD")
        changed = _git(checkouts[0], "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {**tags, "git_commit": "unknown"}
    dirty = str(bool(changed)).lower()
    return {**tags, "git_commit": commit, "git_dirty": dirty, "mlflow.source.git.commit": commit}


def command_line() -> str:
    """Return the command line of this process as typed; empty if it is no verb of polypool."""
    program, *words = sys.argv or [""]
    return shlex.join([*program.split(), *words]) if program.startswith("polypool ") else ""


def source_tags(command: str) -> dict[str, str]:
    """Return the tags that fill the column Source of MLflow's UI.

    The column is narrow, so the text begins with the verb. The UI shows what follows the last slash, so only the words
    before the first one are taken; the whole command has a tag of its own.

    Args:
        command: as of `command_line`.
    """
    words = shlex.split(command) or [Path((sys.argv or [""])[0]).name or "python"]
    if words[0] == "polypool":
        words = words[1:]
    kept = [*itertools.takewhile(lambda word: "/" not in word, words)]
    name = shlex.join(kept) + " ..." * (len(kept) < len(words))
    return {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"}


def installed(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _versions() -> dict[str, str]:
    versions = {name: found for name in PACKAGES if (found := installed(name))}
    points = entry_points()
    groups = sorted(group for group in points.groups if group.startswith("polypool."))
    plugged = [point.dist for group in groups for point in points.select(group=group) if point.dist]
    return versions | {f"plugin.{dist.name}": dist.version for dist in plugged}


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def machine() -> str:
    """Return system, processor and GPUs, without host name: `Linux x86_64, 16 x AMD EPYC 9654, 1 x NVIDIA H100`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    (cpu, *_) = [*_listed(_CPU, "model name"), platform.processor() or "unknown processor"]
    gpus = Counter(
        name for file in sorted(_GPUS.glob("*/information")) for name in _listed(file, "Model")[:1]
    )
    parts = [f"{platform.system()} {platform.machine()}", f"{cores} x {cpu}"]
    return ", ".join([*parts, *(f"{count} x {name}" for name, count in gpus.items())])


def _listed(file: Path, name: str) -> list[str]:
    """Return the values of a name in a file of lines `name : value`."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return []
    return [" ".join(value.split()) for value in re.findall(rf"^{name}\s*:\s*(\S.*)$", text, re.MULTILINE)]
