"""The service on Ray Serve: real requests, many at once, a replica that dies, and a cluster that others use, too."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest
from anyio import to_thread
from kept import keep_run
from searchable import ids, with_pictures

from polypool.infra.errors import AwayError, InputError
from polypool.infra.paths import home as home_folder
from polypool.infra.ray.internals import psutil
from polypool.infra.ray.jobs import free_ports
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.serving.application import application
from polypool.pipelines.serving.deployment import _delete, check, private_replicas, running
from polypool.pipelines.serving.local import Server
from polypool.pipelines.serving.schema import Described
from polypool.pipelines.serving.settings import Limits, Place, Replicas, Settings

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("one_ray")]

NAME = "tiny"
TEXTS = [f"a dog and a {noun} {number}" for number in range(25) for noun in ("cat", "car", "boat", "tree")]


def ask(address: str, path: str, body: Any = None, *, host: str = "127.0.0.1") -> tuple[int, Any]:
    """Return the status, and what came; GET where nothing is sent."""
    to = urlsplit(address)
    connection = http.client.HTTPConnection(to.hostname, to.port, timeout=120)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(
            "POST" if data else "GET",
            f"{to.path}{path}",
            data,
            {"Content-Type": "application/json", "Host": host},
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    run_id = keep_run(with_pictures(home, train=8, val=4, test=12))
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
    """Where the run is served, on a cluster that is not the service's own."""
    from ray import serve

    place = Place(host="127.0.0.1", port=free_ports(1)[0], route=f"/{NAME}", name=NAME)
    with running(settings, place, open_to_all=False) as there:
        assert there == f"http://127.0.0.1:{place.port}/{NAME}"
        yield there
    assert serve.status().applications == {}, "it left what was the cluster's"
    serve.shutdown()


