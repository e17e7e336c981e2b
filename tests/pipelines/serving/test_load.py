from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlencode

import pytest
from programs import soon
from searchable import get, ids, serving, untrained

from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.serving import guard, local
from polypool.pipelines.serving.service import Service
from polypool.pipelines.serving.settings import Limits


@dataclass
class Held:
    """A model that waits with its first call for `go`, and the texts of each call."""

    calls: list[list[str]] = field(default_factory=list)
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

    monkeypatch.setattr(Service, "answer", waits)
    return held


@pytest.fixture(scope="module")
def trained(pictures_run):
    return untrained(pictures_run)


def pages(pool, server, texts):
    return [pool.submit(get, server, f"/?{urlencode({'q': text})}") for text in texts]


def test_two_hundred_at_once_are_answered_together_and_pictures_meanwhile(page, held):
    texts = [f"a dog {number}" for number in range(200)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = pages(pool, page, texts)
        assert get(page, f"/picture?id={page.search.items[0].id}")[0] == 200, "while the model computes"
        while page.model._requests < len(texts):
            time.sleep(0.001)
        held.go.set()
        answers = [answer.result() for answer in answers]
    assert [status for status, _, _ in answers] == [200] * 200
    htmls = [data.decode() for _, _, data in answers]
    assert all(f'value="{text}"' in html for text, html in zip(texts, htmls, strict=True))
    assert sorted(text for call in held.calls for text in call) == sorted(texts)
    assert max(map(len, held.calls)) == Limits().max_batch, "what waited was answered together"
    assert ids(htmls[7]) == [hit.id for hit in page.search.find(Query(text=texts[7]), 10)]


def test_a_failure_is_one_querys_and_shows_nothing_of_its_cause(page, held, monkeypatch, caplog):
    search, find = page.search, page.search.find_each

    def broken(queries, k):
        if any(query.text == "a secret" for query in queries):
            raise RuntimeError("a secret of the model")
        return find(queries, k)

    monkeypatch.setattr(search, "find_each", broken)
    texts = ["a dog", "a secret", *(f"a cat {number}" for number in range(6))]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = pages(pool, page, texts[:1])
        held.at_work.wait(60)
        answers += pages(pool, page, texts[1:])
        while page.model._requests < len(texts):
            time.sleep(0.001)
        held.go.set()
        answers = [answer.result() for answer in answers]
    assert any(len(call) > 1 and "a secret" in call for call in held.calls), "it was answered with others"
    assert [status for status, _, _ in answers] == [500 if text == "a secret" else 200 for text in texts]
    for _, headers, data in answers:
        assert b"secret of" not in data
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "the model failed at a row" in caplog.text


def test_more_than_may_wait_are_refused_for_now(trained, held):
    with serving(trained, limits=Limits(max_queued=4)) as busy, ThreadPoolExecutor(9) as pool:
        answers = pages(pool, busy, [f"dog {number}" for number in range(9)])
        assert soon(lambda: sum(answer.done() for answer in answers) == 5)
        refused = [answer.result() for answer in answers if answer.done()]
        held.go.set()
        assert sorted(answer.result()[0] for answer in answers) == [200] * 4 + [503] * 5
    for status, headers, data in refused:
        assert (status, headers["Retry-After"]) == (503, "1")
        assert b"try again" in data
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_one_that_waits_too_long_is_refused_and_costs_no_more(trained, held):
    with serving(trained, limits=Limits(patience=0.3)) as busy:
        with ThreadPoolExecutor(3) as pool:
            answers = pages(pool, busy, ["dog"])
            held.at_work.wait(60)
            answers += pages(pool, busy, ["dog 0", "dog 1"])
            assert [answer.result()[0] for answer in answers] == [503] * 3
        held.go.set()
        assert get(busy, "/?q=a+cat")[0] == 200
    assert held.calls == [["dog"], ["a cat"]], "clients that left are not answered"


def test_a_picture_is_made_once_and_the_browser_may_keep_it(page, monkeypatch):
    made, images = [], Thumbnails.images
    monkeypatch.setattr(Thumbnails, "images", lambda self, *a, **k: made.append(a) or images(self, *a, **k))
    kept = page.model.pages.pictures.kept
    kept.clear()
    path = f"/picture?id={page.search.items[3].id}"
    answers = [get(page, path) for _ in range(3)]
    assert (len(made), len({data for _, _, data in answers})) == (1, 1)
    headers = answers[0][1]
    assert headers["Cache-Control"] == "private, max-age=600"
    status, again, data = get(page, path, headers={"If-None-Match": headers["ETag"]})
    assert (status, data, again["ETag"]) == (304, b"", headers["ETag"])
    assert get(page, path, headers={"If-None-Match": '"another"'})[0] == 200
    assert 0 < kept.currsize <= kept.maxsize
    monkeypatch.setattr(type(kept), "maxsize", property(lambda self: 10))
    kept.clear()
    assert get(page, path)[0] == 200, "one that has no room is shown"
    assert not kept


def opened(page) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.port), timeout=30)


