"""Repositories of the Hugging Face hub: files of one commit are fetched, and folders pushed as one commit.

The hub's own client is asked: it finds the token, keeps what it fetched in its cache (HF_HOME), goes on with what was
interrupted, and takes another server from HF_ENDPOINT.
"""

from __future__ import annotations

import fnmatch
import glob
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import unquote

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.fields import Rule, validate
from polypool.infra.process.output import TEXT, mode
from polypool.infra.process.progress import waiting
from polypool.infra.storage.hub_errors import URL_OF, explained
from polypool.infra.storage.places import Url, place

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SCHEME, CARD = "hf", "README.md"
Kind = Literal["model", "dataset"]
_OTHERS = {".gitattributes", ".gitignore", CARD, "LICENSE", "LICENSE.md", "LICENSE.txt"}
_ID = re.compile("[a-z0-9][a-z0-9.-]*")
_LICENSE = Rule(
    "an identifier of the hub, such as apache-2.0 or cc-by-4.0 (not `other`, which needs a text of its own)",
    lambda name: not name or (bool(_ID.fullmatch(name)) and name != "other"),
)


@dataclass(frozen=True, kw_only=True)
class Publication:
    """How a folder is published.

    Args:
        license: of what is published, by the hub's identifier, such as apache-2.0; nothing is stated where empty.
        private: make a new repository private.
    """

    license: Annotated[str, _LICENSE] = ""
    private: bool = False

    def __post_init__(self) -> None:
        validate(self)

    def check(self, out: Path | Url | None) -> None:
        """Refuse a private folder of another place.

        Raises:
            InputError: it is to be private, and is not written to the hub.
        """
        if self.private and not is_hub(out):
            raise InputError(
                f"--private is of a repository on the hub; write to one, such as {URL_OF['model']}"
            )


