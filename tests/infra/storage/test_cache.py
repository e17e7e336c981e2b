from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from object_storage import Bucket, Fault, cut

from polypool.infra.errors import InputError
from polypool.infra.files import sha256
from polypool.infra.storage import cache, remote
from polypool.infra.storage.places import Url, place


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch little at once."""
    monkeypatch.setattr(cache, "_CHUNK", 1000)


@pytest.fixture
def file(bucket: Bucket, tmp_path: Path) -> tuple[Url, Path]:
    """A file in storage, and the same here."""
    path = tmp_path / "here" / "data.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(3500))
    return place(bucket.put(path.parent, "far")) / path.name, path


def test_a_cut_download_goes_on_where_it_stopped(file, bucket):
    url, path = file
    fetch_third = Fault(spoil=cut(10), key=url.name, times=0)
    bucket.server.faults.append(fetch_third)
    read = remote.RemoteFile.read

    def failing(self: remote.RemoteFile, start: int, end: int) -> bytes:
        fetch_third.times = remote.ATTEMPTS if start == 2000 else 0
        return read(self, start, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote.RemoteFile, "read", failing)
        with pytest.raises(
            InputError, match=r"data.bin: cannot be read, tried \d times: .* goes on where it stopped"
        ):
            cache.whole(url, sha256=sha256(path))
    assert not [*cache.folder().glob("files/*/data.bin")]
    asked = len(bucket.asked(url.name))
    assert cache.whole(url, sha256=sha256(path)).read_bytes() == path.read_bytes()
    assert [each.range for each in bucket.asked(url.name)[asked:]] == ["bytes=2000-2999", "bytes=3000-3499"]


def test_a_file_that_changed_is_another_one(file, bucket):
    url, path = file
    assert cache.whole(url).read_bytes() == path.read_bytes()
    asked = len(bucket.asked(url.name))
    assert cache.whole(url).read_bytes() == path.read_bytes()
    assert len(bucket.asked(url.name)) == asked
    path.write_bytes(os.urandom(3600))
    bucket.put(path.parent, "far")
    assert cache.whole(url).read_bytes() == path.read_bytes()


def test_a_file_of_other_bytes_is_refused_and_not_kept(file):
    with pytest.raises(
        InputError, match=r"data\.bin: its bytes are not those that were written \(SHA-256 differs\)"
    ):
        cache.whole(file[0], sha256="0" * 64)
    assert not [*cache.folder().glob("files/*/*")]


def _fetch(url: Url, go: Path) -> bytes:
    while not go.exists():
        time.sleep(0.001)
    return cache.whole(url).read_bytes()


def test_processes_fetch_a_file_once(file, bucket, tmp_path):
    url, path = file
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = [pool.apply_async(_fetch, (url, tmp_path / "go")) for _ in range(2)]
        (tmp_path / "go").touch()
        assert [each.get() for each in results] == [path.read_bytes()] * 2
    assert len(bucket.asked(url.name)) == 1  # of 3,500 bytes, in a process that fetches more at once


def test_the_oldest_files_make_room_unless_they_are_new(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_CACHE_GB", str(100_000 / 1e9))
    (tmp_path / "many").mkdir()
    for number in range(4):
        (tmp_path / "many" / str(number)).write_bytes(os.urandom(40_000))
    url = place(bucket.put(tmp_path / "many", "many"))
    copies = []
    for number in range(4):
        copies.append(cache.whole(url / str(number)))
        assert all(copy.exists() for copy in copies[-1:])
        age = time.time() - 1000 + number
        for path in (copies[-1], copies[-1].parent):
            os.utime(path, (age, age))
    assert [copy.exists() for copy in copies] == [False, False, True, True]


@pytest.mark.parametrize("said", ["0", "-1", "many", "inf", "nan"])
def test_a_bound_that_is_none_is_refused(said, monkeypatch):
    monkeypatch.setenv("POLYPOOL_CACHE_GB", said)
    with pytest.raises(
        InputError, match=f"POLYPOOL_CACHE_GB must be a number above 0, such as 100, not '{said}'"
    ):
        cache.max_bytes()


def test_a_full_disk_is_told_with_what_to_do(tmp_path):
    with (
        pytest.raises(InputError, match="set POLYPOOL_CACHE to a folder on a larger disk"),
        cache.no_space_explained(tmp_path / "x"),
    ):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="other"), cache.no_space_explained(tmp_path / "x"):
        raise OSError(errno.EIO, "other")


def test_a_cache_is_a_folder_of_this_machine(monkeypatch):
    monkeypatch.setenv("POLYPOOL_CACHE", "s3://bucket/cache")
    with pytest.raises(InputError, match="s3://bucket/cache: POLYPOOL_CACHE must be on this machine"):
        cache.folder()
