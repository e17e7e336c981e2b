"""Local paths, and URLs of object storage and the Hugging Face hub, which are copied once to a local cache.

Credentials are found as the storage's own tools find them: in the environment (`AWS_ACCESS_KEY_ID`, `HF_TOKEN`), in a
profile, or on the instance. `AWS_ENDPOINT_URL` selects another S3 server, `HF_ENDPOINT` another hub, and POLYPOOL_CACHE
the cache folder.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from polypool.infra.errors import AbsentError, AwayError, InputError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from pyarrow import fs

SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "hf": "hf"}
"""Schemes of object storage, and their usual spelling."""
POSSIBLE = "a path of this machine, file:///..., s3://..., gs://... or hf://..."

# at least two letters: C:/ is a Windows drive
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL | re.IGNORECASE)


def user_cache() -> Path:
    """Return the user's cache folder, `~/.cache/polypool` or below XDG_CACHE_HOME; it may not exist yet.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polypool"


@dataclass(frozen=True, kw_only=True)
class Url:
    """A folder or file in object storage; its text is `s3://bucket/data/coco`.

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
    """Parse a local path or a URL of object storage.

    `file:///x` is `/x`. A `Path` of a URL, which has one slash less, is parsed, too.

    Raises:
        InputError: a URL with another scheme, without a bucket, with a user, password or query, or `file://` of another
            machine.
    """
    if isinstance(path, Url):
        return path
    text = str(path)
    found = _URL.match(text)
    if found is None:
        return Path(path)
    scheme, parts = found[1].lower(), [part for part in found[2].split("/") if part]
    if scheme == "file":
        named = _FILE.fullmatch(text)
        if named is None or (named[1] or "localhost") != "localhost":
            raise InputError(f"{text}: names no file of this machine; give {POSSIBLE}")
        return Path(unquote(named[2]))
    # without user, password and query, which may be secret
    shown = f"{scheme}://{re.sub('.*@', '...@', text.partition('?')[0].partition(':')[2].lstrip('/'), flags=re.DOTALL)}"
    if scheme not in SCHEMES:
        download = "; download it, and give its folder" if scheme in ("http", "https", "ftp") else ""
        raise InputError(
            f"{shown}: nothing is read from or written to {scheme}://; give {POSSIBLE}{download}"
        )
    if parts and ("@" in parts[0] or ":" in parts[0] or "?" in text):
        raise InputError(
            f"{shown}: a URL holds no user, password and settings here, as it is kept and shown; leave them out, and "
            f"set them where tools of {scheme}:// look (environment, profile, instance)"
        )
    if not parts:
        raise InputError(f"{text}: names no bucket; give one, such as {scheme}://bucket/data/coco")
    return Url(scheme=SCHEMES[scheme], path="/".join(parts))


def local(path: str | Path | Url, *, what: str = "this") -> Path:
    """Return a local path.

    Args:
        path: given by a user.
        what: its purpose, for the message.

    Raises:
        InputError: a URL of object storage, or an invalid one.
    """
    found = place(path)
    if isinstance(found, Url):
        raise InputError(
            f"{found}: {what} must be on this machine, not in object storage; give a path, or file:///..."
        )
    return found


def filesystem(at: Path | Url) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's file system for a folder or file, and its path there."""
    from pyarrow import fs

    if isinstance(at, Path):
        return fs.LocalFileSystem(), str(at)
    if at.scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not (region or endpoint):
            with explained(at, "read"):
                region = fs.resolve_s3_region(at.path.partition("/")[0])
        system = fs.S3FileSystem(region=region, endpoint_override=endpoint or None, connect_timeout=10)
        return system, at.path
    return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=30)), at.path


def exists(at: Path | Url) -> bool:
    """Whether a file exists.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    with explained(at, "read"):
        if is_hub(at):
            hub = Repository.of(at)
            return hub.api().file_exists(hub.id, hub.folder, **hub.options)
        system, path = filesystem(at)
        return system.get_file_info(path).is_file


def read_bytes(at: Path | Url) -> bytes:
    """Read a file.

    Raises:
        AbsentError: no such file.
        InputError: the storage does not answer, or refuses.
    """
    with explained(at, "read"):
        if is_hub(at):
            hub = Repository.of(at)
            return Path(hub.api().hf_hub_download(hub.id, hub.folder, **hub.options)).read_bytes()
        system, path = filesystem(at)
        with system.open_input_stream(path) as file:
            return file.read()


def write_bytes(at: Path | Url, data: bytes) -> None:
    """Write a file; raises as `read_bytes`."""
    with explained(at, "written"):
        if is_hub(at):
            hub = Repository.of(at)
            hub.api().upload_file(
                path_or_fileobj=data, path_in_repo=hub.folder, repo_id=hub.id, **hub.options
            )
            return
        system, path = filesystem(at)
        with system.open_output_stream(path) as file:
            file.write(data)


def delete(at: Path | Url) -> None:
    """Delete a file, if it exists.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    if exists(at):
        with explained(at, "deleted"):
            system, path = filesystem(at)
            system.delete_file(path)


