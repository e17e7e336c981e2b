from __future__ import annotations

import errno
import os
import pickle
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from safetensors.torch import save_file

from polypool.infra.errors import InputError
from polypool.infra.files import disk_fault, existing, existing_folder
from polypool.infra.tracking import METRICS, Log


def test_wrong_path_kind_is_reported(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for look, name, message in (
        (existing, ".", "is a folder; expected a list"),
        (existing, "pipe", "is no file but a pipe, a device or a socket; expected a list"),
        (existing_folder, "file", "is a file; expected a list"),
    ):
        with pytest.raises(InputError, match=message):
            look(tmp_path / name, what="a list")


LIMIT = 4096


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit files of this process to `LIMIT` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: save_file({"x": torch.zeros(10_000)}, path),
        lambda path: torch.save({"x": torch.zeros(10_000)}, path),
        lambda path: path.write_bytes(bytes(10_000)),
    ],
)
@pytest.mark.usefixtures("small_files")
def test_full_disk_is_recognised_for_each_library(write, tmp_path):
    with pytest.raises(Exception) as full:  # noqa: PT011 (each library has its own)
        write(tmp_path / "file")
    why = disk_fault(full.value, tmp_path / "not there" / "yet")
    assert why.startswith(f"no space left ({tmp_path / 'not there' / 'yet'} has ")
    assert f" bytes free and {tempfile.gettempdir()} has " in why
    assert why.endswith("; make room")


def beneath(error: Exception, cause: OSError) -> Exception:
    """Return an error with a pickled cause, as from another process."""
    error.__cause__ = pickle.loads(pickle.dumps(cause))
    return error


EROFS = OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/x")
READ_ONLY = "/data/x: cannot be written: Read-only file system; make it writable"
DENIED = "cannot be written: Permission denied; make it writable"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ControllerError(EROFS), READ_ONLY),
        (beneath(WorkerGroupError("it failed", {}), EROFS), READ_ONLY),
        (beneath(RuntimeError("it failed"), EROFS), READ_ONLY),
        (PermissionError(errno.EACCES, "Permission denied", "/mine/x"), f"/mine/x: {DENIED}"),
        (
            PermissionError(errno.EPERM, "Failed to open local file '/mine/x'"),
            "/mine: cannot be written: Operation not permitted; make it writable",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/data/image.jpg"), None),
        (ValueError("no space"), None),
        (OSError(errno.ENOENT, "No such file"), None),
        (OSError("a message"), None),
        (KeyError(28), None),
    ],
)
def test_disk_faults_are_distinguished_from_other_errors(error, message):
    if message is None:
        error.__cause__ = error  # a cycle of causes must end
    assert disk_fault(error, Path("/mine")) == message


@pytest.mark.usefixtures("small_files")
def test_log_resumes_after_failed_write(tmp_path):
    log = Log(tmp_path)

    def log_much() -> None:
        for step in range(1000):
            log.log({"loss": step / 3}, step=step)

    with pytest.raises(OSError, match="File too large"):
        log_much()
    assert (tmp_path / METRICS).stat().st_size == LIMIT
    log.close()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    later = Log(tmp_path)
    kept = [entry.step for entry, _ in later.entries()]
    later.log({"loss": 7.0}, step=2000)
    steps = [entry.step for entry, _ in later.entries()]
    later.close()
    assert kept == list(range(len(kept)))
    assert steps == [*kept, 2000], "the truncated line must be dropped"
