"""Which code and versions a result came from."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def provenance(home: Path) -> dict[str, str]:
    """Return tags for a run: the git commit, whether files differ from it, and versions.

    Args:
        home: the project's home, whose checkout counts where the code itself runs from a copy without
            `.git`, as in a Ray job.
    """
    tags = {"python": platform.python_version(), "torch": version("torch")}
    checkouts = [folder for folder in (Path(__file__).parents[1], home) if (folder / ".git").exists()]
    if not checkouts:
        return {**tags, "git_commit": "unknown"}
    try:
        commit = _git(checkouts[0], "rev-parse", "HEAD")
        changed = _git(checkouts[0], "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {**tags, "git_commit": "unknown"}
    dirty = str(bool(changed)).lower()
    return {**tags, "git_commit": commit, "git_dirty": dirty, "mlflow.source.git.commit": commit}


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
