"""Small files in object storage that are overwritten only if unchanged since they were read: S3 compares ETags.

Other storage, and servers of S3 that ignore conditions, may change a file between the comparison and the write.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Any

from polypool.infra.errors import AbsentError
from polypool.infra.extras import needed
from polypool.infra.storage import remote
from polypool.infra.storage.places import Url

_NO_FILE = {"NoSuchKey", "404"}
_CHANGED = {"PreconditionFailed", "412"}
_NEW = {"IfNoneMatch": "*"}
_NO_ETAG = '"00000000000000000000000000000000"'  # that no file has


class ChangedError(Exception):
    """Another process has written the file since it was read."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A file as it was read or written.

    Attributes:
        data: its bytes.
        etag: identifies this content where the storage is S3.
        age: seconds since it was written, by the storage's clock where that is S3.
    """

    data: bytes
    etag: str
    age: float


def read(url: Url, *, attempts: int = remote.ATTEMPTS) -> Version | None:
    """Return a file; None where there is none. S3 is tried `attempts` times.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    if url.scheme != "s3":
        try:
            data, (_, written) = remote.RemoteFile(url).read(), remote.size_and_time(url)
        except AbsentError:
            return None
        return Version(data=data, etag="", age=time.time() - int(written) / 1e9)

    def get() -> Version | None:
        answer = _request("get_object", url, _NO_FILE)
        if answer is None:
            return None
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - answer["LastModified"]).total_seconds()
        return Version(data=answer["Body"].read(), etag=answer["ETag"], age=age)

    return remote.retry(url, "read", get, attempts=attempts)


def write(url: Url, data: bytes, *, over: Version | None) -> Version:
    """Write a file.

    Args:
        url: of the file.
        data: its bytes, which differ between processes.
        over: the version to overwrite; None where there must be no file.

    Raises:
        ChangedError: there is another version.
        InputError: the storage does not answer, or refuses.
    """
    if url.scheme != "s3":
        there = read(url)
        if (there and there.data) != (over and over.data):
            raise ChangedError
        remote.upload(data, url)
        return Version(data=data, etag="", age=0.0)
    etag = remote.retry(url, "written", partial(_put, url, data, {"IfMatch": over.etag} if over else _NEW))
    if etag is None:  # perhaps the answer was lost, and this was the second request
        there = read(url)
        if there is None or there.data != data:
            raise ChangedError
        etag = there.etag
    return Version(data=data, etag=etag, age=0.0)


def enforced(url: Url, data: bytes) -> bool:
    """Whether the storage enforces conditions: tried by writing `data`, which the file holds already.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    return url.scheme == "s3" and all(
        remote.retry(url, "written", partial(_put, url, data, condition)) is None
        for condition in (_NEW, {"IfMatch": _NO_ETAG})
    )


def _put(url: Url, data: bytes, condition: dict[str, str]) -> str | None:
    """Write a file on a condition; return its ETag, None where the condition does not hold."""
    answer = _request("put_object", url, _CHANGED | _NO_FILE, Body=data, **condition)
    return None if answer is None else answer["ETag"]


def _request(method: str, url: Url, none_for: set[str], **arguments: Any) -> dict[str, Any] | None:
    """Make a request about a file; return the answer, None for some error codes."""
    from botocore.exceptions import ClientError

    bucket, _, key = url.path.partition("/")
    try:
        return getattr(_client(remote.endpoint()), method)(Bucket=bucket, Key=key, **arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] in none_for:
            return None
        raise


@cache
def _client(endpoint: str | None) -> Any:
    """Return this process's S3 client, whose requests `remote.retry` repeats.

    Raises:
        InputError: boto3 is not installed.
    """
    with needed("s3"):  # pyarrow's client cannot write on a condition
        import boto3
        from botocore.config import Config
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it logs where it found credentials
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
