"""Corpora with features of a small backbone, as `extract` writes them, and a server of their search page."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import torch
import uvicorn
from clips import write_clip
from corpora import make_corpus, make_questions
from pictures import noise

from polypool.encoders.backbones import build_backbone
from polypool.encoders.backbones.cells import Cells
from polypool.infra.paths import absolute, home
from polypool.infra.registry import TASKS
from polypool.infra.store import StoreWriter
from polypool.pipelines.data.extraction import (
    VideoExtractor,
    VideoOptions,
    VideoSettings,
    texts_of,
)
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.serving.app import application
from polypool.pipelines.serving.schema import Address, Settings
from polypool.pipelines.serving.service import Service
from polypool.tasks.datasets.corpus import open_corpus
from polypool.tasks.run import Run

CELLS = "cells(grid=2, pixels=8)"


def with_pictures(folder: Path, *, questions: bool = False, **sizes: int) -> Run:
    """Return a run on noise pictures with features of `cells`."""
    make = make_questions if questions else make_corpus
    run = make(folder, images=folder / "images", **sizes)
    (folder / "images").mkdir(exist_ok=True)
    backbone, corpus = Cells(grid=2, pixels=8), open_corpus(run.data.corpus)
    source = {"extractor": backbone.describe(), "batch": 16}
    with StoreWriter(folder / "cells", dim=backbone.dim, dtype="float16", source=source) as writer:
        for split in corpus.splits:
            for item in corpus.items(split):
                image = noise(seed=int(item.id))
                image.save(corpus.image_path(item))
                writer.add(item.id, backbone([image])[0])
        writer.close(statistics_of=[item.id for item in corpus.items("train")])
    return replace(run, data=replace(run.data, features=str(folder / "cells")))


def with_clips(folder: Path, *, questions: bool = False) -> Run:
    """Return a run on clips of a few frames with features of `cells`."""
    make = make_questions if questions else make_corpus
    run = make(folder, images=folder / "clips", train=4, val=2, test=4)
    (folder / "clips").mkdir(exist_ok=True)
    backbone, corpus = Cells(grid=2, pixels=8), open_corpus(run.data.corpus)
    videos = VideoSettings.plan(backbone, VideoOptions(frames=3, pool="concat", decoder="av"), batch=2)
    extractor = VideoExtractor(backbone=CELLS, threads=1, videos=videos)
    source = {"extractor": backbone.describe(), "video": videos.describe(backbone), "batch": 2}
    with StoreWriter(folder / "cells", dim=videos.dim, dtype="float16", source=source) as writer:
        for split in corpus.splits:
            for item in corpus.items(split):
                path = corpus.image_path(item)  # a video, although its name ends in .png
                write_clip(path.with_suffix(".mp4"), 6, seed=int(item.id)).rename(path)
                (row,) = extractor({"ids": [item.id], "paths": [str(path)], "digests": [""]})
                assert not row["why"], row["why"]
                writer.add(item.id, row["x_ND"])
        writer.close(statistics_of=[item.id for item in corpus.items("train")])
    extractor.close()
    data = replace(run.data, features=str(folder / "cells"), text_augment="")
    return (
        replace(run, data=data)
        if questions
        else replace(run, task="video_text", protocol="distinct", data=data)
    )


def with_texts(run: Run, folder: Path, backbone: str, *, dtype: str = "float16", width: int = 16) -> Run:
    """Return a run with stored text features of all its splits."""
    built, corpus = build_backbone(backbone), open_corpus(absolute(run.data.corpus, home))
    by_id = {text.id: text for split in corpus.splits for text in texts_of(corpus, split, limit=None)}
    with StoreWriter(folder, dim=built.dim, dtype=dtype, source={"extractor": built.describe()}) as writer:
        for text in by_id.values():
            writer.add(text.id, built([text.text])[0])
        writer.close(statistics_of=[text.id for text in by_id.values() if text.split == "train"])
    data = replace(run.data, texts=str(folder), text_augment="drop(p=0.2)", max_words=0)
    return replace(run, data=data, text=f"stored_text(width={width})")


def untrained(run: Run) -> TrainedModel:
    """Return a run with its untrained model, initialised from its seed."""
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    return TrainedModel(run=run, adapter=adapter, model=adapter.model().eval())


@dataclass
class Served:
    """A search page and API served by this process.

    Attributes:
        search: the searched split.
        port: the port that it listens on.
    """

    search: Any
    port: int


@contextmanager
def serving(trained: TrainedModel, **settings: object) -> Iterator[Served]:
    """Serve a model from a thread of this process."""
    service = Service(trained, Settings(source="tiny", **settings))
    listening, place = Address(host="127.0.0.1", port=0).listen()
    config = uvicorn.Config(application(service), log_config=None, lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with listening:
        thread.start()
        try:
            yield Served(search=service.search, port=place.port)
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()
            service.reader.close()


def ids(html: str) -> list[str]:
    """Return the ids of the results on a page, in order."""
    return [unescape(id) for id in re.findall(r'data-id="([^"]*)"', html)]


def get(server, path, *, method="GET", host=None, headers=(), body=None):
    """Send a request as a browser does; return the status, the headers and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = {"Accept": "text/html"} | ({"Host": host} if host else {}) | dict(headers)
    connection.request(method, path, body, headers=sent)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, answer.headers, data


def text_page(server, **query):
    """Request the page with query parameters; return the status and the HTML."""
    status, _, data = get(server, f"/?{urlencode(query)}")
    return status, data.decode()
