"""The service on Ray Serve: replicas that have the model, and a door before them that speaks HTTP.

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

from infra.errors import AwayError
from infra.fields import from_plain
from pipelines.serving.application import Model
from pipelines.serving.application import application as asgi_application
from pipelines.serving.asked import Asked
from pipelines.serving.guard import digest
from pipelines.serving.schema import Described
from pipelines.serving.settings import TOKEN, Settings

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Requests hold what people look for."""
_TRIES = 3  # of a request whose replica died: what is asked changes nothing
_AGAIN = 0.2  # seconds after which it is asked again
_SPARE = 32  # requests that the door has beside those that the model may have
_ENDING = 3.0  # seconds for what is under way when a replica is to end


@serve.deployment
class Replica:
    """A process that has the model.

    Args:
        settings: as JSON.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        said = from_plain(Settings, settings)
        os.environ |= {
            name: value
            for name, value in (("POLYPOOL_HOME", said.home), ("MLFLOW_TRACKING_URI", said.tracking))
            if value
        }
        if not said.replicas.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from pipelines.serving.service import Service

        self._service = Service(said)
        self._service.warm()
        self._one.set_max_batch_size(said.limits.max_batch)
        self._one.set_batch_wait_timeout_s(said.limits.batch_wait_ms / 1000)

    def describe(self) -> dict[str, Any]:
        """Return what is served, as JSON."""
        return self._service.described.model_dump()

    async def answer(self, asked: Sequence[Asked]) -> list[dict[str, Any] | Exception]:
        """Return the columns of each row, or why there are none."""
        return await asyncio.gather(*(self._one(each) for each in asked))

    @serve.batch
    async def _one(self, asked: list[Asked]) -> list[dict[str, Any] | Exception]:
        """Answer rows of whoever asks at this moment."""
        return await asyncio.to_thread(self._service.answer, asked)

    async def check_health(self) -> None:
        """Answer an example; Ray Serve replaces a replica that cannot."""
        await asyncio.to_thread(self._service.check)

    async def check(self) -> None:
        """Answer an example, for whoever asks for the health of the service."""
        await self.check_health()


@serve.deployment
@serve.ingress()
class Door:
    """The process that speaks HTTP: it refuses what cannot be answered, and asks again where a replica dies.

    Args:
        replicas: have the model.
        settings: as JSON.
    """

    def __init__(self, replicas: DeploymentHandle, settings: dict[str, Any]) -> None:
        self._replicas, self._settings = replicas, from_plain(Settings, settings)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application, once a replica has said what it is."""
        described = Described.model_validate(await self._replicas.describe.remote())
        return asgi_application(described, self._settings, Model(answer=self._answer, check=self._check))

    async def _answer(self, asked: Sequence[Asked]) -> Sequence[dict[str, Any] | Exception]:
        return await self._ask(self._replicas.answer, asked)

    async def _check(self) -> None:
        await self._ask(self._replicas.check)

    async def _ask(self, method: DeploymentHandle, *args: Any) -> Any:
        for _ in range(_TRIES):
            try:
                return await method.remote(*args)
            except BackPressureError as error:
                raise AwayError("too many ask at once; try again in a moment") from error
            except DeploymentUnavailableError as error:
                raise AwayError("the model is not there now; try again in a moment") from error
            except RayActorError:
                await asyncio.sleep(_AGAIN)
        raise AwayError("the process of the model died, and so did others; try again in a moment")


def build(settings: Settings) -> Application:
    """Return the service as Ray Serve runs it."""
    plain = json.loads(json.dumps(asdict(settings)))
    limits, replicas = settings.limits, settings.replicas
    ending = {"graceful_shutdown_timeout_s": _ENDING, "graceful_shutdown_wait_loop_s": 0.2}
    model = Replica.options(
        num_replicas=replicas.replicas,
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=limits.max_queued,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        logging_config=LOGGING,
        **ending,
    )
    most = replicas.replicas * limits.max_ongoing + limits.max_queued + _SPARE
    door = Door.options(
        num_replicas=1,  # it alone counts what waits and what is held
        max_ongoing_requests=most,
        max_queued_requests=_SPARE,
        ray_actor_options={"num_cpus": 0},
        logging_config=LOGGING,
        **ending,
    )
    return door.bind(model.bind(plain), plain)


def application(args: dict[str, Any]) -> Application:
    """Return the service for `serve run pipelines.serving.deployment:application source=RUN_ID`, or a config file.

    Args:
        args: fields of `Settings`. The token is that of POLYPOOL_SERVE_TOKEN, where `token` is not given.

    Raises:
        InputError: a field that there is not, or a value that does not fit.
    """
    settings = from_plain(Settings, args)
    if not settings.token and (token := os.environ.get(TOKEN)):
        settings = replace(settings, token=digest(token))
    return build(settings)
