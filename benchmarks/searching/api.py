"""The HTTP API under load, against the endpoint that one would write in FastAPI around the same model."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.measure import Measurement, Scale, Sides
from benchmarks.searching.page import (
    HOST,
    PageSize,
    searched_run,
    serve_polypool,
    serving,
    text,
    until_closed,
)
from polypool.pipelines.models.trained import TrainedModel
from polypool.tasks.run import Run

K = 10
"""Results of a search."""


@dataclass(frozen=True, kw_only=True)
class ApiSize(PageSize):
    """As many `clients` at once, each of which sends its next text when it has the answer to the last."""

    tiny: ClassVar = PageSize.tiny | {"clients": (1, 2), "requests": 6}
    clients: tuple[int, ...] = (1, 8, 64)
    requests: int = 256
    rounds: int = 3


class Searches(BaseModel):
    """The body of a request to the plain application."""

    rows: list[dict[str, str]]
    k: int = K


def api(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure requests a second, and how long those wait who wait longest."""
    size = ApiSize.of(scale)
    with tempfile.TemporaryDirectory() as name, both_served(searched_run(Path(name), size)) as ports:
        first = text(size, -1)  # what is made once is made
        own_K, other_K = ([hit["score"] for hit in ask(port, first)] for port in ports)
        # Random images repeat, so that the order of their ids tells nothing.
        np.testing.assert_allclose(own_K, other_K, atol=1e-5, err_msg="scores, and of the plain application")
        for clients in size.clients:
            yield from _rows(ports, clients, size)


@contextmanager
def both_served(run: Run) -> Iterator[tuple[int, int]]:
    """Serve the API, and the plain application; give their ports."""
    with serving(run, serve_polypool) as own, serving(run, serve_plain) as other:
        yield own, other


def _rows(ports: tuple[int, int], clients: int, size: ApiSize) -> Iterator[Measurement]:
    """Measure both with so many clients by turns."""
    rate_2R, slow_2R = np.empty((2, size.rounds)), np.empty((2, size.rounds))
    count = max(clients, size.requests if clients > 1 else size.requests // 4)
    for number in range(size.rounds):
        texts = [text(size, number * count + n) for n in range(count)]
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            began = time.perf_counter()
            waited_Q = load(ports[side], texts, clients=clients)
            rate_2R[side, number] = count / (time.perf_counter() - began)
            slow_2R[side, number] = 1e3 * np.quantile(waited_Q, 0.99, method="higher")
    measured = f"{count:,} searches, clients: {clients}, {size.text}, {size.images:,} images"
    note = "Reference: an endpoint in FastAPI that encodes its text and multiplies, under uvicorn."
    yield Measurement(
        name=f"api, clients: {clients}",
        measured=f"requests a second, {measured}",
        unit="/s",
        note=note,
        **Sides(ours_R=rate_2R[0], reference_R=rate_2R[1]).numbers(),
    )
    yield Measurement(
        name=f"api, clients: {clients}, 99th of 100",
        measured=f"how long all but one of a hundred wait at most, {measured}",
        unit="ms",
        goal="at most",
        note=note,
        **Sides(ours_R=slow_2R[0], reference_R=slow_2R[1]).numbers(),
    )


def serve_plain(trained: TrainedModel, parent: Connection) -> None:
    """Serve a search as one would write it: a text is encoded, compared with all images, and the best are returned."""
    ids = trained.pairs("test", "be searched").item_ids
    store: Any = trained.adapter.store  # ty: ignore[unresolved-attribute]
    gallery_VD = trained.encode_visual([store[row] for row in store.rows(ids)])
    app = FastAPI()

    @app.post("/search")
    def search(asked: Searches) -> dict[str, Any]:
        with torch.inference_mode():
            text_BD = trained.encode_text([row["text"] for row in asked.rows])
            best = (text_BD @ gallery_VD.T).topk(min(asked.k, len(ids)))
        return {
            "rows": [
                {"hits": [{"id": ids[place], "score": score} for place, score in zip(*each, strict=True)]}
                for each in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        }

    until_closed(
        lambda listening: uvicorn.Server(uvicorn.Config(app, log_level="warning", fd=listening.fileno())),
        lambda server: server.run(),
        parent,
    )


def ask(port: int, text: str) -> list[dict[str, Any]]:
    """Return the results of a search."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
        return hits(connection, text)


def hits(connection: http.client.HTTPConnection, text: str) -> list[dict[str, Any]]:
    """Search; return the results.

    Raises:
        RuntimeError: there are none.
    """
    body = json.dumps({"rows": [{"text": text}], "k": K})
    connection.request("POST", "/search", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200 or not (found := json.loads(content)["rows"][0]["hits"]):
        raise RuntimeError(f"the answer to {text!r} is {answer.status}: {content[:500]!r}")
    return found


def load(port: int, texts: list[str], *, clients: int) -> np.ndarray:
    """Search for all texts by so many clients; return how many seconds each waited, `(Q,)`."""

    def client(own: list[str]) -> list[float]:
        waited = []
        with closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
            for each in own:
                began = time.perf_counter()
                hits(connection, each)
                waited.append(time.perf_counter() - began)
        return waited

    parts = [texts[n::clients] for n in range(min(clients, len(texts)))]
    with ThreadPoolExecutor(len(parts)) as pool:
        return np.concatenate([np.array(waited) for waited in pool.map(client, parts)])
