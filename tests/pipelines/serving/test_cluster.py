"""The service on Ray Serve: requests, replacement of a killed replica, conflicts with other services."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pytest
from searchable import with_pictures
from untrained_runs import track_untrained

from polypool.infra.errors import AwayError, InputError
from polypool.infra.paths import home as home_folder
from polypool.infra.ray import free_ports
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.serving.schema import Address, Limits, Replicas, Settings
from polypool.pipelines.serving.start import running

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("one_ray")]

NAME = "tiny"


def ask(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and parsed body; GET without a body, else POST."""
    answer = httpx.request("GET" if body is None else "POST", f"{address}{path}", json=body, timeout=120)
    return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    run_id = track_untrained(with_pictures(home, train=8, val=4, test=12))
    return Settings(
        source=run_id,
        replicas=Replicas(replicas=2, cpus=0.5),
        limits=Limits(max_ongoing=8, max_queued=16),
        home=str(home_folder()),
        tracking=tracking_uri(home_folder()),
    )


@pytest.fixture(scope="module")
def trained(settings: Settings) -> TrainedModel:
    return load(settings.source)


@pytest.fixture(scope="module")
def address(settings: Settings) -> Iterator[str]:
    """Serve the run on a shared Ray cluster; return its address."""
    from ray import serve

    place = Address(host="127.0.0.1", port=free_ports(1)[0], route=f"/{NAME}", name=NAME)
    with running(settings, place):
        yield place.address
    assert serve.status().applications == {}, "the service must remove its application"
    serve.shutdown()


def replicas() -> list[Any]:
    """Return the replica processes."""
    import ray  # noqa: F401 (brings psutil)

    named = psutil.process_iter(["name"])
    return [process for process in named if "Replica:tiny" in process.info["name"].replace("#", ":")]


def test_served_answers_equal_model_outputs(address, trained):
    features = np.random.default_rng(0).random((3, trained.adapter.visual_dim), dtype=np.float32)
    rows = [{"text": "a dog"}, {"features": features.tolist()}]
    status, found = ask(address, "/embed", {"rows": rows})
    assert status == 200
    expected = [trained.encode_text(["a dog"])[0], trained.encode_visual([features])[0]]
    np.testing.assert_allclose([row["embedding"] for row in found["rows"]], np.stack(expected), atol=1e-5)
    assert ask(address, "/health") == (200, {"status": "ok"})
    assert ask(address, "/")[1]["routes"] == ["embed", "score", "search"]
    status, said = ask(address, "/embed", {"rows": [{"text": "a dog"}, {"text": "?"}]})
    assert (status, said["error"][:28]) == (400, "row 1: a text without a word")
    assert ask(address, "/answer", {"rows": rows})[0] == 404


def test_killed_replica_is_replaced(address, trained):
    before = {process.pid for process in replicas()}
    replicas()[0].kill()
    wait_for(lambda: len({process.pid for process in replicas()} - before) == 1 and len(replicas()) == 2)
    wait_for(lambda: ask(address, "/health")[0] == 200)
    status, found = ask(address, "/embed", {"rows": [{"text": "a dog"}]})
    assert status == 200
    np.testing.assert_allclose(found["rows"][0]["embedding"], trained.encode_text(["a dog"])[0], atol=1e-5)


def test_conflicting_services_are_refused(address, settings):
    port = urlsplit(address).port

    def begin(name: str, route: str, settings: Settings = settings) -> None:
        with running(settings, Address(host="127.0.0.1", port=port, route=route, name=name)):
            pass

    with pytest.raises(InputError, match="a service 'tiny' runs on this cluster already"):
        begin(NAME, "/other")
    with pytest.raises(AwayError, match="/tiny"):
        begin("other", f"/{NAME}")
    with pytest.raises(AwayError, match=r"99 replicas need 1 CPUs each, and the cluster has 2; use fewer"):
        begin("other", "/other", Settings(source="x", replicas=Replicas(replicas=99)))
    assert ask(address, "/health")[0] == 200


def wait_for(holds) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.1)
