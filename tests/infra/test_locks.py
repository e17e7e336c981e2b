"""Locks: only one process at a time writes to a folder, and its lock ends with it."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import begin_until

from polypool.infra.errors import InputError
from polypool.infra.locks import NAME, HeldError, Lock, holder_of, lock_folder

HOLD = """
import sys
from polypool.infra.locks import lock_folder
with lock_folder(sys.argv[1]):
    print("taken", flush=True)
    sys.stdin.read()
"""


def in_another_thread(folder: Path) -> Lock | InputError:
    """Take the lock in another thread; return it, or the error."""

    def take() -> Lock | InputError:
        try:
            return lock_folder(folder)
        except InputError as error:
            return error

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(take).result()


def test_lock_error_names_holder_and_kill_frees_lock(tmp_path):
    with begin_until("taken", "-c", HOLD, str(tmp_path), stdin=subprocess.PIPE) as first:
        with pytest.raises(HeldError) as refused:
            lock_folder(tmp_path)
        who = f"process {first.pid} on {socket.gethostname()}: python -c"
        assert str(refused.value).startswith(f"{tmp_path}: another command writes to this folder ({who}")
        assert str(refused.value).endswith("; wait until it ends, or stop it")
        assert holder_of(tmp_path / NAME).startswith(who)
        first.kill()
        first.wait()
        assert (tmp_path / NAME).exists(), "a killed process must leave its lock file behind"
        assert holder_of(tmp_path / NAME) == ""
        lock_folder(tmp_path).release()
    assert not (tmp_path / NAME).exists()


def test_lock_is_reentrant_for_its_own_thread_only(tmp_path):
    outer = lock_folder(tmp_path)
    with lock_folder(tmp_path / "." / "sub" / ".."):
        assert isinstance(in_another_thread(tmp_path), HeldError)
    assert f"process {os.getpid()} on" in str(in_another_thread(tmp_path)), (
        "releasing the inner lock must not release the outer one"
    )
    outer.release()
    assert not (tmp_path / NAME).exists()
    outer.release()
    with lock_folder(tmp_path):
        assert holder_of(tmp_path / NAME)


def test_unwritable_lock_file_is_reported(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(InputError, match=rf"\{NAME}: cannot be written: Is a directory"):
        lock_folder(tmp_path)
