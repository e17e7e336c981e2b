from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlencode

import pytest
from programs import soon
from searchable import get, ids, serving, untrained

from polypool.pipelines.models.search import Query
from polypool.pipelines.serving.schema import Limits
from polypool.pipelines.serving.service import RowQueue, Service


@dataclass
class Held:
    """A model that waits with its first call for `go`, and the texts of each call."""

    calls: list[list[str]] = field(default_factory=list)
    asked: int = 0
    at_work: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held(monkeypatch):
    """Every model, held."""
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


def test_queries_at_once_are_answered_together_and_pictures_meanwhile(page, held):
    texts = [f"a dog {number}" for number in range(40)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = pages(pool, page, texts)
        assert get(page, f"/picture?id={page.search.items[0].id}")[0] == 200, "while the model computes"
        assert soon(lambda: held.asked == len(texts))
        held.go.set()
        answers = [answer.result() for answer in answers]
    assert [status for status, _, _ in answers] == [200] * 40
    htmls = [data.decode() for _, _, data in answers]
    assert all(f'value="{text}"' in html for text, html in zip(texts, htmls, strict=True))
    assert sorted(text for call in held.calls for text in call) == sorted(texts)
    assert max(map(len, held.calls)) == Limits().max_batch, "what waited was answered together"
    assert ids(htmls[7]) == [hit.id for hit in page.search.find(Query(text=texts[7]), 10)]


def test_one_that_waits_too_long_is_refused_and_costs_no_more(trained, held):
    with serving(trained, limits=Limits(patience=0.3)) as busy:
        with ThreadPoolExecutor(3) as pool:
            answers = pages(pool, busy, ["dog"])
            held.at_work.wait(60)
            answers += pages(pool, busy, ["dog 0", "dog 1"])
            assert [answer.result()[0] for answer in answers] == [503] * 3
        held.go.set()
        assert soon(lambda: get(busy, "/?q=a+cat")[0] == 200)
    others = [call for call in held.calls if call != ["a cat"]]
    assert others == [["dog"]], "clients that left are not answered"
