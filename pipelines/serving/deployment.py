"""The application on Ray Serve: replicas that have the model, and one process before them that speaks HTTP.

`application` is what `serve run` and `serve deploy` take, with the fields of `Settings` as its arguments.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from starlette.types import ASGIApp

from polypool.infra.errors import AwayError
from polypool.infra.fields import from_plain
from polypool.pipelines.serving.application import application as asgi_application
from polypool.pipelines.serving.model import LocalModel
from polypool.pipelines.serving.page import PageContent, PageRequest
from polypool.pipelines.serving.schema import Described, ModelRequest
from polypool.pipelines.serving.settings import TOKEN, Settings, digest

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Requests hold what people look for."""
_TRIES = 3  # of a request whose replica died; requests change nothing
_PAUSE = 0.2  # seconds between them
_SPARE = 32  # requests of the ingress beside those that the model may have
_ENDING = 3.0  # seconds for requests in progress when a replica ends


@serve.deployment
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
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from polypool.pipelines.serving.service import Service  # torch, after the choice of devices

        service = Service.load(read)
        service.warm()
        self._model = LocalModel(service, waiting=2 * read.limits.max_ongoing)  # Ray Serve limits them

    def describe(self) -> dict[str, Any]:
        """Return what is served, as JSON."""
        return self._model.service.described.model_dump()

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[dict[str, Any] | Exception]:
        return await self._model.answer(rows)

    async def page(self, request: PageRequest) -> PageContent:
        return await self._model.page(request)

    async def picture(self, id: str, moving: bool) -> bytes | None:
        return await self._model.picture(id, moving=moving)

    async def check_health(self) -> None:
        """Answer an example; Ray Serve replaces a replica that cannot."""
        await self._model.check()

    async def check(self) -> None:
        await self._model.check()


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

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[dict[str, Any] | Exception]:
        return await self._call(self._replicas.answer, rows)

    async def check(self) -> None:
        await self._call(self._replicas.check)

    async def page(self, request: PageRequest) -> PageContent:
        return await self._call(self._replicas.page, request)

    async def picture(self, id: str, *, moving: bool) -> bytes | None:
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


def build(settings: Settings) -> Application:
    """Return the service as Ray Serve runs it; at least one replica."""
    plain = json.loads(json.dumps(asdict(settings)))
    limits, replicas = settings.limits, settings.replicas
    count = max(1, replicas.replicas)
    ending = {"graceful_shutdown_timeout_s": _ENDING, "graceful_shutdown_wait_loop_s": 0.2}
    model = _Replica.options(
        num_replicas=count,
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=limits.max_queued,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        logging_config=LOGGING,
        **ending,
    )
    ingress = _Ingress.options(
        num_replicas=1,  # it alone counts waiting requests and their bytes
        max_ongoing_requests=count * limits.max_ongoing + limits.max_queued + _SPARE,
        max_queued_requests=_SPARE,
        ray_actor_options={"num_cpus": 0},
        logging_config=LOGGING,
        **ending,
    )
    return ingress.bind(model.bind(plain), plain)


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
