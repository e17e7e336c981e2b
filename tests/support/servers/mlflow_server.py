"""A real MLflow server on the loopback address that can be killed and restarted: `Server(folder)`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from polypool.infra.ray import free_ports

APP = """
import sys
from werkzeug.serving import make_server
from mlflow.server import app
make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True).serve_forever()
"""


class Server:
    """A server, not started yet, that keeps runs and artifacts in a folder.

    Args:
        folder: folder of the database, the artifacts and the log.
    """

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self.env = {
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/server.db",
            "_MLFLOW_SERVER_REGISTRY_STORE": f"sqlite:///{folder}/server.db",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        self._log = folder / "server.log"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", APP, str(self.port)], env=os.environ | self.env, stdout=log, stderr=log
            )
        limit = time.monotonic() + 120
        ask = f"{self.uri}/api/2.0/mlflow/experiments/search?max_results=1"  # creates the database
        while True:
            try:
                urllib.request.urlopen(ask, timeout=120).read()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(self._log.read_text()[-2000:]) from None
                time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL to the server, if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
