"""A client of the Hugging Face hub with repositories in memory; has the methods that `infra.storage` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError


@dataclass
class Repo:
    """A repository: the files of each commit by hash or tag, the latest one last."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    titles: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return [*self.commits][-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes], title: str = "") -> None:
        self.titles.append(title)
        self.commits[f"{len(self.commits):040x}"] = files


class FakeHub:
    """Stands in for `huggingface_hub.HfApi`.

    Attributes:
        repos: repositories by id, `user/name`.
        fetched: names of the files that were downloaded so far.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.repos: dict[str, Repo] = {}
        self.fetched: list[str] = []

    def _files(self, repo_id: str, revision: str | None) -> dict[str, bytes]:
        if not (repo := self.repos.get(repo_id)):
            raise RepositoryNotFoundError("Repository Not Found", response=_response())
        return repo.commits[revision or repo.head]

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        self.repos.setdefault(repo_id, Repo(private=bool(private)))

    def repo_info(self, repo_id: str, *, repo_type: str) -> Repo:
        return self.repos[repo_id]

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        path_in_repo: str | None,
        commit_message: str,
        repo_type: str,
        revision: str | None,
        allow_patterns: Sequence[str],
    ) -> None:
        files = {
            path.name: path.read_bytes()
            for path in folder_path.iterdir()
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns)
        }
        self.repos[repo_id].commit(self.repos[repo_id].files | files, commit_message)

    def file_exists(self, repo_id: str, filename: str, *, repo_type: str, revision: str | None) -> bool:
        return repo_id in self.repos and filename in self._files(repo_id, revision)

    def hf_hub_download(self, repo_id: str, filename: str, **options: Any) -> str:
        return str(Path(self.snapshot_download(repo_id, allow_patterns=[filename], **options)) / filename)

    def snapshot_download(
        self, repo_id: str, *, allow_patterns: Sequence[str], repo_type: str, revision: str | None
    ) -> str:
        files = self._files(repo_id, revision)
        folder = self.cache / repo_id / (revision or self.repos[repo_id].head)
        folder.mkdir(parents=True, exist_ok=True)
        found = [name for name in files if any(fnmatch(name, pattern) for pattern in allow_patterns)]
        if not found:
            raise RemoteEntryNotFoundError("Entry Not Found", response=_response())
        for name in found:
            (folder / name).write_bytes(files[name])
        self.fetched += found
        return str(folder)


def _response() -> httpx.Response:
    return httpx.Response(404, request=httpx.Request("GET", "https://hub.test"))
