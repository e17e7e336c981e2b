"""A picture or video that a visitor sends: held in memory, bounded, and gone with the answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from infra.errors import InputError

LARGEST = 16 << 20  # bytes of a file
FORM = LARGEST + (64 << 10)  # of all that is sent with it
FIELD = "file"
"""What the form calls the file."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a visitor asks.

    Attributes:
        query: the fields of the address or the form.
        upload: the bytes of a file; empty where there is none.
    """

    query: Mapping[str, str] = field(default_factory=dict)
    upload: bytes = b""


class _InMemory(MultiPartParser):
    """Keeps a file that is sent out of every folder."""

    spool_max_size = FORM


async def read_form(headers: Headers, body: AsyncGenerator[bytes, None], *, fields: int) -> Asked:
    """Return what a form of at most `FORM` bytes holds: one file, and so many other fields.

    Raises:
        InputError: it is no such form, or its file is empty or too large.
    """
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise InputError("expected a form with a file; send one from this page")
    try:
        form = await _InMemory(headers, body, max_files=1, max_fields=fields).parse()
    except MultiPartException as error:
        raise InputError(f"the form cannot be read: {error.message}") from error
    try:
        sent = form.get(FIELD)
        data = await sent.read() if isinstance(sent, UploadFile) else b""
    finally:
        await form.close()
    if not data:
        raise InputError("choose a file first")
    if len(data) > LARGEST:
        raise InputError(f"a file of {len(data):,} bytes; at most {LARGEST:,} will do")
    return Asked(query={name: value for name, value in form.items() if isinstance(value, str)}, upload=data)


@contextmanager
def as_file(data: bytes, *, what: str) -> Iterator[Path]:
    """Yield a path at which the bytes can be read by this process and its children, while the context lasts.

    They are in memory where the system has files there (Linux), else in a temporary file. Messages about the path say
    `what` instead.
    """
    memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("upload"), "wb") if memory else tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}" if memory else file.name)
        try:
            yield path
        except InputError as error:
            raise InputError(str(error).replace(str(path), what)) from error
