"""Small files in object storage that are written only over what was read: S3 holds writers to that, by marks (ETag).

Elsewhere, and on servers of S3 that heed no conditions, nothing stands between a look and the write that follows it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any

from infra.errors import AbsentError, InputError
from infra.storage import remote
from infra.storage.places import Url

_NO_FILE = {"NoSuchKey", "404"}
_OTHERS = {"PreconditionFailed", "412"}
_NEW = {"IfNoneMatch": "*"}
_NOBODYS = '"00000000000000000000000000000000"'
"""A mark that no file has."""


class ChangedError(Exception):
    """Somebody else has written the file since it was read."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A file as it was found or written.

    Attributes:
        data: its bytes.
        mark: what tells this content from others.
        age: seconds since it was written, by the storage's clock where that is S3.
    """

    data: bytes
    mark: str
    age: float


def read(url: Url, *, attempts: int = remote.ATTEMPTS) -> Version | None:
    """Return a file as it is; None where there is none. Of S3 it is asked so often at most.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    if url.scheme != "s3":
        try:
            data, (_, written) = remote.RemoteFile(url).read(), remote.state(url)
        except AbsentError:
            return None
        return Version(data=data, mark=_digest(data), age=time.time() - int(written) / 1e9)

    def ask() -> Version | None:
        answer = _asked("get_object", url, _NO_FILE)
        if answer is None:
            return None
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - answer["LastModified"]).total_seconds()
        return Version(data=answer["Body"].read(), mark=answer["ETag"], age=age)

    return remote.tried(url, "read", ask, attempts=attempts)


def write(url: Url, data: bytes, *, over: Version | None) -> Version:
    """Write a file.

    Args:
        url: of the file.
        data: its bytes; those of two writers have to differ.
        over: what was found there; None where there was none.

    Raises:
        ChangedError: something else is there.
        InputError: the storage does not answer, or refuses.
    """
    if url.scheme != "s3":
        there = read(url)
        if (there and there.mark) != (over and over.mark):
            raise ChangedError
        with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
            path = Path(folder) / url.name
            path.write_bytes(data)
            remote.upload(path, url)
        return Version(data=data, mark=_digest(data), age=0.0)
    mark = remote.tried(url, "written", lambda: _put(url, data, {"IfMatch": over.mark} if over else _NEW))
    if mark is None:  # an answer may have been lost, and the same request made again
        there = read(url)
        if there is None or there.data != data:
            raise ChangedError
        mark = there.mark
    return Version(data=data, mark=mark, age=0.0)


def heeded(url: Url, data: bytes) -> bool:
    """Whether the storage of a file that holds `data` heeds conditions; where it does not, the file is written again.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    conditions = (_NEW, {"IfMatch": _NOBODYS}) if url.scheme == "s3" else ()
    return bool(conditions) and all(
        remote.tried(url, "written", lambda condition=each: _put(url, data, condition)) is None
        for each in conditions
    )


def _put(url: Url, data: bytes, condition: dict[str, str]) -> str | None:
    """Write a file on a condition; return its mark, None where the condition does not hold."""
    # a file that should be there and is not is another than was read
    answer = _asked("put_object", url, _OTHERS | _NO_FILE, Body=data, **condition)
    return None if answer is None else answer["ETag"]


def _asked(method: str, url: Url, none_by: set[str], **arguments: Any) -> dict[str, Any] | None:
    """Ask S3 about a file; return its answer, None where it is one of some errors."""
    from botocore.exceptions import ClientError

    bucket, _, key = url.path.partition("/")
    try:
        return getattr(_client(remote.endpoint()), method)(Bucket=bucket, Key=key, **arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] in none_by:
            return None
        raise


@cache
def _client(endpoint: str | None) -> Any:
    """Return this process's client of S3; `infra.storage.remote` tries again where it fails.

    Raises:
        InputError: there is none, as a package is missing.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise InputError(
            "runs at s3:// need boto3, as pyarrow's client of S3 cannot write on a condition; "
            "`pip install 'polypool[s3]'`"
        ) from error
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials
    return boto3.client(
        "s3",
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        endpoint_url=endpoint,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=10,
            read_timeout=30,
            s3={"addressing_style": "path"} if endpoint else {},
        ),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
