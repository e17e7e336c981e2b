"""Start and end of a service on Ray Serve, on the Ray that is at hand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from polypool.infra.errors import AwayError, InputError
from polypool.infra.ray.session import Session, cores
from polypool.pipelines.serving.settings import LOOPBACK, OPEN, Place

if TYPE_CHECKING:
    from polypool.pipelines.serving.settings import Replicas, Settings

_LOOKS = 2.0  # seconds between two looks at the service
_ENDING = 10.0  # seconds for a service to leave a cluster that stays


@contextmanager
def running(settings: Settings, place: Place, session: Session, *, open_to_all: bool) -> Iterator[str]:
    """Run a service on the cluster of the open session, yield its address, and end it.

    Args:
        settings: what is served.
        place: where it is reached. Where Ray Serve runs already, its host and port hold.
        session: that is open.
        open_to_all: whether other machines may use it without a token.

    Raises:
        InputError: a service of this name, or another one at its route, runs; or it would be open without a token.
        AwayError: there is no room for it, or it did not begin.
    """
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    from ray import serve

    from polypool.pipelines.serving.deployment import LOGGING, build

    _check_room(settings.replicas)
    _check_name_and_route(place)
    there = _start(place)
    if there.host not in LOOPBACK and not (settings.token or open_to_all):
        raise InputError(
            f"the Ray Serve of this cluster listens on {there.host}:{there.port}, where other machines reach it; {OPEN}"
        )
    app = build(replace(settings, local=there.host in LOOPBACK))
    try:
        try:
            serve.run(app, name=place.name, route_prefix=place.route, logging_config=LOGGING)
        except (RuntimeError, RayServeException) as error:
            raise AwayError(f"the service did not begin: {_why(place.name) or error}") from error
        yield there.address
    finally:
        if not session.private:  # one of its own ends with all that is in it
            _delete(place.name)


def wait(name: str) -> None:
    """Wait until this process is stopped.

    Raises:
        AwayError: the service ended, or its cluster.
    """
    from ray import serve

    while True:
        time.sleep(_LOOKS)
        try:
            there = name in serve.status().applications
        except Exception as error:  # whatever Ray raises where the cluster is gone
            raise AwayError("the Ray that the service ran on no longer answers") from error
        if not there:
            raise AwayError(f"the service {name!r} was ended by another process")


def _check_room(replicas: Replicas) -> None:
    for kind, each in (("CPU", replicas.cpus), ("GPU", replicas.gpus)):
        if each * replicas.replicas > (has := cores(kind)):
            raise AwayError(
                f"{replicas.replicas} replicas of {each:g} {kind}s each, and the cluster has {has}; use fewer "
                f"(--replicas, --{kind.lower()}s)"
            )


def _check_name_and_route(place: Place) -> None:
    """Refuse a name or a route that another service of the cluster has: Ray Serve would replace that one."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeInstanceDetails

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
    from ray import serve
    from ray.serve.config import ProxyLocation
    from ray.serve.context import _get_global_client

    from polypool.pipelines.serving.deployment import LOGGING

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
    from ray import serve

    with suppress(Exception):
        app = serve.status().applications[name]
        messages = [of.message for of in app.deployments.values() if of.message] or [app.message]
        lines = [line for text in messages for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines)[-1].strip()
    return ""


def _delete(name: str) -> None:
    """End a service of a cluster that stays, unless the cluster does not answer in time."""
    from ray import serve

    def delete() -> None:
        with suppress(Exception):
            serve.delete(name)

    leaving = threading.Thread(target=delete, daemon=True)
    leaving.start()
    leaving.join(_ENDING)