def read_json(at: Path | Url, *, what: str) -> Any:
    """Read a UTF-8 JSON file.

    Raises:
        AbsentError: no such file.
        InputError: invalid JSON, or the storage does not answer or refuses.
    """
    from polypool.infra import files

    if isinstance(at, Path):
        return files.read_json(at, what=what)
    try:
        return files.parse_json(read_bytes(at), where=at, what=what)
    except AbsentError as error:
        raise AbsentError(f"{at}: no such file; expected {what}") from error


def cache_folder() -> Path:
    """Return the cache folder, which is created if necessary.

    Raises:
        InputError: it cannot be created.
    """
    from polypool.infra.files import make_folder

    named = os.environ.get("POLYPOOL_CACHE")
    return make_folder(local(named, what="POLYPOOL_CACHE").absolute() if named else user_cache() / "storage")


def fetch(folder: Url, files: Mapping[str, str]) -> Path:
    """Return a local folder with copies of some files of a URL; each is copied once and verified.

    Files of the hub are cached by its client and not compared with `files`.

    Args:
        folder: the URL.
        files: SHA-256 by name.

    Raises:
        AbsentError: a file is missing.
        InputError: the storage does not answer or refuses, a SHA-256 differs, or no space is left.
    """
    from filelock import FileLock
    from pyarrow.fs import copy_files

    from polypool.infra.files import make_folder, sha256
    from polypool.infra.process.progress import Progress, waiting

    if is_hub(folder):
        return Repository.of(folder).fetch(files)
    key = hashlib.sha256(json.dumps([str(folder), dict(files)]).encode()).hexdigest()[:32]
    here = make_folder(cache_folder() / key)
    missing = [name for name in files if not (here / name).exists()]
    if not missing:
        return here
    with waiting(f"another process to copy {folder}"):
        lock = FileLock(cache_folder() / f"{key}.lock").acquire()
    with lock, explained(folder, "read"):
        system, path = filesystem(folder)
        for name in Progress(missing, desc=f"copy {folder}", unit="file"):
            part = here / f".{name}.part"
            if (here / name).exists():  # copied by another process meanwhile
                continue
            copy_files(f"{path}/{name}", str(part), source_filesystem=system)
            if sha256(part) != files[name]:
                part.unlink()
                raise InputError(
                    f"{folder / name}: its SHA-256 differs from the recorded one: damaged while it was copied or "
                    "stored; run the command again, or write the file anew"
                )
            part.rename(here / name)
    return here


def staging(out: str | Path | Url, *, last: str, replace: bool = False) -> Path:
    """Return the folder to write for a user's `out`; for a URL, a folder in the cache that `publish` uploads.

    Args:
        out: a folder, or its URL.
        last: name of the file that marks completion.
        replace: whether complete data at a URL may be replaced.

    Raises:
        InputError: the URL has complete data, or the storage does not answer or refuses.
    """
    from polypool.infra.files import make_folder

    to = place(out)
    if isinstance(to, Path):
        return make_folder(to)
    if not replace and exists(to / last):
        raise InputError(f"{to}: is complete; delete it, or choose another name")
    return make_folder(
        cache_folder() / "writing" / hashlib.sha256(str(to).encode()).hexdigest()[:16] / to.name
    )


def publish(folder: Path, out: str | Path | Url, names: Sequence[str]) -> None:
    """If `out` is a URL, upload the named files of a folder of `staging`, and delete the folder.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    to = place(out)
    if isinstance(to, Url):
        upload(folder, to, names, about=f"Write {to.name}")
        shutil.rmtree(folder)


def upload(folder: Path, to: Url, names: Sequence[str], *, about: str, private: bool = False) -> None:
    """Copy some files of a folder, if present, to object storage in this order, or to the hub as one commit.

    Args:
        folder: the folder.
        to: its URL.
        names: of the files.
        about: title of the commit.
        private: make a new repository private.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    if is_hub(to):
        Repository.of(to).push(folder, names, private=private, about=about)
        return
    with explained(to, "written"):
        system, path = filesystem(to)
        for name in (name for name in names if (folder / name).is_file()):
            # pyarrow's `copy_files` ignores an error at the end of a file
            with (folder / name).open("rb") as source, system.open_output_stream(f"{path}/{name}") as out:
                shutil.copyfileobj(source, out, 8 << 20)


