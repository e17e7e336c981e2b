"""The application in replicas of Ray Serve, which speaks HTTP; its start, here or on a cluster."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from polypool.infra.errors import AwayError, InputError
from polypool.infra.fields import from_plain
from polypool.infra.ray import cores
from polypool.pipelines.serving import app
from polypool.pipelines.serving.service import Service
from polypool.pipelines.serving.settings import TOKEN, Place, Replicas, Settings, digest

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Requests hold what people look for."""
_ENDING = 3.0  # seconds for requests in progress when a replica ends
_LOOKS = 2.0  # seconds between two looks at the service


@serve.deployment
@serve.ingress()
class Replica:
    """A process that has the model.

    Args:
        settings: as JSON.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        read = from_plain(Settings, settings)
        places = {"POLYPOOL_HOME": read.home, "MLFLOW_TRACKING_URI": read.tracking}
        os.environ |= {name: value for name, value in places.items() if value}
        if not read.replicas.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when torch first looks for devices
        self.service = Service.load(read)
        self.service.warm()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return app.application(self.service)

    async def check_health(self) -> None:
        """Answer an example; Ray Serve replaces a replica that cannot."""
        await to_thread.run_sync(self.service.check)


_Replica: Any = Replica  # a decorator whose type Ray does not declare


def build(settings: Settings) -> Application:
    """Return the service as Ray Serve runs it; at least one replica."""
    limits, replicas = settings.limits, settings.replicas
    deployment = _Replica.options(
        num_replicas=max(1, replicas.replicas),
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=limits.max_queued,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        logging_config=LOGGING,
        graceful_shutdown_timeout_s=_ENDING,
    )
    return deployment.bind(json.loads(json.dumps(asdict(settings))))


def application(args: dict[str, Any]) -> Application:
    """Return the service for `serve run polypool.pipelines.serving.ray:application source=RUN_ID`.

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
def running(settings: Settings, place: Place) -> Iterator[None]:
    """Run a service on the Ray of the open session; end it, and nothing else there.

    Raises:
        InputError: a service of this name runs.
        AwayError: there is no room for it, or it did not begin.
    """
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    _check_room(settings.replicas)
    if place.name in serve.status().applications:
        raise InputError(
            f"a service {place.name!r} runs on this cluster already; choose another --name, with a --route of its own"
        )
    try:
        serve.start(http_options={"host": place.host, "port": place.port}, logging_config=LOGGING)
        serve.run(build(settings), name=place.name, route_prefix=place.route, logging_config=LOGGING)
        yield
    except (RuntimeError, TimeoutError, RayError, RayServeException) as error:
        raise AwayError(f"the service did not begin: {error}") from error
    finally:
        serve.delete(place.name)


def wait(name: str) -> None:
    """Wait until this process is stopped.

    Raises:
        AwayError: the service was ended by another process, or its cluster.
    """
    while name in serve.status().applications:
        time.sleep(_LOOKS)
    raise AwayError(f"the service {name!r} was ended by another process")


def _check_room(replicas: Replicas) -> None:
    for kind, each in (("CPU", replicas.cpus), ("GPU", replicas.gpus)):
        if each * replicas.replicas > (has := cores(kind)):
            raise AwayError(
                f"{replicas.replicas} replicas of {each:g} {kind}s each, and the cluster has {has}; use fewer "
                f"(--replicas, --{kind.lower()}s)"
            )
