"""A service begins on the Ray that is at hand, and ends with the command that began it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from infra.errors import AwayError, InputError
from infra.ray.head import free_ports
from infra.ray.session import Session, cores
from pipelines.serving.settings import TOKEN

if TYPE_CHECKING:
    from pipelines.serving.settings import Replicas, Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = f"give a token (--token-file FILE, or {TOKEN}), or say --open where whoever reaches it may ask"
_LOOKS = 2.0  # seconds between two looks at the service
_ENDING = 10.0  # seconds for a service to leave a cluster that stays


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a service is reached.

    Attributes:
        host: the address of the machine that it listens on.
        port: 0 for a free one.
        route: with which its paths begin.
        name: of the service, on a cluster that has several.
    """

    host: str
    port: int
    route: str
    name: str

    @property
    def address(self) -> str:
        """The URL with which the service's addresses begin."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self.route.rstrip('/')}"


def free_place(place: Place) -> Place:
    """Return a place of this machine that nobody listens on.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    if not place.port:
        return replace(place, port=free_ports(1)[0])
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((place.host, place.port))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {place.port} of {place.host} cannot be had: {error}; choose another with --port"
            ) from error
    return place


@contextmanager
def running(settings: Settings, place: Place, session: Session, *, open_to_all: bool) -> Iterator[str]:
    """Run a service on the cluster of the open session, yield its address, and end it.

    Args:
        settings: what is served.
        place: where it is reached. Where Ray Serve runs already, its host and port hold.
        session: that is open.
        open_to_all: whether whoever reaches it may ask without a token, from other machines, too.

    Raises:
        InputError: a service of this name, or another one at its route, is there; or it would be open without a token.
        AwayError: there is no room for it, or it did not begin.
    """
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    from ray import serve

    from pipelines.serving.deployment import LOGGING, build

    _refuse_no_room(settings.replicas)
    _refuse_taken(place)
    there = _begin(place)
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
            _leave(place.name)


def wait(name: str) -> None:
    """Wait until somebody ends this process.

    Raises:
        AwayError: the service ended, or its cluster.
    """
    from ray import serve

    while True:
        time.sleep(_LOOKS)
        try:
            there = name in serve.status().applications
        except Exception as error:  # whatever Ray raises where the cluster is gone
            raise AwayError("the Ray that the service ran on does not answer any more") from error
        if not there:
            raise AwayError(f"the service {name!r} was ended by somebody else")


def _refuse_no_room(replicas: Replicas) -> None:
    for kind, each in (("CPU", replicas.cpus), ("GPU", replicas.gpus)):
        if each * replicas.replicas > (has := cores(kind)):
            raise AwayError(
                f"{replicas.replicas} replicas of {each:g} {kind}s each, and the cluster has {has}; use fewer "
                f"(--replicas, --{kind.lower()}s)"
            )


def _refuse_taken(place: Place) -> None:
    """Refuse a name or a route that another service of the cluster has: Ray Serve would put this one in its place."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeInstanceDetails

    client = _get_global_client(raise_if_no_controller_running=False)
    details = client and ServeInstanceDetails(**client.get_serve_details())
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


def _begin(place: Place) -> Place:
    """Begin Ray Serve where it does not run yet; return where it is."""
    from ray import serve
    from ray.serve.config import ProxyLocation
    from ray.serve.context import _get_global_client

    from pipelines.serving.deployment import LOGGING

    try:
        serve.start(
            proxy_location=ProxyLocation.HeadOnly,  # one address, so that what waits is counted at one place
            http_options={"host": place.host, "port": place.port},
            logging_config=LOGGING,
        )
    except (RuntimeError, TimeoutError, RayError) as error:
        raise AwayError(f"Ray Serve did not begin on {place.host}:{place.port}: {error}") from error
    options = _get_global_client().http_config
    return replace(place, host=options.host or "0.0.0.0", port=options.port)


def _why(name: str) -> str:
    """Return the last line of what Ray Serve says of a service that did not begin."""
    from ray import serve

    with suppress(Exception):
        app = serve.status().applications[name]
        said = [of.message for of in app.deployments.values() if of.message] or [app.message]
        lines = [line for text in said for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines)[-1].strip()
    return ""


def _leave(name: str) -> None:
    """End a service of a cluster that stays; whoever cannot be asked has none any more."""
    from ray import serve

    leaving = threading.Thread(target=partial(_delete, serve, name), daemon=True)
    leaving.start()
    leaving.join(_ENDING)


def _delete(serve: Any, name: str) -> None:
    with suppress(Exception):
        serve.delete(name)