CARD = "README.md"
"""The file that the hub shows as a repository's card."""


def is_hub(path: Path | Url | None) -> bool:
    """Whether a path is on Hugging Face's hub."""
    return isinstance(path, Url) and path.scheme == "hf"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of the hub, or a folder or file of it: `hf://user/name`, `hf://datasets/user/name@revision/folder`.

    Attributes:
        url: its URL.
        id: `user/name`.
        options: arguments `repo_type` and `revision` of the hub's client.
        folder: path of a folder or file in the repository; empty for the root.
    """

    url: Path | Url
    id: str
    options: Mapping[str, Any]
    folder: str

    @classmethod
    def of(cls, url: Path | Url) -> Self:
        """Parse a URL.

        Raises:
            InputError: not a repository.
        """
        parts = url.path.split("/") if isinstance(url, Url) and url.scheme == "hf" else []
        kind = "dataset" if parts[:1] == ["datasets"] else "model"
        user, named, *below = [*parts[kind == "dataset" :], "", ""]
        name, _, revision = named.partition("@")
        if not user or not name or ".." in below:
            raise InputError(
                f"{url}: names no repository of the hub; expected hf://user/name or hf://datasets/user/name"
            )
        options = {"repo_type": kind, "revision": unquote(revision) or None}
        return cls(url=url, id=f"{user}/{name}", options=options, folder="/".join(filter(None, below)))

    @staticmethod
    def api() -> HfApi:
        """Return the hub's client, which finds the token and caches downloads (HF_HOME)."""
        from huggingface_hub import HfApi

        return HfApi(library_name="polypool")

    def fetch(self, names: Iterable[str]) -> Path:
        """Download some files of the folder unless they are cached; return the local folder.

        Raises:
            AbsentError: one of the files is missing.
            InputError: no such repository or revision, no permission, or no connection.
        """
        paths = [f"{self.folder}/{name}" if self.folder else name for name in names]
        with explained(self.url, "read"):
            fetched = self.api().snapshot_download(
                self.id, allow_patterns=[*map(glob.escape, paths)], **self.options
            )
        if missing := [path for path in paths if not (Path(fetched) / path).is_file()]:
            raise AbsentError(f"{self.url}: has no {', '.join(missing)}; check the name, or push it again")
        return Path(fetched) / self.folder

    def push(self, folder: Path, names: Sequence[str], *, private: bool, about: str) -> None:
        """Upload some files of a folder as one commit to the repository, which is created if necessary.

        A new repository of data is private.

        Raises:
            InputError: no token, or one without write permission; no connection; or `private` for a public repository.
        """
        api, kind = self.api(), self.options["repo_type"]
        with explained(self.url, "written"):
            hidden = private or kind == "dataset"
            api.create_repo(self.id, repo_type=kind, private=hidden or None, exist_ok=True)
            if private and not api.repo_info(self.id, repo_type=kind).private:
                raise InputError(
                    f"{self.url}: exists and is public; make it private on its page, or leave out --private"
                )
            api.upload_folder(
                repo_id=self.id,
                folder_path=folder,
                allow_patterns=[*map(glob.escape, names)],
                path_in_repo=self.folder or None,
                commit_message=about,
                **self.options,
            )


@contextmanager
def explained(where: object, how: str) -> Iterator[None]:
    """Convert errors of storage, of the hub and of connections to InputErrors.

    Args:
        where: path or URL of the request.
        how: participle of the request, such as `read`.
    """
    from polypool.infra.files import disk_fault

    try:
        yield
    except InputError:
        raise
    except Exception as error:  # pyarrow, HTTP and xet clients raise their own types
        if type(error).__name__ in ("FileNotFoundError", "RemoteEntryNotFoundError"):  # the latter: the hub's
            raise AbsentError(f"{where}: no such file") from error
        if why := disk_fault(error, user_cache()):
            raise InputError(f"{where}: {why}") from error
        line = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise AwayError(
            f"{where}: cannot be {how}: {line}. Check the name, the connection (and AWS_ENDPOINT_URL or HF_ENDPOINT, "
            "if set) and the credentials, which storage's own tools find in the environment, a profile or the machine "
            "(for the hub: `hf auth login`, or HF_TOKEN); then run the command again"
        ) from error
