"""Fixtures and settings for all tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_hub
import object_storage
import pytest
from places import PATHS

SHARED = Path(__file__).resolve().parents[2] / "shared"

IN_ONE_RAY = (
    "test_train.py",
    "test_sweep.py",
    "test_workers.py",
    "test_cluster.py",
)
"""Files that share one Ray session, which takes ten seconds to start; one process runs them all, first."""

OF_THE_USER = ("POLYPOOL_HOME", "POLYPOOL_MODELS", "POLYPOOL_RUNS", "MLFLOW_TRACKING_URI", "RAY_ADDRESS")
"""Environment variables that point to the user's runs or cluster."""


def pytest_configure() -> None:
    """Handle signals that `nohup` and background shells ignore, and unset the user's home, runs and cluster.

    Processes that tests start inherit both.
    """
    for name in OF_THE_USER:
        os.environ.pop(name, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that take longest first."""
    items.sort(key=lambda item: item.path.name not in IN_ONE_RAY)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign each file to one process, and all files that share a Ray session to the same process."""
    from xdist.scheduler import LoadFileScheduling

    class FilesTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "one Ray" if file.endswith(IN_ONE_RAY) else file

    return FilesTogether(config, log)


@pytest.fixture(scope="session", autouse=True)
def first_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy each new run database from the first one of this process: MLflow needs over a second to create one."""
    from polypool.infra import tracking as location

    first, opening = tmp_path_factory.mktemp("runs") / "first.db", location.opening

    @contextmanager
    def copied(uri: str, *, create: bool) -> Iterator[None]:
        with opening(uri, create=create):
            path = Path(uri.removeprefix("sqlite:///"))
            new = create and uri.startswith("sqlite:") and not path.exists()
            if new and first.exists():
                shutil.copyfile(first, path)
            yield
            if new and not first.exists():
                shutil.copyfile(path, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location, "opening", copied)
        yield


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """A private Ray session for commands; its workers can import the tests' modules."""
    from polypool.infra.ray import ray_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        patch.setenv("RAY_worker_niceness", "0")  # at the default of 15, workers would starve
        patch.delenv("RAY_ADDRESS", raising=False)
        with ray_session(cpus=2, dashboard=True):
            yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real corpora, beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED.name}/ beside the repository: real corpora are not available")
    return SHARED


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty POLYPOOL_HOME for the commands of a test file."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder


@pytest.fixture
def new_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty POLYPOOL_HOME for one test."""
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[object_storage.Server]:
    """An S3 server in this process."""
    server = object_storage.Server()
    yield server
    server.close()


@pytest.fixture
def bucket(
    s3_server: object_storage.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[object_storage.Bucket]:
    """An empty bucket, with environment variables that point to it and to an empty cache."""
    environment = {
        **object_storage.KEYS,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "POLYPOOL_CACHE": str(tmp_path / "cache"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = object_storage.Bucket(s3_server, f"bucket-{secrets.token_hex(4)}")
    made.system.create_dir(made.name)
    s3_server.requests.clear()
    yield made
    s3_server.faults.clear()
    made.system.delete_dir(made.name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake_hub.FakeHub:
    """An empty Hugging Face hub in memory."""
    from polypool.infra.storage import Repository

    api = fake_hub.FakeHub(tmp_path / "hub")
    monkeypatch.setattr(Repository, "api", lambda *_: api)
    return api


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of numbers recorded from the authors' code; see its README."""
    return Path(__file__).parent / "golden"
