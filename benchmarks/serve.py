"""Searches a second over HTTP, against a plain FastAPI endpoint with the same model."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp

from benchmarks.random_data import image_run
from benchmarks.side_by_side import compare, run
from polypool.infra.registry import TASKS
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.serving.app import application
from polypool.pipelines.serving.schema import Address, Settings
from polypool.pipelines.serving.service import Service
from polypool.tasks.run import Run

HOST, K = "127.0.0.1", 10


class Searches(BaseModel):
    """The body of a request to the plain application."""

    rows: list[dict[str, str]]
    k: int = K


def own(trained: TrainedModel) -> ASGIApp:
    """Return the application of `polypool serve`."""
    service = Service(trained, Settings(source="benchmark", images=False))
    service.warm()
    return application(service)


def plain(trained: TrainedModel) -> ASGIApp:
    """Return an application with a plain search: encode the texts, compare them with all images, return the best."""
    ids, app = trained.pairs("test", "be searched").item_ids, FastAPI()
    store: Any = trained.adapter.store
    gallery_VD = trained.encode_visual([store[row] for row in store.rows(ids)])

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

    return app


def _serve(make: Callable[[TrainedModel], ASGIApp], settings: Run, parent: Connection) -> None:
    torch.manual_seed(settings.seed)
    adapter = TASKS.build(settings.task, settings)
    app = make(TrainedModel(run=settings, adapter=adapter, model=adapter.model().eval()))
    listening, place = Address(host=HOST, port=0).listen()
    parent.send(place.port)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


@contextmanager
def serving(make: Callable[[TrainedModel], ASGIApp], settings: Run) -> Iterator[int]:
    """Serve a run with random weights from another process; yield its port."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(make, settings, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def hits(port: int, texts: list[str]) -> list[list[dict[str, Any]]]:
    """Return the results of searches, sent one after another over one connection."""
    found = []
    with closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
        for text in texts:
            body = json.dumps({"rows": [{"text": text}], "k": K})
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the answer to {text!r} is {answer.status}: {content[:500]!r}")
            found.append(json.loads(content)["rows"][0]["hits"])
    return found


def rate(port: int, texts: list[str], clients: int) -> float:
    """Return the searches a second of concurrent clients."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda n: hits(port, texts[n::clients]), range(clients)))
    return len(texts) / (time.perf_counter() - started)


def main(*, quick: bool = False) -> None:
    words, images, requests = (20, 8, 6) if quick else (11_000, 5_000, 256)
    sizes = {"visual": "regions(width=8)", "text": "bigru(width=8, embedding=4, min_count=1)"}
    sizes = sizes if quick else {"text": "bigru(min_count=1)"}
    rng = np.random.default_rng(1)
    texts = [" ".join(f"w{word}" for word in rng.integers(words, size=12)) for _ in range(requests)]
    with tempfile.TemporaryDirectory() as folder:
        train = 1 + words // 11  # images whose captions contain nearly all words
        settings = image_run(Path(folder), images=train, words=words, regions=1, dim=8, test=images, **sizes)
        with serving(own, settings) as ours, serving(plain, settings) as theirs:
            scores = ([hit["score"] for hit in hits(port, texts[:1])[0]] for port in (ours, theirs))
            np.testing.assert_allclose(*scores, atol=1e-5)
            for clients in (1, 2) if quick else (1, 8, 64):
                sides = (lambda _, port=port, n=clients: rate(port, texts, n) for port in (ours, theirs))
                compare(
                    f"serve / plain FastAPI, clients: {clients}",
                    *sides,
                    rounds=1 if quick else 3,
                    unit="searches/s",
                )


if __name__ == "__main__":
    run(main)