def is_hub(path: Path | Url | None) -> bool:
    """Whether a path is on Hugging Face's hub."""
    return isinstance(path, Url) and path.scheme == SCHEME


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository, or a folder of it: `hf://user/name`, `hf://datasets/user/name@revision/folder`.

    Attributes:
        kind: of the repository.
        id: `user/name`.
        revision: branch, tag or commit; the default branch where empty.
        folder: in it; empty for all.
    """

    kind: Kind
    id: str
    revision: str = ""
    folder: str = ""

    @classmethod
    def of(cls, path: str | Path | Url, *, kind: Kind | None = None) -> Self:
        """Parse a URL.

        Args:
            path: the URL.
            kind: that it must be of, if any.

        Raises:
            InputError: it is no URL of the hub, names no repository, or one of another kind.
        """
        url, expected = place(path), URL_OF[kind] if kind else " or ".join(URL_OF.values())
        parts = url.path.split("/") if isinstance(url, Url) and url.scheme == SCHEME else []
        found: Kind = "dataset" if parts[:1] == ["datasets"] else "model"
        user, named, *below = [*parts[found == "dataset" :], "", ""]
        name, _, revision = named.partition("@")
        if not user or not name or (kind and found != kind) or ".." in below:
            raise InputError(
                f"{url}: names no repository of {kind or 'model'}s on the hub; expected {expected}"
            )
        return cls(
            kind=found, id=f"{user}/{name}", revision=unquote(revision), folder="/".join(filter(None, below))
        )

    def __str__(self) -> str:
        prefix = "datasets/" if self.kind == "dataset" else ""
        parts = (f"{self.id}@{self.revision}" if self.revision else self.id, self.folder)
        return f"hf://{prefix}{'/'.join(filter(None, parts))}"

    def pinned(self) -> Self:
        """Return the repository at the commit that its revision names now.

        Raises:
            InputError: no such repository or revision, no permission, or no connection.
        """
        with explained(self, "read"):
            info = _api().repo_info(self.id, repo_type=self.kind, revision=self.revision or None)
        return replace(self, revision=info.sha)

    def fetch(self, names: Sequence[str], *, optional: Sequence[str] = (), into: Path | None = None) -> Path:
        """Fetch some files, and nothing else, as far as they are not here; return the folder that has them.

        Args:
            names: of the files, in this folder of the repository.
            optional: of files that are fetched where they exist.
            into: folder; the hub's cache where None. Without a connection, the cache is enough.

        Raises:
            AbsentError: one of the files is missing.
            InputError: no such repository or revision, no permission, or no connection.
        """
        with explained(self, "read"), _progress(f"files of {self}"):
            fetched = _api().snapshot_download(
                self.id,
                repo_type=self.kind,
                revision=self.revision or None,
                allow_patterns=[glob.escape(self._path(name)) for name in (*names, *optional)],
                local_dir=into,
                tqdm_class=_bar(),
            )
        folder = Path(fetched) / self.folder
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise AbsentError(f"{self}: has no {', '.join(missing)}; check the name, or push it again")
        return folder

    def push(
        self,
        files: Mapping[str, Path | bytes],
        *,
        marker: str,
        stale: Sequence[str],
        private: bool,
        about: str,
    ) -> str:
        """Upload files as one commit to the repository, which is made where necessary; return the commit.

        Files that the hub has already are not sent again. An interrupted push changes nothing, and can be repeated.

        Args:
            files: contents or paths by name.
            marker: the one of them that is in every folder of this kind.
            stale: patterns of files that are deleted where they are not among `files`.
            private: make a new repository private.
            about: message of the commit.

        Raises:
            InputError: a revision was named; no token, or one that may not write; no connection; the repository has
                something else, or is public and `private` is set.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, get_token

        if self.revision:
            raise InputError(
                f"{self}: a push makes a commit of the default branch; leave @{self.revision} out"
            )
        if not get_token():
            raise InputError(
                f"{self}: no token of the hub on this machine; make one that may write, and give it to `hf auth login` "
                "or as HF_TOKEN"
            )
        api = _api()
        with explained(self, "written"):
            api.create_repo(self.id, repo_type=self.kind, private=private or None, exist_ok=True)
            info = api.repo_info(self.id, repo_type=self.kind)
            paths = api.list_repo_files(self.id, repo_type=self.kind)
        if private and not info.private:
            raise InputError(
                f"{self}: exists and is public; make it private on its page, or leave out --private"
            )
        prefix = self._path("")
        there = {path.removeprefix(prefix) for path in paths if path.startswith(prefix)}
        if others := sorted(there - _OTHERS) if marker not in there else []:
            raise InputError(
                f"{self}: has something else already, such as {others[0]}; choose another repository"
            )
        old = [name for name in there - {*files} if any(fnmatch.fnmatch(name, pattern) for pattern in stale)]
        operations = [
            *(CommitOperationAdd(self._path(name), content) for name, content in files.items()),
            *(CommitOperationDelete(self._path(name)) for name in sorted(old)),
        ]
        with explained(self, "written"), _progress(f"{self} to take {len(files)} files"):
            commit = api.create_commit(self.id, operations, commit_message=about, repo_type=self.kind)
        return commit.oid

    def _path(self, name: str) -> str:
        """Return where a file of this folder is in the repository."""
        return f"{self.folder}/{name}" if self.folder else name


def _api() -> HfApi:
    from huggingface_hub import HfApi  # slow to import
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    return HfApi(library_name="polypool")


def _bar() -> Any:
    """Return the hub's progress bar, shown of what takes more than a second."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{"delay": 1, **options})

    return Bar


def _progress(what: str) -> AbstractContextManager[None]:
    """Leave the hub's bars to a terminal; elsewhere, print what is waited for."""
    from huggingface_hub.utils import disable_progress_bars

    if mode() == TEXT and sys.stderr.isatty():
        return nullcontext()
    disable_progress_bars()
    return waiting(what)
