"""Home of a project: the folder of its data and runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from polypool.infra.errors import InputError
from polypool.infra.storage.places import Url, local, place


def home() -> Path:
    """Return the folder that relative paths start from: POLYPOOL_HOME, or else the current one.

    A Ray job runs in a temporary copy of the working directory, where data is missing and a database would be lost:
    there it is the folder that polypool was installed from with `pip install -e`.

    Raises:
        InputError: a Ray job on a machine without the project.
    """
    if named := os.environ.get("POLYPOOL_HOME"):
        return local(named, what="POLYPOOL_HOME, the folder of data and runs,").resolve()
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        return Path.cwd()
    if installed := _editable_folder():
        return installed
    raise InputError(
        f"this job runs in {Path.cwd()}, a temporary copy of the working directory: relative paths of data and of the "
        "MLflow database would be lost with it. Name folders and a tracking server that the cluster can reach: "
        """ray job submit --runtime-env-json '{"env_vars": {"POLYPOOL_HOME": "/shared/polypool", """
        """"MLFLOW_TRACKING_URI": "http://server:5000"}}' ..."""
    )


def resolve(path: str | Path) -> Path:
    """Return an absolute path; a relative one starts at `home()`."""
    path = local(path).expanduser()
    return path if path.is_absolute() else home() / path


def resolve_place(path: str | Path) -> Path | Url:
    """Return a URL of object storage unchanged, and any other path as `resolve` does."""
    found = place(path)
    return found if isinstance(found, Url) else resolve(found)


def here_instead(missing: Path) -> str:
    """Return a hint, for messages, where the current folder has what is missing in POLYPOOL_HOME; else nothing."""
    with suppress(ValueError, InputError):  # elsewhere, or a job without a home
        if os.path.exists(here := missing.relative_to(home())):  # False of a name that the system rejects
            return f"; the current folder has {here}, but relative paths start at POLYPOOL_HOME: give the absolute path"
    return ""


def runs() -> Path | Url | None:
    """Return the folder or URL of POLYPOOL_RUNS; None where it is not set.

    Raises:
        InputError: it is neither, or a hub, where each write is a commit.
    """
    if not (named := os.environ.get("POLYPOOL_RUNS")):
        return None
    found = resolve_place(named)
    if isinstance(found, Url) and found.scheme == "hf":
        raise InputError(
            f"POLYPOOL_RUNS={found}: runs write and delete checkpoints all the time, which a hub keeps for ever; give "
            "a folder, s3://... or gs://..."
        )
    return found


def _editable_folder() -> Path | None:
    """Return the folder that polypool is installed from with `pip install -e`, if it exists."""
    for distribution in distributions(name="polypool"):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            folder = Path(unquote(urlparse(origin["url"]).path))
            return folder if folder.is_dir() else None
    return None
