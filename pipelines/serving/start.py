"""Start of a service: checks of its address and token, the model, then uvicorn or Ray Serve until Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import AwayError, InputError
from polypool.infra.extras import needed
from polypool.infra.fields import from_plain
from polypool.infra.paths import home
from polypool.infra.process.stopping import exit_now, set_handler
from polypool.infra.ray import cores, on_cluster, ray_session
from polypool.infra.storage import Url, local, place
from polypool.infra.tracking import resolve_run, tracking_uri
from polypool.pipelines.serving.schema import Address, ModelInfo, Settings

if TYPE_CHECKING:
    from socket import socket

    from ray.serve import Application

    from polypool.pipelines.serving.service import Service

TOKEN = "POLYPOOL_SERVE_TOKEN"
"""Environment variable with the token."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECTIONS = 512  # maximum; further requests get 503
_GRACE_SECONDS = 4  # seconds for requests in progress after Ctrl-C
_MIN_TOKEN = 16  # minimum length of a token
_POLL_SECONDS = 2.0  # seconds between status checks of a service on Ray
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}  # requests contain people's queries


def serve(settings: Settings, at: Address, *, token_file: Path | None, open_to_all: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        settings: settings of the service, without token, home and tracking server.
        at: address.
        token_file: file with the token that clients must send (default: POLYPOOL_SERVE_TOKEN, if set).
        open_to_all: accept other machines without a token.

    Raises:
        InputError: Ray Serve is not installed; no such model, or a model that reads no rows; an unusable address; or a
            service that other machines could reach without a token.
    """
    settings = complete(settings, at, token_file=token_file)
    on_ray = settings.replicas.replicas > 0
    on_other = on_ray and on_cluster()
    if (at.host not in LOOPBACK or on_other) and not (settings.token or open_to_all):
        where = "a cluster" if on_other else f"--host {at.host}"
        raise InputError(
            f"{where}: other machines reach it; give a token (--token-file FILE, or {TOKEN}), or --open to answer any "
            "client without one"
        )
    settings = replace(settings, local=at.host in LOOPBACK and not on_other)
    if at.route != "/" and not on_other:
        raise InputError("--route is for services on a Ray cluster; give --replicas, and set RAY_ADDRESS")
    token = f"$(cat {shlex.quote(str(token_file))})" if token_file else f"${TOKEN}"
    token = token if settings.token else ""
    listening, at = at.listen()  # refuses a taken port before loading the model
    if on_ray:
        os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
        with needed("serve"):
            import ray.serve
    if not isinstance(place(settings.source), Url) and "/" not in settings.source:
        # all replicas load the same run
        settings = replace(settings, source=resolve_run(settings.tracking, settings.source))
    with listening, needed("serve"):
        from polypool.pipelines.serving.service import Service

        service = Service.load(settings)  # refuses invalid settings before Ray starts
        for note in service.notes:
            print(f"note: {note}", flush=True)
        described = service.described
        use = usage(at.address, described, token=token)
        if not on_ray:
            _serve_here(service, listening, use)
            return
        del service
    with ray_session():
        parts = (described.title, described.task, described.source)
        count = settings.replicas.replicas
        print(f"{' · '.join(filter(None, parts))}: loading {count} replicas ...", flush=True)
        with running(settings, at):
            print(use, flush=True)
            while at.name in ray.serve.status().applications:
                time.sleep(_POLL_SECONDS)
            raise AwayError(f"the service {at.name!r} was stopped by another process")


def _serve_here(service: Service, listening: socket, use: str) -> None:
    import uvicorn

    from polypool.pipelines.serving.app import application

    print(*service.warm(), use, sep="\n", flush=True)
    config = uvicorn.Config(
        application(service),
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # requests contain people's queries
        server_header=False,
    )
    set_handler(exit_now)  # once requests have ended, even if the model still computes
    uvicorn.Server(config).run(sockets=[listening])


def complete(settings: Settings, at: Address, *, token_file: Path | None) -> Settings:
    """Validate settings, and add the token's digest and this machine's home and tracking server.

    Raises:
        InputError: a missing or weak token, or an invalid route.
    """
    if not at.route.startswith("/") or "{" in at.route:
        raise InputError(f"--route {at.route!r} must be a path that starts with /, such as /{at.name}")
    token = read_token(token_file)
    source, folder = place(settings.source), home()
    if not isinstance(source, Url) and settings.source and ("/" in settings.source or source.is_dir()):
        source = source.absolute()
    return replace(
        settings,
        source=str(source) if settings.source else "",
        token=sha256(token.encode()).hexdigest() if token else "",
        page=settings.page and not token,  # a browser sends no token
        home=str(folder),
        tracking=tracking_uri(folder),
    )


def read_token(file: Path | None) -> str:
    """Return the token in a file, or in the environment, where it is deleted; empty if none.

    Raises:
        InputError: the file cannot be read, or the token is too short, or has spaces or other than ASCII characters.
    """
    token = os.environ.pop(TOKEN, "").strip()
    if file:
        try:
            token = local(file, what="a file with a token").read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--token-file {file}: cannot be read: {error}") from error
    if not token and not file:
        return ""
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{file or TOKEN}: a token needs at least {_MIN_TOKEN} ASCII characters without spaces; create one with "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def usage(address: str, described: ModelInfo, *, token: str) -> str:
    """Return the address of the service, an example request, and how to stop it."""
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


class Replica:
    """A process of Ray Serve with the model.

    Args:
        settings: settings as parsed JSON.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        read = from_plain(Settings, settings)
        places = {"POLYPOOL_HOME": read.home, "MLFLOW_TRACKING_URI": read.tracking}
        os.environ |= {name: value for name, value in places.items() if value}
        if not read.replicas.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when torch first looks for devices
        from polypool.pipelines.serving.service import Service

        self.service = Service.load(read)
        self.service.warm()

    def __serve_build_asgi_app__(self) -> Any:
        from polypool.pipelines.serving import app

        return app.application(self.service)

    async def check_health(self) -> None:
        """Answer an example; Ray Serve replaces a replica that fails."""
        from anyio import to_thread

        await to_thread.run_sync(self.service.check)


def build(settings: Settings) -> Application:
    """Return the application for Ray Serve, with at least one replica."""
    from ray import serve

    limits, replicas = settings.limits, settings.replicas
    deployment: Any = serve.deployment(serve.ingress()(Replica))
    return deployment.options(
        num_replicas=max(1, replicas.replicas),
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=limits.max_queued,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        logging_config=_LOGGING,
        graceful_shutdown_timeout_s=_GRACE_SECONDS,
    ).bind(json.loads(json.dumps(asdict(settings))))


def application(args: dict[str, Any]) -> Application:
    """Return the application for `serve run polypool.pipelines.serving.start:application source=RUN_ID`.

    Args:
        args: fields of `Settings`; without `token`, the token is in POLYPOOL_SERVE_TOKEN.

    Raises:
        InputError: an unknown field, or an invalid value.
    """
    settings = from_plain(Settings, args)
    if not settings.token and (token := os.environ.get(TOKEN)):
        settings = replace(settings, token=sha256(token.encode()).hexdigest())
    return build(settings)


@contextmanager
def running(settings: Settings, at: Address) -> Iterator[None]:
    """Run a service on the Ray of the open session, and stop only this service at the end.

    Raises:
        InputError: a service of this name is running.
        AwayError: the cluster lacks resources, or the service did not start.
    """
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    replicas = settings.replicas
    for kind, each in (("CPU", replicas.cpus), ("GPU", replicas.gpus)):
        if each * replicas.replicas > (has := cores(kind)):
            raise AwayError(
                f"{replicas.replicas} replicas need {each:g} {kind}s each, and the cluster has {has}; use fewer "
                f"(--replicas, --{kind.lower()}s)"
            )
    if at.name in serve.status().applications:
        raise InputError(
            f"a service {at.name!r} runs on this cluster already; choose another --name and --route"
        )
    try:
        serve.start(http_options={"host": at.host, "port": at.port}, logging_config=_LOGGING)
        serve.run(build(settings), name=at.name, route_prefix=at.route, logging_config=_LOGGING)
        yield
    except (RuntimeError, TimeoutError, RayError, RayServeException) as error:
        raise AwayError(f"the service did not start: {error}") from error
    finally:
        serve.delete(at.name)