def received(one: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            data += part
    return data


def test_a_slow_request_is_ended_though_bytes_trickle_in_and_an_answer_may_take_longer(page, monkeypatch):
    monkeypatch.setattr(local, "ASK", 1.0)
    head = b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n"
    with opened(page) as silent, opened(page) as slow, opened(page) as second:
        second.sendall(head + b"\r\n")
        started = time.monotonic()
        for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 400:
            try:
                slow.sendall(bytes([byte]))
                second.sendall(bytes([byte]))
            except OSError:
                break
            assert get(page, "/style.css")[0] == 200, "others are served"
            time.sleep(0.01)
            assert time.monotonic() - started < 20, "it was waited for"
        assert received(silent) == b""
        assert received(slow) == b""
        assert received(second).startswith(b"HTTP/1.1 200"), "the whole request was answered"
    answer = Service.answer
    monkeypatch.setattr(Service, "answer", lambda self, rows: time.sleep(1.5) or answer(self, rows))
    assert get(page, "/?q=dog")[0] == 200


def test_a_client_that_does_not_take_the_answers_is_ended(page, monkeypatch):
    monkeypatch.setattr(local, "ASK", 1.0)
    monkeypatch.setattr(local, "ANSWER", 1.0)
    id = page.search.items[0].id
    request = f"GET /picture?id={id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 200
    with opened(page) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(1)
        started = time.monotonic()
        with contextlib.suppress(OSError):  # it is reset, or its requests no longer get through
            while time.monotonic() - started < 20:
                deaf.sendall(request)
    assert soon(lambda: not page.server.server_state.connections)
    assert get(page, "/")[0] == 200


def connected_from(page, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.port), timeout=30, source_address=(address, 0))


def test_slow_clients_keep_nobody_out(trained, monkeypatch):
    monkeypatch.setattr(local, "ASK", 300.0)
    monkeypatch.setattr(local, "CONNECTIONS", 5)
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    with serving(trained) as few, contextlib.ExitStack() as stack:
        kept = stack.enter_context(connected_from(few, "127.0.0.2"))
        slow = [stack.enter_context(connected_from(few, "127.0.0.3")) for _ in range(3)]
        slow[0].sendall(head)
        slow[1].sendall(head + b"\r\n" + b"x" * 50)
        assert soon(lambda: len(few.server.server_state.connections) == 4)
        assert get(few, "/style.css")[0] == 200
        assert received(slow[0]) == b"", "the first of the address that has most"
        assert soon(lambda: len(few.server.server_state.connections) == 3)
        stack.enter_context(opened(few))
        assert get(few, "/style.css")[0] == 200
        assert received(slow[1]) == b"", "its body is awaited"
        kept.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert received(kept).startswith(b"HTTP/1.1 200")


def test_what_is_being_answered_is_not_ended_for_more(trained, held, monkeypatch):
    monkeypatch.setattr(local, "CONNECTIONS", 3)
    with serving(trained) as few, ThreadPoolExecutor(2) as pool:
        answers = pages(pool, few, ["a dog", "a cat"])
        assert soon(lambda: few.model._requests == 2)
        assert get(few, "/")[0] == 503
        held.go.set()
        assert [answer.result()[0] for answer in answers] == [200] * 2


@pytest.mark.parametrize(
    ("head", "mib", "status"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n", 24, b"413"),
        (b"POST /embed HTTP/1.1\r\nContent-Length: %d\r\n", 24, b"413"),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: %d\r\n", 8, b"404"),
        (b"POST / HTTP/1.1\r\nContent-Type: multipart/form-data\r\nContent-Length: %d\r\n", 8, b"400"),
    ],
)
def test_a_client_that_sends_all_before_it_reads_gets_the_answer(page, head, mib, status):
    with opened(page) as client:
        client.sendall(head % (mib << 20) + b"Host: localhost\r\nConnection: close\r\n\r\n")
        client.sendall(b"x" * (mib << 20))
        answer = b""
        while part := client.recv(65536):  # a reset raises
            answer += part
    assert answer.split(b" ")[1] == status


@pytest.mark.parametrize("limit", ["_UNREAD_MIB", "_UNREAD_SECONDS"])
def test_an_endless_body_is_not_read_on_for_long(page, monkeypatch, limit):
    monkeypatch.setattr(guard, limit, 0.5)
    with opened(page) as endless:
        endless.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n")
        started, sent = time.monotonic(), 0
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 20:
                sent += endless.send(b"x" * 65536 if limit == "_UNREAD_MIB" else b"x")
                if limit == "_UNREAD_SECONDS":
                    time.sleep(0.01)
    assert time.monotonic() - started < 4
    assert sent < 32 << 20


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /%zz%00?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["tls", "version", "length", "chunk", "hosts", "bytes"],
)
def test_what_is_not_http_is_refused(page, sent, caplog):
    with caplog.at_level(logging.ERROR), opened(page) as odd:
        odd.sendall(sent)
        odd.shutdown(socket.SHUT_WR)
        answer = received(odd)
    assert answer.split(b" ")[1] in (b"400", b"403", b"404", b"411"), answer[:100]
    assert not caplog.records, "no traceback"


def test_a_head_without_end_is_not_taken_in(page):
    with opened(page) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        taken = 0
        with contextlib.suppress(OSError):
            while taken < 64 << 20:
                taken += endless.send(b"x" * 65536)
        assert received(endless)[:12] in (b"HTTP/1.1 400", b"")
    assert taken < 64 << 20
    assert get(page, "/")[0] == 200
