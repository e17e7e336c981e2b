"""Places of data: a path of this machine, or a URL of object storage; all paths of users are parsed here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from polypool.infra.errors import InputError

SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
"""Schemes of object storage, and their usual spelling."""
POSSIBLE = "a path of this machine, file:///..., s3://..., gs://... or hf://..."

# of two letters and more: C:/ is a drive of Windows
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL | re.IGNORECASE)


def user_cache() -> Path:
    """Return the folder of the user's cache, `~/.cache/polypool` or below XDG_CACHE_HOME; it need not exist.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polypool"


@dataclass(frozen=True, kw_only=True)
class Url:
    """A folder or file in object storage; printed as it is written, `s3://bucket/data/coco`.

    Args:
        scheme: one of `SCHEMES`.
        path: bucket and key.
    """

    scheme: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(scheme=self.scheme, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(scheme=self.scheme, path=self.path.rpartition("/")[0])


def place(path: str | Path | Url) -> Path | Url:
    """Parse a user's name of a folder or file: a path of this machine, or a URL of object storage.

    `file:///x` is `/x`. A `Path` made of a URL, which has one slash less, is parsed, too.

    Raises:
        InputError: a URL of another kind, without a bucket, or with a password or settings in it.
    """
    if isinstance(path, Url):
        return path
    text = str(path)
    found = _URL.match(text)
    if found is None:
        return Path(path)
    if found[1].lower() == "file":
        return _file(text)
    scheme, parts = found[1].lower(), [part for part in found[2].split("/") if part]
    if scheme not in SCHEMES:
        download = "; download it, and give its folder" if scheme in ("http", "https", "ftp") else ""
        raise InputError(
            f"{_shown(text)}: nothing is read from or written to {scheme}://; give {POSSIBLE}{download}"
        )
    if parts and ("@" in parts[0] or ":" in parts[0]):
        raise InputError(
            f"{_shown(text)}: a URL holds no user and no password here, as it is kept and shown; leave them out, "
            f"and set them where tools of {scheme}:// look (environment, profile, instance)"
        )
    if "?" in text:
        raise InputError(
            f"{_shown(text)}: a URL holds no settings here (what follows its ?); leave them out, and set them where "
            f"tools of {scheme}:// look (environment, profile, instance)"
        )
    if not parts:
        raise InputError(f"{text}: names no bucket; give one, such as {scheme}://bucket/data/coco")
    return Url(scheme=SCHEMES[scheme], path="/".join(parts))


def local(path: str | Path | Url, *, what: str = "this") -> Path:
    """Return a path of this machine.

    Args:
        path: given by a user.
        what: it is for, for the message.

    Raises:
        InputError: it is a URL of object storage, or an invalid one.
    """
    found = place(path)
    if isinstance(found, Url):
        raise InputError(
            f"{found}: {what} must be on this machine, not in object storage; give a path, or file:///..."
        )
    return found


def _file(text: str) -> Path:
    """Return the path that a `file:` URL names."""
    found = _FILE.fullmatch(text)
    if found is None or (found[1] or "localhost") != "localhost":
        raise InputError(f"{text}: names no file of this machine; give {POSSIBLE}")
    return Path(unquote(found[2]))


def _shown(text: str) -> str:
    """Return a URL without its secrets: user, password and settings."""
    scheme, _, rest = text.partition("?")[0].partition(":")
    return f"{scheme.lower()}://{re.sub('.*@', '...@', rest.lstrip('/'), flags=re.DOTALL)}"
