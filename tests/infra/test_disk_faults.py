"""A disk that is full or may not be written: what is said of it, and that nothing kept is lost."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from safetensors.torch import save_file

from polypool.infra.files import disk_fault
from polypool.infra.tracking.journal import JOURNAL, Journal

LIMIT = 4096


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may be larger than a few thousand bytes."""
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
def test_whoever_writes_a_disk_that_is_full_is_understood(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(Exception) as full:  # noqa: PT011 (each library has its own)
        write(tmp_path / "file")
    why = disk_fault(full.value, tmp_path / "not there" / "yet")
    assert why.startswith(f"no space left ({tmp_path / 'not there' / 'yet'} has ")
    assert f" bytes free and {tempfile.gettempdir()} has " in why
    assert why.endswith("; make room")


@pytest.mark.parametrize("wrapped", [WorkerGroupError, ControllerError, RuntimeError])
def test_causes_are_found_across_processes(wrapped: type[Exception], tmp_path: Path) -> None:
    inner = pickle.loads(pickle.dumps(OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/x")))
    if wrapped is ControllerError:
        error: Exception = ControllerError(inner)
    else:
        error = RuntimeError("it failed") if wrapped is RuntimeError else WorkerGroupError("it failed", {})
        error.__cause__ = inner
    assert (
        disk_fault(error, tmp_path) == "/data/x: cannot be written: Read-only file system; make it writable"
    )


def test_a_folder_that_may_not_be_written_is_told_from_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    mine = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))
    assert (
        disk_fault(mine, tmp_path) == f"{tmp_path}/x: cannot be written: Permission denied; make it writable"
    )
    arrow = PermissionError(errno.EPERM, f"Failed to open local file '{tmp_path}/x'")
    assert (
        disk_fault(arrow, tmp_path)
        == f"{tmp_path}: cannot be written: Operation not permitted; make it writable"
    )
    assert disk_fault(PermissionError(errno.EACCES, "Permission denied", "/data/image.jpg"), tmp_path) is None


@pytest.mark.parametrize(
    "error",
    [ValueError("no space"), OSError(errno.ENOENT, "No such file"), OSError("a message"), KeyError(28)],
)
def test_what_is_no_fault_of_the_disk_is_left_as_it_is(error: Exception, tmp_path: Path) -> None:
    error.__cause__ = error  # a ring ends
    assert disk_fault(error, tmp_path) is None


@pytest.mark.usefixtures("small_files")
def test_a_journal_that_could_not_be_written_goes_on_where_it_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lambda: pytest.fail("nobody is asked"))

    def log_much() -> None:
        for step in range(1000):
            journal.log({"loss": step / 3}, step=step)

    with pytest.raises(OSError, match="File too large"):
        log_much()
    assert (tmp_path / JOURNAL).stat().st_size == LIMIT
    journal.close()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    later = Journal(tmp_path, lambda: pytest.fail("nobody is asked"))
    kept = [entry.step for entry, _ in later.entries() if entry is not None]
    later.log({"loss": 7.0}, step=2000)
    entries = [entry for entry, _ in later.entries()]
    later.close()
    assert kept == list(range(len(kept)))
    assert [entry and entry.step for entry in entries] == [*kept, None, 2000], (
        "the line that was cut off is none"
    )