def replicas(name: str = NAME) -> dict[str, int]:
    """Return the processes that have the model, by the names of the replicas that run."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeInstanceDetails

    details = ServeInstanceDetails(**_get_global_client().get_serve_details())
    there = details.applications[name].deployments["Replica"].replicas
    return {replica.replica_id: replica.pid for replica in there if replica.state == "RUNNING"}


def test_answers_are_the_models(address, trained):
    features = np.random.default_rng(0).random((3, trained.adapter.visual_dim), dtype=np.float32)
    picture = trained.adapter.corpus.image_path(trained.adapter.corpus.items("test")[0])
    rows = [{"text": "a dog"}, {"features": features.tolist()}]
    status, found = ask(address, "/embed", {"rows": rows})
    assert status == 200
    expected = [trained.encode_text(["a dog"])[0], trained.encode_visual([features])[0]]
    np.testing.assert_allclose([row["embedding"] for row in found["rows"]], np.stack(expected), atol=1e-5)
    row = {"image": base64.b64encode(picture.read_bytes()).decode()}
    status, found = ask(address, "/search", {"rows": [row], "k": 3})
    hits = trained.open_search().find(Query(file=picture), 3)
    assert (status, [hit["caption"] for hit in found["rows"][0]["hits"]]) == (
        200,
        [hit.caption for hit in hits],
    )
    assert ask(address, "/health") == (200, {"status": "ok"})
    assert ask(address, "/")[1]["routes"] == ["embed", "score", "search"]
    assert ask(address, "/openapi.json")[0] == 200
    status, said = ask(address, "/embed", {"rows": [{"text": "a dog"}, {"text": "?"}]})
    assert (status, said["error"][:28]) == (400, "row 1: a text without a word")
    assert ask(address, "/answer", {"rows": rows})[0] == 404


def test_the_page_is_that_of_one_process(address, trained):
    with urlopen(Request(f"{address}/?q=a+dog", headers={"Accept": "text/html"}), timeout=120) as answer:
        html = answer.read().decode()
    hits = trained.open_search().find(Query(text="a dog"), 10)
    assert ids(html) == [hit.id for hit in hits]
    assert f'href="/{NAME}/style.css"' in html
    with urlopen(f"{address}/picture?id={hits[0].id}", timeout=120) as answer:
        assert answer.headers["Content-Type"] == "image/jpeg"


def test_too_many_are_told_to_come_again(address):
    body = {"rows": [{"text": text} for text in TEXTS * 2]}
    answers: list[tuple[int, Any]] = []
    with ThreadPoolExecutor(200) as pool:
        for _ in range(40):  # on a busy machine they may come one after another
            asked = [pool.submit(ask, address, "/embed", body) for _ in range(200)]
            answers += [each.result() for each in asked]
            if any(status == 503 for status, _ in answers):
                break
    assert {status for status, _ in answers} == {200, 503}
    refusals = [said for status, said in answers if status == 503]
    assert all(said == {"error": "too many ask at once; try again in a moment"} for said in refusals)
    assert all(len(said["rows"]) == 200 for status, said in answers if status == 200)
    assert ask(address, "/health")[0] == 200


def test_a_replica_that_dies_loses_no_request(address, trained):
    expected, stop = np.asarray(trained.encode_text(TEXTS)), Event()

    def keep_asking(start: int) -> list[tuple[int, int, Any]]:
        answers, number = [], start
        while not stop.is_set():
            number = (number + 1) % len(TEXTS)
            answers.append((number, *ask(address, "/embed", {"rows": [{"text": TEXTS[number]}]})))
        return answers

    before = replicas()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(keep_asking, 10 * number) for number in range(8)]
        try:
            wait_for(lambda: ask(address, "/health")[0] == 200)
            (dies, process), *_ = before.items()
            os.kill(process, signal.SIGKILL)
            wait_for(lambda: dies not in replicas())
            wait_for(lambda: ask(address, "/health")[0] == 200)
        finally:
            stop.set()
        answers = [answer for each in asked for answer in each.result()]
    assert len(answers) > 16
    assert {status for _, status, _ in answers} <= {200, 503}
    for number, status, said in answers:
        if status == 200:
            np.testing.assert_allclose(said["rows"][0]["embedding"], expected[number], atol=1e-5)
        else:
            assert said.keys() == {"error"}
    wait_for(lambda: len(replicas()) == 2)
    assert dies not in replicas()
    assert ask(address, "/embed", {"rows": [{"text": TEXTS[0]}]})[0] == 200


def test_services_do_not_get_in_each_others_way(address, settings):
    port = urlsplit(address).port

    def begin(name: str, route: str, settings: Settings = settings) -> None:
        place = Place(host="127.0.0.1", port=port, route=route, name=name)
        with running(settings, place, open_to_all=False):
            pass

    with pytest.raises(
        InputError, match="a service 'tiny' runs on this cluster already; choose another --name"
    ):
        begin(NAME, "/other")
    with pytest.raises(
        InputError, match="the service 'tiny' of this cluster is at /tiny; choose another --route"
    ):
        begin("other", f"/{NAME}")
    with pytest.raises(
        AwayError, match=r"99 replicas of 1 CPUs each, and the cluster has 2; use fewer \(--replicas"
    ):
        begin("other", "/other", Settings(source="x", replicas=Replicas(replicas=99)))
    assert ask(address, "/health")[0] == 200


def test_every_port_of_a_private_service_is_this_machines_and_guarded(address, settings):
    name, (port, *_) = "private", free_ports(1)
    listening, place = Place(port=port).listen()
    model = private_replicas(settings, name)
    watch = partial(to_thread.run_sync, check, name)
    with listening:
        described = Described.model_validate(ask(address, "/")[1])
        server = Server(application(described, settings, model), listening, watch=watch)
        ended = ThreadPoolExecutor(1).submit(server.serve_forever)
        assert ask(place.address, "/health") == (200, {"status": "ok"})
        assert ask(place.address, "/embed", {"rows": [{"text": "a dog"}]})[0] == 200
        assert ask(place.address, "/-/routes")[0] == 404
        assert ask(place.address, "/-/routes", host="elsewhere.org")[0] == 403
        listens = {
            (process.pid, at.laddr.ip.removeprefix("::ffff:"))
            for process in [psutil().Process(pid) for pid in replicas(name).values()]
            for at in process.net_connections()
            if at.status == "LISTEN"
        }
        assert len({pid for pid, _ in listens}) == 2
        assert {ip for _, ip in listens} == {"127.0.0.1"}
        _delete(name)
        with pytest.raises(AwayError, match="the service 'private' was ended by another process"):
            ended.result(timeout=60)


def wait_for(holds) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.1)
