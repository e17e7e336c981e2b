"""Files in object storage, through the file systems of pyarrow; each request is repeated a few times.

Credentials are found where the storage's own tools look: in the environment (`AWS_ACCESS_KEY_ID`, ...), in a profile,
or at the machine itself. `AWS_ENDPOINT_URL` names another server than Amazon's that speaks S3.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TypeVar

from pyarrow import NativeFile, fs

from polypool.infra.errors import AbsentError, AwayError, InputError
from polypool.infra.storage.places import Url

T = TypeVar("T")

ATTEMPTS, PATIENT = 6, 26
"""Requests before giving up: after seconds; after ten minutes, where nothing is waiting."""
_PAUSE, _MAX_PAUSE = 0.2, 30.0  # seconds before the second request; they double for each further one
_CHUNK = 8 << 20  # bytes that are written at once
_REFUSED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT|SIGNATURE|TOKEN|PERMISSION_DENIED|HTTP status 40[13]|40[13] Client"
    "|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|(Expired|Invalid)Token|NoSuchBucket|Unable to locate cred"
    "|[(]40[13][)]"
)


class RemoteFile:
    """A file in object storage, any part of which several threads can read; it is opened at the first use."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._file: NativeFile | None = None
        self._opening = Lock()

    @property
    def size(self) -> int:
        """Its size in bytes.

        Raises:
            AbsentError: there is no such file.
            InputError: the storage does not answer, or refuses.
        """
        return retry(self.url, "read", lambda: self._opened().size())

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` to `end`, or to the end of the file.

        Raises:
            AbsentError: there is no such file.
            InputError: the storage does not answer, refuses, or has fewer bytes.
        """

        def request() -> bytes:
            file = self._opened()
            length = (file.size() if end is None else end) - start
            data = file.read_at(length, start)
            if len(data) != length:
                raise OSError(f"{len(data):,} bytes came of {length:,} from byte {start:,} on")
            return data

        return retry(self.url, "read", request)

    def _opened(self) -> NativeFile:
        with self._opening:
            if self._file is None:
                system, path = _at(self.url)
                self._file = system.open_input_file(path)
            return self._file


def exists(url: Url) -> bool:
    """Whether there is a file of this name.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    return _info(url).type == fs.FileType.File


def size_and_time(url: Url) -> tuple[int, str]:
    """Return a file's size in bytes and when it was written, which identify its content.

    Raises:
        AbsentError: there is no such file.
        InputError: the storage does not answer, or refuses.
    """
    info = _info(url)
    if info.type != fs.FileType.File:
        raise AbsentError(f"{url}: no such file")
    return info.size, str(info.mtime_ns)


def list_files(url: Url) -> list[str]:
    """Return the files below a folder, as sorted paths relative to it; none where there is no folder.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    system, path = _at(url)
    below = fs.FileSelector(path, recursive=True, allow_not_found=True)
    found = retry(url, "read", lambda: system.get_file_info(below))
    # a folder may be an empty file of its name
    names = (info.path.removeprefix(f"{path}/") for info in found if info.type == fs.FileType.File)
    return sorted(name for name in names if not name.endswith("/"))


def upload(data: Path | bytes, url: Url, *, attempts: int | None = None) -> None:
    """Write bytes, or a copy of a file of this machine; the file appears whole or not at all.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    system, key = _at(url)

    def send() -> None:
        source = data.open("rb") if isinstance(data, Path) else BytesIO(data)
        with source, system.open_output_stream(key) as out:
            shutil.copyfileobj(source, out, _CHUNK)
            size = source.tell()
        if (there := system.get_file_info(key).size) != size:
            raise OSError(f"{there} of {size:,} bytes arrived")

    retry(url, "written", send, attempts=attempts)


def delete(url: Url) -> None:
    """Delete a file, if there is one.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    system, path = _at(url)
    with suppress(AbsentError):
        retry(url, "deleted", lambda: system.delete_file(path))


def retry(url: Url, how: str, request: Callable[[], T], *, attempts: int | None = None) -> T:
    """Make a request, and repeat it with growing pauses where it fails.

    Args:
        url: it is about.
        how: what cannot be done, for the message, such as `read`.
        request: it.
        attempts: how often it is made at most; ATTEMPTS where None.

    Raises:
        AbsentError: there is no such file.
        AwayError: every attempt failed.
        InputError: access is denied.
    """
    pause, attempts = _PAUSE, attempts or ATTEMPTS
    for left in reversed(range(attempts)):
        try:
            return request()
        except InputError:
            raise
        except FileNotFoundError as error:
            raise AbsentError(f"{url}: no such file") from error
        except Exception as error:  # clients of fsspec and boto have their own
            why = " ".join(str(error).split()) or type(error).__name__
            if _REFUSED.search(why):
                raise InputError(
                    f"{url}: may not be {how}: {why}. Credentials are taken from the environment, the profile or the "
                    "machine, as by the storage's own tools: check that these can, and the name of the bucket"
                ) from error
            if not left:
                raise AwayError(
                    f"{url}: cannot be {how}, tried {attempts} times: {why}. Check the connection (and "
                    "AWS_ENDPOINT_URL, if it is set), and run the command again, which goes on where it stopped"
                ) from error
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, _MAX_PAUSE)
    raise AssertionError


def _info(url: Url) -> fs.FileInfo:
    system, path = _at(url)
    return retry(url, "read", lambda: system.get_file_info(path))


def _at(url: Url) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and its path there."""
    bucket = url.path.partition("/")[0]
    return _system(url.scheme, bucket, endpoint()), url.path


def endpoint() -> str | None:
    """Return the S3 server to use instead of Amazon's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


@cache
def _system(scheme: str, bucket: str, endpoint: str | None) -> fs.FileSystem:
    """Return this process's client for a bucket."""
    if scheme == "s3":
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not (region or endpoint):
            with suppress(OSError):  # the first request has the clearer message
                region = fs.resolve_s3_region(bucket)
        return fs.S3FileSystem(
            region=region,
            endpoint_override=endpoint,
            connect_timeout=10,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=30))
    system, _ = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
    return system
