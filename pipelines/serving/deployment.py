"""The application on Ray Serve: replicas that have the model, and before them what speaks HTTP; its start.

On a private Ray that is the process of `serve`, on a cluster one of Ray Serve. `application` is what `serve run` and
`serve deploy` take, with the fields of `Settings` as its arguments.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig, ServeInstanceDetails
from starlette.types import ASGIApp

from polypool.infra.errors import AwayError, InputError
from polypool.infra.fields import from_plain
from polypool.infra.ray.internals import serve_on_loopback
from polypool.infra.ray.session import cores
from polypool.pipelines.serving.application import application as asgi_application
from polypool.pipelines.serving.model import LocalModel
from polypool.pipelines.serving.page import PageContent, PageRequest
from polypool.pipelines.serving.schema import Described, ModelRequest
from polypool.pipelines.serving.service import Answered, Service
from polypool.pipelines.serving.settings import LOOPBACK, OPEN, TOKEN, Place, Replicas, Settings, digest

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Requests hold what people look for."""
_TRIES = 3  # of a request whose replica died; requests change nothing
_PAUSE = 0.2  # seconds between them
_SPARE = 512  # requests of the ingress beside those that the model may have; Ray Serve refuses others in plain text
_ENDING = 3.0  # seconds for requests in progress when a replica ends
_LOOKS = 2.0  # seconds between two looks at the service
_LEAVING = 10.0  # seconds for a service to leave a cluster that stays


@serve.deployment
class Replica(LocalModel):
    """A process that has the model.

    Args:
        settings: as JSON.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        serve_on_loopback()
        read = from_plain(Settings, settings)
        places = {"POLYPOOL_HOME": read.home, "MLFLOW_TRACKING_URI": read.tracking}
        os.environ |= {name: value for name, value in places.items() if value}
        if not read.replicas.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when torch first looks for devices
        service = Service.load(read)
        for about in service.warm():
            logging.getLogger("ray.serve").info(about)
        super().__init__(service, waiting=2 * read.limits.max_ongoing)  # Ray Serve limits them

    def describe(self) -> dict[str, Any]:
        """Return what is served, as JSON."""
        return self.service.described.model_dump()

    async def check_health(self) -> None:
        """Answer an example; Ray Serve replaces a replica that cannot."""
        await self.check()


@serve.deployment
@serve.ingress()
class Ingress:
    """The process that speaks HTTP: it refuses what cannot be answered, and tries again where a replica dies.

    Args:
        replicas: have the model.
        settings: as JSON.
    """

    def __init__(self, replicas: DeploymentHandle, settings: dict[str, Any]) -> None:
        self._replicas, self._settings = replicas, from_plain(Settings, settings)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application, once a replica has described itself."""
        described = Described.model_validate(await self._replicas.describe.remote())
        return asgi_application(described, self._settings, RemoteModel(self._replicas))


