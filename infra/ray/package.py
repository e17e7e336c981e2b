"""What a job's working directory weighs, before it is sent: a job server takes a package of bounded size."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from infra.errors import InputError

_SHOWN = 5


def refuse_large(folder: Path) -> None:
    """Refuse a working directory that the job server would not take, after all of it was sent.

    Args:
        folder: whose files, but for those that `.rayignore` and `.gitignore` name, are sent, as they are.

    Raises:
        InputError: it is too large; the message names what in it is largest.
    """
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE as MOST

    sizes = _sizes(folder)
    if (size := sum(sizes.values())) < MOST:
        return
    largest = "".join(f"\n  {bytes / 2**20:8,.1f} MiB  {name}" for name, bytes in sizes.most_common(_SHOWN))
    raise InputError(
        f"{folder}: as the working directory of a Ray job it has {size / 2**20:,.0f} MiB, and a job server takes "
        f"{MOST / 2**20:,.0f} MiB. Name what the job does not need in {folder / '.rayignore'}, a pattern a line, as in "
        f".gitignore; what is largest:{largest}"
    )


def _sizes(folder: Path) -> Counter[str]:
    """Return the bytes that would be sent of each file or folder in a folder, as Ray chooses them."""
    from ray._private.runtime_env.packaging import _dir_travel

    sizes: Counter[str] = Counter()

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder).parts[0]] += path.stat().st_size

    _dir_travel(folder, [], add, include_gitignore=True, logger=_silent())
    return sizes


def _silent() -> logging.Logger:
    """Return a logger that tells nobody of each file that is left out."""
    logger = logging.getLogger(f"{__name__}.silent")
    logger.disabled = True
    return logger
