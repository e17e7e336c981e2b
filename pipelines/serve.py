"""`python -m pipelines.serve RUN`: embeddings, scores, answers and search of a trained model over HTTP, on Ray Serve.

    python -m pipelines.serve RUN_ID
    curl localhost:8000/embed -H 'Content-Type: application/json' -d '{"rows": [{"text": "a dog on the grass"}]}'

`GET /` says what is served, `GET /openapi.json` in which form, `GET /health` whether the model answers. Rows of those
who ask at the same time go through the model together. It runs on a Ray of its own, or on the cluster that RAY_ADDRESS
names.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.storage.places import Url, local, place
from pipelines.searching import Method
from pipelines.serving.settings import TOKEN, Limits, Replicas, Settings

if TYPE_CHECKING:
    from pipelines.serving.schema import Described

QUIET = {"RAY_SERVE_LOG_TO_STDERR": "0"}
"""What Ray's processes are told: what Ray Serve does is in its files, not in the terminal."""
_SHORTEST = 16  # characters of a token


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What is served, where, and to whom."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained, or the folder or URL that `export` made of one."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own needs a token, or --open."""
    port: int = 8000
    """Its port; 0 for a free one."""
    route: str = "/"
    """What all addresses begin with, where a cluster has several services."""
    name: str = "polypool"
    """The service's name on the cluster."""
    token_file: Path | None = None
    """File with the token that whoever asks must send; without, that of POLYPOOL_SERVE_TOKEN, and none where that is
    not set."""
    open: bool = False
    """Let whoever reaches it ask, also from other machines and without a token."""
    split: str | None = None
    """The split that is searched; where not given, test, if the corpus is at hand."""
    search: bool = True
    """Search the run's corpus."""
    images: bool = True
    """Take images for a model that reads features, which the backbone of its store then makes."""
    index: Method = "auto"
    """How a split is searched, as in `search`."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run or its store may name, as module:Name; once for each."""
    replicas: tyro.conf.OmitArgPrefixes[Replicas] = field(default_factory=Replicas)
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)


def serve(options: ServeOptions) -> None:
    """Serve until Ctrl-C.

    Raises:
        InputError: Ray Serve is not installed; no such model, or none that reads rows; a place that cannot be had; or a
            service that would be open to other machines without a token.
    """
    os.environ |= {name: value for name, value in QUIET.items() if name not in os.environ}
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise InputError(f"`serve` needs Ray Serve: pip install 'polypool[serve]' ({error})") from error
    settings = settings_of(options)
    os.environ.pop(TOKEN, None)  # replicas need its digest alone
    from infra.ray import session
    from infra.ray.ending import be_quiet
    from pipelines.serving import running

    if options.host not in running.LOOPBACK and not (settings.token or options.open):
        raise InputError(f"--host {options.host}: other machines reach it; {running.OPEN}")
    at = running.Place(host=options.host, port=options.port, route=options.route, name=options.name)
    if os.environ.get("RAY_ADDRESS", "local") == "local":
        at = running.free_place(at)
    with session.ray_beside():
        described, notes = examined(settings)
        for note in notes:
            print(f"note: {note}", flush=True)
        with session.ray_session() as opened:
            be_quiet()
            print(f"{_what(described)}: {settings.replicas.replicas} being loaded ...", flush=True)
            with running.running(settings, at, opened, open_to_all=options.open) as address:
                print(_how(address, described, token=_shown(options, settings)), flush=True)
                running.wait(options.name)


def settings_of(options: ServeOptions) -> Settings:
    """Return what replicas have to know.

    Raises:
        InputError: no such token, or one that is guessed too easily; a route that is none.
    """
    from infra.paths import home
    from infra.tracking import tracking_uri
    from pipelines.serving.guard import digest

    if not options.route.startswith("/") or "{" in options.route:
        raise InputError(
            f"--route {options.route!r} must be a path that begins with /, such as /{options.name}"
        )
    if not options.name:
        raise InputError("--name must not be empty")
    token = _token(options.token_file)
    source = place(options.run_id)
    if not isinstance(source, Url) and ("/" in options.run_id or source.is_dir()):
        source = source.absolute()
    folder = home()
    return Settings(
        source=str(source),
        split=options.split,
        search=options.search,
        images=options.images,
        index=options.index,
        trust=options.trust,
        replicas=options.replicas,
        limits=options.limits,
        token=digest(token) if token else "",
        home=str(folder),
        tracking=tracking_uri(folder),
    )


def _token(file: Path | None) -> str:
    where = TOKEN
    if file:
        where = str(file)
        try:
            token = local(file, what="a file with a token").read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--token-file {file}: cannot be read: {error}") from error
    else:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            return ""
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{where}: a token has at least {_SHORTEST} characters, of ASCII and without spaces; make one with "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def examined(settings: Settings) -> tuple[Described, list[str]]:
    """Return what will be served, and what of it will not; the model is loaded, and forgotten.

    Raises:
        InputError: no such model, none that reads rows, or a split that cannot be searched.
    """
    from pipelines.serving.service import Service

    service = Service(settings)
    return service.described, service.notes


def _what(described: Described) -> str:
    return " · ".join(
        filter(None, (described.recipe, described.task, described.aggregator, described.source))
    )


def _shown(options: ServeOptions, settings: Settings) -> str:
    """Return how a shell gets the token; nothing where none is asked for."""
    if not settings.token:
        return ""
    return f"$(cat {shlex.quote(str(options.token_file))})" if options.token_file else f"${TOKEN}"


def _how(address: str, described: Described, *, token: str) -> str:
    """Return where the service is, how it is asked and how it ends."""
    visual = (
        f'"features": [[... {described.features} numbers], ...]' if described.features else '"image": "..."'
    )
    route = described.routes[0]
    asked = '"text": "a dog on the grass"' if route == "embed" else f'{visual}, "text": "..."'
    header = f' -H "Authorization: Bearer {token}"' if token else ""
    return "\n".join(
        [
            f"{address}  ({', '.join('/' + name for name in described.routes)}; Ctrl-C ends it)",
            f"curl {address}/{route} -H 'Content-Type: application/json'{header} -d '{{\"rows\": [{{{asked}}}]}}'",
        ]
    )


@command
def main() -> None:
    """Serve a trained model."""
    serve(tyro.cli(ServeOptions, prog="python -m pipelines.serve", description=__doc__))


if __name__ == "__main__":
    main()
