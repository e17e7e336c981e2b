"""Resolution of user paths: typed ones are relative to the current folder, paths in recipes to the project's home."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

from polypool.infra.errors import InputError
from polypool.infra.storage import Url, local, place

FilePath = Annotated[str, "a file or folder"]
"""Type of a part's parameter that is a file or folder; runs record it as an absolute path."""
ModelName = Annotated[str, "a published model, or its folder"]
"""Type of a part's parameter that is a model on the hub or a local folder; runs record folders as absolute paths."""


def home() -> Path:
    """Return the folder of data and runs, to which paths in recipes are relative: POLYPOOL_HOME, or the current folder.

    A Ray job runs in a temporary copy of the working directory, without its data, and a database there would be lost;
    its home is the folder of an editable install (`pip install -e`).

    Raises:
        InputError: POLYPOOL_HOME is a URL, or a Ray job runs without it and without an editable install.
    """
    if named := os.environ.get("POLYPOOL_HOME"):
        return local(named, what="POLYPOOL_HOME, the folder of data and runs,").resolve()
    if not _in_job():
        return Path.cwd()
    if installed := _editable_folder():
        return installed
    raise InputError(
        f"this job runs in {Path.cwd()}, a temporary copy of the working directory: relative paths of data and of the "
        "MLflow database would be lost with it. Name folders and a tracking server that the cluster can reach: "
        """ray job submit --runtime-env-json '{"env_vars": {"POLYPOOL_HOME": "/shared/polypool", """
        """"MLFLOW_TRACKING_URI": "http://server:5000"}}' ..."""
    )


def _in_job() -> bool:
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def here() -> Path:
    """Return the folder to which typed relative paths refer: the current one, or `home()` in a Ray job."""
    return home() if _in_job() else Path.cwd()


def absolute(path: str | Path | Url, start: Callable[[], Path]) -> Path | Url:
    """Return a URL of object storage unchanged, and any other path absolute.

    Args:
        path: given by the user.
        start: returns the folder to which a relative path refers, `here` or `home`.
    """
    found = place(path)
    if isinstance(found, Url) or (found := found.expanduser()).is_absolute():
        return found
    return start() / found


def located(path: str, kind: Any, start: Callable[[], Path]) -> str:
    """Return a path parameter as an absolute path or URL.

    A `ModelName` is returned unchanged unless it is a folder or starts with `.` or `~`.
    """
    found = absolute(path, start)
    if (
        kind is ModelName
        and not (isinstance(found, Path) and found.is_dir())
        and not path.startswith((".", "~"))
    ):
        return path
    return str(found)


_IGNORED = ("data", "runs", "mlartifacts", "mlflow.db*", ".venv*", ".git")
_HEADER = "# left out of what `ray job submit --working-dir .` uploads, at most 100 MiB"


def keep_out_of_jobs(written: str | Path | Url) -> None:
    """Add a folder to `.rayignore`, so that Ray jobs do not upload it; a user's own `.rayignore` is not changed.

    Args:
        written: a folder of data or runs. If it is below the home or the current folder, the `.rayignore` of
            that folder lists its topmost parent.
    """
    path = absolute(written, here)
    if _in_job() or isinstance(path, Url):
        return
    for at in (home(), Path.cwd()):
        if path == at or not path.is_relative_to(at):
            continue
        file, top = at / ".rayignore", path.relative_to(at).parts[0]
        lines = file.read_text().splitlines() if file.is_file() else [_HEADER, *_IGNORED]
        if lines[:1] == [_HEADER] and not (file.exists() and top in lines):
            with suppress(OSError):  # read-only folder
                file.write_text("".join(f"{line}\n" for line in dict.fromkeys([*lines, top])))
        return


def runs() -> Path | Url | None:
    """Return the folder or URL of POLYPOOL_RUNS; None if it is not set.

    Raises:
        InputError: neither a folder nor a supported URL; a hub is refused, because each write is a commit.
    """
    if not (named := os.environ.get("POLYPOOL_RUNS")):
        return None
    found = absolute(named, home)
    if isinstance(found, Url) and found.scheme == "hf":
        raise InputError(
            f"POLYPOOL_RUNS={found}: runs write and delete checkpoints all the time, which a hub keeps for ever; give "
            "a folder, s3://... or gs://..."
        )
    return found


def _editable_folder() -> Path | None:
    """Return the folder of an editable install of polypool, if it exists."""
    for distribution in distributions(name="polypool"):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            folder = Path(unquote(urlparse(origin["url"]).path))
            return folder if folder.is_dir() else None
    return None
