from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from programs import begin_until

from polypool.infra.errors import InputError
from polypool.infra.lease import on_disk
from polypool.infra.lease.on_disk import (
    NAME,
    STALE_SECONDS,
    DiskLease,
    HeldError,
    Holder,
    free_of_dead,
    holder_of,
    lease_folder,
)
from polypool.infra.process import locking

HOLD = """
import sys
from polypool.infra.lease.on_disk import lease_folder
with lease_folder(sys.argv[1]):
    print("taken", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen]:
    """Another process that holds the lease on a folder until it is ended."""
    with begin_until("taken", "-c", HOLD, str(folder), stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def in_another_thread(folder: Path) -> DiskLease | InputError:
    """Return the lease that another thread gets, or the error."""

    def take() -> DiskLease | InputError:
        try:
            return lease_folder(folder)
        except InputError as error:
            return error

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(take).result()


def leave(folder: Path, *, boot: str, age: float) -> Path:
    """Leave the file of a holder that has locked nothing, as one of another machine may look."""
    path = folder / NAME
    path.write_text(json.dumps(asdict(replace(Holder.this(), host="far", boot=boot, process=7))))
    at = path.stat().st_mtime - age
    os.utime(path, (at, at))
    return path


def test_the_second_process_is_told_who_the_first_is_and_a_killed_one_holds_nothing(tmp_path):
    with another_process(tmp_path) as first:
        with pytest.raises(HeldError) as refused:
            lease_folder(tmp_path)
        said = str(refused.value)
        assert said.startswith(
            f"{tmp_path}: another command writes to this folder "
            f"(process {first.pid} on {socket.gethostname()} since 20"
        )
        assert f"UTC: python -c '{HOLD[:20]}" in said
        assert said.endswith("; wait for its end, or end it first")
        assert holder_of(tmp_path / NAME).process == first.pid
        first.kill()
        first.wait()
        assert (tmp_path / NAME).exists(), "it removed nothing"
        assert holder_of(tmp_path / NAME) is None
        lease_folder(tmp_path).release()
    assert not (tmp_path / NAME).exists()


def test_a_thread_may_take_again_what_it_has_and_another_may_not(tmp_path):
    outer = lease_folder(tmp_path)
    with lease_folder(tmp_path / "." / "sub" / ".."):
        assert isinstance(in_another_thread(tmp_path), HeldError)
    refused = in_another_thread(tmp_path)
    assert f"process {os.getpid()} on" in str(refused), "the outer one is still there"
    outer.release()
    theirs = in_another_thread(tmp_path)
    assert isinstance(theirs, DiskLease)
    outer.release()
    with pytest.raises(HeldError):
        lease_folder(tmp_path)
    theirs.release()


@pytest.mark.parametrize(
    ("boot", "age", "held"),
    [
        ("another", 0, True),
        ("another", STALE_SECONDS - 10, True),
        ("another", STALE_SECONDS + 1, False),
        (Holder.this().boot, 0, False),
    ],
)
def test_another_machine_is_judged_by_its_last_sign_of_life(boot, age, held, tmp_path):
    path = leave(tmp_path, boot=boot, age=age)
    assert (holder_of(path) is not None) == held
    if not held:
        with lease_folder(tmp_path):
            assert holder_of(path).process == os.getpid()
        return
    with pytest.raises(HeldError, match=rf"process 7 on far .* last seen {age:.0f}.? seconds ago; if it is"):
        lease_folder(tmp_path)
    assert holder_of(path).host == "far"
    assert path.stat().st_mtime < path.stat().st_ctime + 1 - age, "who is refused touches nothing"


def test_a_disk_that_became_read_only_ends_nothing_but_the_lease(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        lease = lease_folder(tmp_path)
        patch.setattr(Path, "unlink", refuse)
        lease.release()
    assert (tmp_path / NAME).exists()
    theirs = in_another_thread(tmp_path)
    assert isinstance(theirs, DiskLease)
    theirs.release()
    monkeypatch.setattr(on_disk, "open_locked", refuse)
    with pytest.raises(InputError, match=r"\.lock: cannot be written: Read-only file system"):
        lease_folder(tmp_path)


def test_what_is_held_is_touched(tmp_path, monkeypatch):
    with lease_folder(tmp_path) as lease:
        os.utime(lease.path, (1, 1))
        lease.touch()
        assert lease.path.stat().st_mtime > 10**9
        assert any(thread.name == "lease" for thread in threading.enumerate())


def test_a_file_system_without_locks_is_said_once_and_signs_of_life_decide(tmp_path, monkeypatch, capsys):
    def none(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lease_folder(tmp_path):
        assert holder_of(tmp_path / NAME).process == os.getpid()
        assert isinstance(in_another_thread(tmp_path), HeldError)
    leave(tmp_path, boot=Holder.this().boot, age=0)
    with pytest.raises(HeldError, match="process 7 on far"):
        lease_folder(tmp_path)
    leave(tmp_path, boot=Holder.this().boot, age=STALE_SECONDS + 1)
    lease_folder(tmp_path).release()
    said = capsys.readouterr().err
    assert said.count("has no locks (No locks available)") == said.count("\n") == 1


def test_a_dead_child_is_forgotten_where_no_lock_tells(tmp_path):
    path = tmp_path / NAME
    for of in ({"process": 6}, {"boot": "another"}, {"host": "far"}):
        path.write_text(json.dumps(asdict(replace(Holder.this(), **{"process": 7} | of))))
        free_of_dead(path, 7)
        assert path.exists(), of
    path.write_text(json.dumps(asdict(replace(Holder.this(), process=7))))
    free_of_dead(path, 7)
    assert not path.exists()
    free_of_dead(path, 7)


def test_a_file_that_its_holder_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    path, lock, times = tmp_path / "file", fcntl.flock, []

    def removed_before(handle: int, how: int) -> None:
        times.append(handle)
        if len(times) == 1:
            path.unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    locked = locking.open_locked(path)
    assert len(times) == 2
    assert os.path.samestat(os.fstat(locked.handle), path.stat())
    os.close(locked.handle)


@pytest.mark.parametrize("content", ["", "{", "[" * 9000, '{"host": 1}'])
def test_a_lease_that_says_nothing_is_held_by_its_lock_alone(content, tmp_path):
    (tmp_path / NAME).write_text(content)
    with lease_folder(tmp_path) as lease:
        lease.path.write_text(content)
        refused = in_another_thread(tmp_path)
        assert "(it is not known which); wait" in str(refused)
