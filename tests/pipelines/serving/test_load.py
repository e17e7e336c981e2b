from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import sleep
from urllib.parse import urlencode

import pytest
from programs import soon
from searchable import get, ids, serving, untrained

from polypool.pipelines.models.search import Query
from polypool.pipelines.serving.schema import Limits
from polypool.pipelines.serving.service import RowQueue, Service


@dataclass
class Held:
    """Records the texts of each model call; calls wait until `go` is set."""

    calls: list[list[str]] = field(default_factory=list)
    asked: int = 0
    at_work: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held(monkeypatch):
    """Make model calls of all services wait, and record them."""
    held, answer = Held(), Service.answer

    def waits(service, rows):
        held.calls.append([row.text for row in rows])
        held.at_work.set()
        held.go.wait(60)
        return answer(service, rows)

    async def queued(queue, rows):
        held.asked += 1
        return await enqueue(queue, rows)

    enqueue = RowQueue.answer
    monkeypatch.setattr(Service, "answer", waits)
    monkeypatch.setattr(RowQueue, "answer", queued)
    return held


@pytest.fixture(scope="module")
def trained(pictures_run):
    return untrained(pictures_run)


def pages(pool, server, texts):
    return [pool.submit(get, server, f"/?{urlencode({'q': text})}") for text in texts]


def test_concurrent_queries_are_batched_without_blocking_images(page, held):
    texts = [f"a dog {number}" for number in range(40)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = pages(pool, page, texts)
        assert get(page, f"/picture?id={page.search.items[0].id}")[0] == 200, (
            "images must be served meanwhile"
        )
        assert soon(lambda: held.asked == len(texts))
        held.go.set()
        answers = [answer.result() for answer in answers]
    assert [status for status, _, _ in answers] == [200] * 40
    htmls = [data.decode() for _, _, data in answers]
    assert all(f'value="{text}"' in html for text, html in zip(texts, htmls, strict=True))
    assert sorted(text for call in held.calls for text in call) == sorted(texts)
    assert max(map(len, held.calls)) == Limits().max_batch, "waiting queries must form full batches"
    assert ids(htmls[7]) == [hit.id for hit in page.search.find(Query(text=texts[7]), 10)]


def test_timed_out_queries_are_refused_and_dropped(trained, held):
    with serving(trained, limits=Limits(patience=0.3)) as busy:
        with ThreadPoolExecutor(3) as pool:
            answers = pages(pool, busy, ["dog"])
            held.at_work.wait(60)
            answers += pages(pool, busy, ["dog 0", "dog 1"])
            assert [answer.result()[0] for answer in answers] == [503] * 3
        held.go.set()
        sleep(0.2)  # before another query, the queue holds timed-out ones alone
        assert soon(lambda: get(busy, "/?q=a+cat")[0] == 200)
    others = [call for call in held.calls if call != ["a cat"]]
    assert others == [["dog"]], "timed-out queries must not reach the model"
