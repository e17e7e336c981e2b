"""Start of a service: checks of its address and token, the model, then uvicorn or Ray Serve until Ctrl-C."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.paths import home
from polypool.infra.process.stopping import exit_now, set_handler
from polypool.infra.ray import on_cluster, ray_session
from polypool.infra.storage import Url, place
from polypool.infra.tracking import resolve_run, tracking_uri
from polypool.pipelines.serving.schema import Described
from polypool.pipelines.serving.settings import LOOPBACK, OPEN, TOKEN, Place, Settings, digest, read_token

if TYPE_CHECKING:
    from polypool.pipelines.serving.service import Service

CONNECTIONS = 512  # at once; requests of more get 503
ENDING = 4  # seconds after Ctrl-C for requests in progress


def serve(settings: Settings, at: Place, *, token_file: Path | None, open_to_all: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        settings: what is served; its token, home and tracking server are set here.
        at: where.
        token_file: has the token that clients must send; without, that of the environment, if any.
        open_to_all: answer other machines without a token, too.

    Raises:
        InputError: Ray Serve is needed and not installed; no such model, or none that reads rows; an address that
            cannot be used; or a service that would be open to other machines without a token.
    """
    settings = complete(settings, at, token_file=token_file)
    on_ray = settings.replicas.replicas > 0
    on_other = on_ray and on_cluster()
    if (at.host not in LOOPBACK or on_other) and not (settings.token or open_to_all):
        where = "a cluster" if on_other else f"--host {at.host}"
        raise InputError(f"{where}: other machines reach it; {OPEN}")
    settings = replace(settings, local=at.host in LOOPBACK and not on_other)
    if at.route != "/" and not on_other:
        raise InputError("--route is for services of a Ray cluster; give --replicas, and set RAY_ADDRESS")
    token = f"$(cat {shlex.quote(str(token_file))})" if token_file else f"${TOKEN}"
    token = token if settings.token else ""
    listening, at = at.listen()  # refuses a port that is taken before anything is loaded
    if on_ray:
        with needed("serve"):
            import ray.serve  # noqa: F401
    settings = with_run_id(settings)  # so that all replicas have the same run
    if on_ray:
        listening.close()
        _serve_on_ray(settings, at, token=token)
        return
    with listening, needed("serve"):
        import uvicorn

        from polypool.pipelines.serving.app import application

        service = _loaded(settings)
        for about in service.warm():
            print(about, flush=True)
        print(how_to_use(at.address, service.described, token=token), flush=True)
        config = uvicorn.Config(
            application(service),
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=ENDING,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # requests hold what people look for
            server_header=False,
        )
        set_handler(exit_now)  # after the requests in progress, though the model may still compute
        uvicorn.Server(config).run(sockets=[listening])


def _loaded(settings: Settings) -> Service:
    from polypool.pipelines.serving.service import Service

    service = Service.load(settings)
    for note in service.notes:
        print(f"note: {note}", flush=True)
    return service


def _serve_on_ray(settings: Settings, at: Place, *, token: str) -> None:
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    from polypool.pipelines.serving.ray import running, wait

    described = _loaded(settings).described  # refuses what cannot be served before Ray starts
    with ray_session():
        parts = (described.title, described.task, described.source)
        print(f"{' · '.join(filter(None, parts))}: {settings.replicas.replicas} being loaded ...", flush=True)
        with running(settings, at):
            print(how_to_use(at.address, described, token=token), flush=True)
            wait(at.name)


def complete(settings: Settings, at: Place, *, token_file: Path | None) -> Settings:
    """Return settings with the token's digest and the places of this machine, after checks of what was given.

    Raises:
        InputError: no such token, or one that is too easy to guess; a route that is none.
    """
    if not at.route.startswith("/") or "{" in at.route:
        raise InputError(f"--route {at.route!r} must be a path that begins with /, such as /{at.name}")
    if not at.name:
        raise InputError("--name must not be empty")
    token = read_token(token_file)
    source, folder = place(settings.source), home()
    if not isinstance(source, Url) and settings.source and ("/" in settings.source or source.is_dir()):
        source = source.absolute()
    return replace(
        settings,
        source=str(source) if settings.source else "",
        token=digest(token) if token else "",
        page=settings.page and not token,  # a browser sends no token
        home=str(folder),
        tracking=tracking_uri(folder),
    )


def with_run_id(settings: Settings) -> Settings:
    """Return settings with the id of the run that they name; those of a folder or URL stay as they are."""
    if isinstance(place(settings.source), Url) or "/" in settings.source:
        return settings
    return replace(settings, source=resolve_run(settings.tracking, settings.source))


def how_to_use(address: str, described: Described, *, token: str) -> str:
    """Return where the service is, an example of its use, and how it ends."""
    visual = (
        f'"features": [[... {described.features} numbers], ...]' if described.features else '"image": "..."'
    )
    route = described.routes[0]
    row = '"text": "a dog on the grass"' if route == "embed" else f'{visual}, "text": "..."'
    header = f' -H "Authorization: Bearer {token}"' if token else ""
    page = "a page, " if described.page else ""
    return (
        f"{address}  ({page}{', '.join('/' + name for name in described.routes)}; Ctrl-C ends it)\n"
        f"curl {address}/{route} -H 'Content-Type: application/json'{header} -d '{{\"rows\": [{{{row}}}]}}'"
    )