class RemoteModel:
    """A `Model` in the replicas of a deployment."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[Answered]:
        return await self._call(self._replicas.answer, rows)

    async def check(self) -> None:
        await self._call(self._replicas.check)

    async def page(self, request: PageRequest) -> PageContent:
        return await self._call(self._replicas.page, request)

    async def picture(self, id: str, moving: bool) -> bytes | None:
        return await self._call(self._replicas.picture, id, moving)

    async def _call(self, method: DeploymentHandle, *args: Any) -> Any:
        for _ in range(_TRIES):
            try:
                return await method.remote(*args)
            except BackPressureError as error:
                raise AwayError("too many ask at once; try again in a moment") from error
            except DeploymentUnavailableError as error:
                raise AwayError("the model is not there now; try again in a moment") from error
            except RayActorError:
                await asyncio.sleep(_PAUSE)
        raise AwayError("the process of the model died, and so did others; try again in a moment")


_Replica: Any = Replica  # decorators whose types Ray does not declare
_Ingress: Any = Ingress


_OPTIONS: dict[str, Any] = {
    "logging_config": LOGGING,
    "graceful_shutdown_timeout_s": _ENDING,
    "graceful_shutdown_wait_loop_s": 0.2,
}


def build_model(settings: Settings) -> Application:
    """Return the replicas as Ray Serve runs them, without what speaks HTTP; at least one."""
    limits, replicas = settings.limits, settings.replicas
    model = _Replica.options(
        num_replicas=max(1, replicas.replicas),
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=limits.max_queued,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        **_OPTIONS,
    )
    return model.bind(_plain(settings))


def build(settings: Settings) -> Application:
    """Return the service as Ray Serve runs it; at least one replica."""
    limits = settings.limits
    ingress = _Ingress.options(
        num_replicas=1,  # it alone counts waiting requests and their bytes
        max_ongoing_requests=max(1, settings.replicas.replicas) * limits.max_ongoing
        + limits.max_queued
        + _SPARE,
        max_queued_requests=_SPARE,
        ray_actor_options={"num_cpus": 0},
        **_OPTIONS,
    )
    return ingress.bind(build_model(settings), _plain(settings))


def _plain(settings: Settings) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(settings)))


def application(args: dict[str, Any]) -> Application:
    """Return the service for `serve run polypool.pipelines.serving.deployment:application source=RUN_ID`.

    Args:
        args: fields of `Settings`. The token is that of POLYPOOL_SERVE_TOKEN, where `token` is not given.

    Raises:
        InputError: an unknown field, or a value that does not fit.
    """
    settings = from_plain(Settings, args)
    if not settings.token and (token := os.environ.get(TOKEN)):
        settings = replace(settings, token=digest(token))
    return build(settings)


@contextmanager
def running(settings: Settings, place: Place, *, open_to_all: bool) -> Iterator[str]:
    """Run a service on the cluster of the open session, which stays; yield its address, and end it.

    Args:
        settings: what is served.
        place: where it is reached. Where Ray Serve runs already, its host and port hold.
        open_to_all: whether other machines may use it without a token.

    Raises:
        InputError: a service of this name, or another one at its route, runs; or it would be open without a token.
        AwayError: there is no room for it, or it did not begin.
    """
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    _check_room(settings.replicas)
    _check_name_and_route(place)
    there = _start(place)
    if there.host not in LOOPBACK and not (settings.token or open_to_all):
        raise InputError(
            f"the Ray Serve of this cluster listens on {there.host}:{there.port}, where other machines reach it; {OPEN}"
        )
    app = build(replace(settings, local=there.host in LOOPBACK))
    try:
        _run(app, place.name, place.route)
        yield there.address
    finally:
        _delete(place.name)


def private_replicas(settings: Settings, name: str) -> RemoteModel:
    """Start the replicas alone on the private Ray of the open session, with which they end; return their model.

    Raises:
        AwayError: there is no room for them, or they did not begin.
    """
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    _check_room(settings.replicas)
    serve.start(proxy_location=ProxyLocation.Disabled, logging_config=LOGGING)
    return RemoteModel(_run(build_model(settings), name, None))


def _run(app: Application, name: str, route: str | None) -> DeploymentHandle:
    try:
        return serve.run(app, name=name, route_prefix=route, logging_config=LOGGING)
    except (RuntimeError, RayServeException) as error:
        raise AwayError(f"the service did not begin: {_why(name) or error}") from error


def check(name: str) -> None:
    """Check that a service runs.

    Raises:
        AwayError: the service ended, or its cluster.
    """
    try:
        there = ray.is_initialized() and name in serve.status().applications  # which would start another Ray
    except Exception as error:  # whatever Ray raises where the cluster is gone
        raise AwayError("the Ray that the service ran on no longer answers") from error
    if not there:
        raise AwayError(f"the service {name!r} was ended by another process")


def wait(name: str) -> None:
    """Wait until this process is stopped; raises as `check`."""
    while True:
        time.sleep(_LOOKS)
        check(name)


def _check_room(replicas: Replicas) -> None:
    for kind, each in (("CPU", replicas.cpus), ("GPU", replicas.gpus)):
        if each * replicas.replicas > (has := cores(kind)):
            raise AwayError(
                f"{replicas.replicas} replicas of {each:g} {kind}s each, and the cluster has {has}; use fewer "
                f"(--replicas, --{kind.lower()}s)"
            )


def _check_name_and_route(place: Place) -> None:
    """Refuse a name or a route that another service of the cluster has: Ray Serve would replace that one."""
    client = _get_global_client(raise_if_no_controller_running=False)
    details = ServeInstanceDetails(**client.get_serve_details()) if client else None
    for name, other in details.applications.items() if details else ():
        if name == place.name:
            raise InputError(
                f"a service {name!r} runs on this cluster already; choose another --name, with a --route of its own"
            )
        if other.route_prefix == place.route:
            raise InputError(
                f"the service {name!r} of this cluster is at {place.route}; choose another --route, such as "
                f"/{place.name}"
            )


def _start(place: Place) -> Place:
    """Start Ray Serve where it does not run yet; return where it is."""
    try:
        serve.start(
            proxy_location=ProxyLocation.HeadOnly,  # one address, so that waiting requests are counted once
            http_options={"host": place.host, "port": place.port},
            logging_config=LOGGING,
        )
    except (RuntimeError, TimeoutError, RayError) as error:
        raise AwayError(f"Ray Serve did not begin on {place.host}:{place.port}: {error}") from error
    client = _get_global_client()
    assert client is not None
    options = client.http_config
    return replace(place, host=options.host or "0.0.0.0", port=options.port)


def _why(name: str) -> str:
    """Return the last error that Ray Serve reports of a service that did not begin."""
    with suppress(Exception):
        app = serve.status().applications[name]
        messages = [of.message for of in app.deployments.values() if of.message] or [app.message]
        lines = [line for text in messages for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines)[-1].strip()
    return ""


def _delete(name: str) -> None:
    """End a service of a cluster that stays, unless the cluster does not answer in time."""

    def delete() -> None:
        with suppress(Exception):
            serve.delete(name)

    leaving = threading.Thread(target=delete, daemon=True)
    leaving.start()
    leaving.join(_LEAVING)
