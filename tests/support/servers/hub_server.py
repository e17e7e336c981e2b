"""A stand-in of the Hugging Face hub's HTTP interface in this process: repositories with commits, kept in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_a-token-of-the-tests"
READER = "hf_a-token-that-may-not-write"
REGULAR = (".md", ".json")
"""Ends of names of files that are part of a commit; the content of others is uploaded before."""


@dataclass
class Repo:
    """A repository: a dictionary of files for each commit, and the tags that name some."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {".gitattributes": b""}})
    titles: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return [*self.commits][-1]

    @property
    def files(self) -> dict[str, bytes]:
        """Those of the last commit."""
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes], title: str = "") -> str:
        self.titles.append(title)
        sha = hashlib.sha1(repr((sorted(files), len(self.commits), title)).encode()).hexdigest()
        self.commits[sha] = files
        return sha

    def named(self, revision: str) -> str | None:
        """Return the commit that a revision is."""
        if revision == "main":
            return self.head
        return self.tags.get(revision) or next(
            (sha for sha in self.commits if sha.startswith(revision)), None
        )


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": message or code}


class Hub:
    """The server.

    Attributes:
        repos: by kind and id: `model`, `user/name`.
        objects: uploaded contents by their SHA-256.
        requests: method and path of all so far.
        cut: by the end of a path, after how many bytes answers with a content break off, once.
        down: answer everything with 503.
    """

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.cut: dict[str, int] = {}
        self.down = False
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def model(self, id: str = "user/name") -> Repo:
        return self.repos["model", id]

    def dataset(self, id: str = "user/name") -> Repo:
        return self.repos["dataset", id]

    def asked(self, method: str, end: str = "") -> list[str]:
        """Return the paths of requests so far with this method and end."""
        return [path for how, path in self.requests if how == method and path.endswith(end)]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _any(self) -> None:
        self.path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, self.path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.hub.down:
                raise Refused(503)
            for pattern, answer in _ROUTES.items():
                if found := re.fullmatch(pattern, f"{self.command} {self.path}"):
                    return answer(self, **found.groupdict())
            raise Refused(404, message=f"the stand-in has no {self.command} {self.path}")
        except Refused as refused:
            self._send(refused.status, b"", refused.headers)

    do_GET = do_POST = do_PUT = do_HEAD = _any

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, size: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if size is None else size), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, *, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @property
    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _repo(self, kind: str, id: str, *, write: bool = False) -> Repo:
        repo = self.hub.repos.get((kind, id))
        if repo is None or (repo.private and self._token not in (TOKEN, READER)):
            raise Refused(404 if self._token else 401, "RepoNotFound", "Repository not found")
        if repo.gated:
            raise Refused(403, "GatedRepo")
        if write and self._token != TOKEN:
            raise Refused(403, message="you have no right to write here")
        return repo

    def _files(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]]:
        if (sha := repo.named(revision)) is None:
            raise Refused(404, "RevisionNotFound")
        return sha, repo.commits[sha]

    def create(self) -> None:
        asked = json.loads(self.body)
        key = asked.get("type", "model"), f"{asked['organization']}/{asked['name']}"
        if self._token != TOKEN:
            raise Refused(403, message="you have no right to create here")
        made = self.hub.repos.setdefault(key, new := Repo(private=asked.get("visibility") == "private"))
        self._json({"url": f"{self.hub.endpoint}/{key[1]}"}, status=200 if made is new else 409)

    def validate(self) -> None:
        self._json({"errors": [], "warnings": []})

    def info(self, kind: str, id: str, revision: str | None) -> None:
        repo = self._repo(kind, id)
        sha, files = self._files(repo, revision or "main")
        siblings = [{"rfilename": name} for name in files]
        self._json({"id": id, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []})

    def tree(self, kind: str, id: str, revision: str) -> None:
        _, files = self._files(self._repo(kind, id), revision)
        self._json([self._entry(name, content) for name, content in files.items()])

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
        if not name.endswith(REGULAR):
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 100}
        return entry

    def preupload(self, kind: str, id: str, revision: str) -> None:
        files = self._repo(kind, id, write=True).files
        answers = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith(REGULAR) else "lfs",
                "shouldIgnore": False,
                "oid": _oid_of(file["path"], files),
            }
            for file in json.loads(self.body)["files"]
        ]
        self._json({"files": answers})

    def batch(self, kind: str, id: str) -> None:
        self._repo(kind, id, write=True)
        answers = []
        for asked in json.loads(self.body)["objects"]:
            answer = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.objects:
                answer["actions"] = {"upload": {"href": f"{self.hub.endpoint}/objects/{asked['oid']}"}}
            answers.append(answer)
        self._json({"transfer": "basic", "objects": answers})

    def upload(self, oid: str) -> None:
        if _sha256(self.body) != oid:
            raise Refused(400, message="its bytes are others")
        self.hub.objects[oid] = self.body
        self._json({})

    def commit(self, kind: str, id: str, revision: str) -> None:
        repo = self._repo(kind, id, write=True)
        files, title = dict(repo.files), ""
        for step in map(json.loads, self.body.splitlines()):
            value = step["value"]
            if step["key"] == "header":
                title = value["summary"]
            elif step["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif step["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                assert step["key"] == "deletedFile", step
                del files[value["path"]]
        sha = repo.commit(files, title)
        self._json({"commitUrl": f"{self.hub.endpoint}/{id}/commit/{sha}", "commitOid": sha})

    def resolve(self, kind: str, id: str, revision: str, name: str) -> None:
        sha, files = self._files(self._repo(kind, id), revision)
        if name not in files:
            raise Refused(404, "EntryNotFound")
        content = files[name]
        etag = _sha256(content) if not name.endswith(REGULAR) else _oid(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        start = int(re.findall(r"\d+", self.headers.get("Range") or "0")[0])
        if self.command == "HEAD":
            return self._send(200, b"", headers, size=len(content))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        end = next((end for end in self.hub.cut if name.endswith(end)), None)
        if end is not None:
            self.close_connection = True
            return self._send(
                206 if start else 200, content[start:][: self.hub.cut.pop(end)], headers, size=len(content)
            )
        return self._send(206 if start else 200, content[start:], headers)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _oid(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _oid_of(name: str, files: dict[str, bytes]) -> str | None:
    if name not in files:
        return None
    return _oid(files[name]) if name.endswith(REGULAR) else _sha256(files[name])


_REPO = r"/api/(?P<kind>model|dataset)s/(?P<id>[^/]+/[^/]+)"
_MODEL, _DATASET = r"/(?P<id>(?!datasets/)[^/]+/[^/]+)", r"/datasets/(?P<id>[^/]+/[^/]+)"


def _of(kind: str, answer: str) -> Any:
    return lambda handler, **found: getattr(handler, answer)(kind, **found)


_ROUTES = {
    "POST /api/repos/create": _Handler.create,
    "POST /api/validate-yaml": _Handler.validate,
    f"GET {_REPO}(?:/revision/(?P<revision>.+))?": _Handler.info,
    f"GET {_REPO}/tree/(?P<revision>.+)": _Handler.tree,
    f"POST {_REPO}/preupload/(?P<revision>.+)": _Handler.preupload,
    f"POST {_REPO}/commit/(?P<revision>.+)": _Handler.commit,
    f"POST {_MODEL}.git/info/lfs/objects/batch": _of("model", "batch"),
    f"POST {_DATASET}.git/info/lfs/objects/batch": _of("dataset", "batch"),
    "PUT /objects/(?P<oid>.+)": _Handler.upload,
    f"(?:GET|HEAD) {_MODEL}/resolve/(?P<revision>[^/]+)/(?P<name>.+)": _of("model", "resolve"),
    f"(?:GET|HEAD) {_DATASET}/resolve/(?P<revision>[^/]+)/(?P<name>.+)": _of("dataset", "resolve"),
}
