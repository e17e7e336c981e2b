"""Files of runs: the stored ones themselves if they are on a disk at hand, else copies of a server's."""

from __future__ import annotations

import tempfile
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from polypool.infra.errors import InputError
from polypool.infra.tracking.location import connect, explained
from polypool.infra.tracking.runs import RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient


@lru_cache(maxsize=64)
def folder_at(artifact_uri: str) -> Path | None:
    """Return the folder of a run's artifacts; None if a server keeps them."""
    root = urlparse(artifact_uri)
    return Path(unquote(root.path)) if root.scheme == "file" else None


class Artifacts:
    """The files of many runs, over one connection. Copies of a server's files are removed with this object.

    Args:
        uri: the store of the runs.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def path(self, run: RunRecord, name: str) -> Path:
        """Return the path of a run's artifact.

        Raises:
            InputError: there is none, or the server does not answer.
        """
        missing = InputError(f"run {run.run_id} has no artifact {name}")
        if (folder := folder_at(run.artifacts)) is not None:
            if not (folder / name).is_file():
                raise missing
            return folder / name
        from mlflow.exceptions import MlflowException

        target = Path(self._copies.name) / run.run_id
        target.mkdir(exist_ok=True)
        with explained(self.uri):
            try:
                return Path(self._client.download_artifacts(run.run_id, name, str(target)))
            except MlflowException:
                # which of its many errors means that there is no such file depends on the server
                beside = self._client.list_artifacts(run.run_id, name.rpartition("/")[0] or None)
                if name in [item.path for item in beside]:
                    raise
                raise missing from None

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self.uri)

    @cached_property
    def _copies(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="polypool-artifacts-")
