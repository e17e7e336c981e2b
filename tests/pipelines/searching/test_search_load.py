"""The page under load: many who ask at once, pictures asked for again, and those who are slow or bring too much."""

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
from searchable import get, ids, serving, text_page, untrained, with_pictures

from infra.errors import InputError
from pipelines.pages.thumbnails import Thumbnails
from pipelines.searching import connection, server
from pipelines.searching.galleries import AT_ONCE
from pipelines.searching.together import Together
from pipelines.searching.uploads import FORM


@dataclass
class Held:
    """A model that waits with its first call for `go`; the queries that came, and the texts of each call."""

    come: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def release(self, after: int) -> None:
        """Let the first call go on when so many queries have come."""
        while len(self.come) < after:
            time.sleep(0.001)
        self.go.set()


@pytest.fixture
def held(pictures, monkeypatch):
    """The model of the page with pictures, held."""
    finder, held, coming = pictures.views.searched, Held(), Together.__call__
    by_texts = finder.by_texts

    def waits(texts, k):
        held.calls.append(texts)
        held.go.wait(60)
        return by_texts(texts, k)

    async def counted(together, asked):
        held.come.append(asked)
        return await coming(together, asked)

    monkeypatch.setattr(finder, "by_texts", waits)
    monkeypatch.setattr(Together, "__call__", counted)
    return held


def test_two_hundred_at_once_are_answered_together_and_pictures_meanwhile(pictures, held):
    id = pictures.views.searched.items[0].id
    texts = [f"a dog {number}" for number in range(200)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = [pool.submit(text_page, pictures, q=text) for text in texts]
        assert get(pictures, f"/picture?id={id}")[0] == 200, "while the model is at work"
        held.release(after=len(texts))
        answers = [answer.result() for answer in answers]
    assert [status for status, _ in answers] == [200] * 200
    assert all(f'value="{text}"' in html for text, (_, html) in zip(texts, answers, strict=True))
    assert sorted(text for call in held.calls for text in call) == sorted(texts)
    assert max(map(len, held.calls)) == AT_ONCE, "what waited was answered together"
    alone = pictures.views.searched.by_text(texts[7], 10)
    assert ids(answers[7][1]) == [hit.id for hit in alone]


def test_a_query_that_is_wrong_spoils_none_that_it_waited_with(pictures):
    finder = pictures.views.searched
    good, bad, same = finder.by_texts(["a dog", "?!", "a cat and a dog"], 5)
    assert isinstance(bad, InputError)
    assert [hit.id for hit in good] == [hit.id for hit in finder.by_text("a dog", 5)]
    assert [hit.id for hit in same] == [hit.id for hit in finder.by_text("a cat and a dog", 5)]


def test_a_failure_of_ours_is_one_querys_and_has_the_headers(pictures, held, monkeypatch):
    waits = pictures.views.searched.by_texts

    def broken(texts, k):
        found = waits(texts, k)
        if "a secret" in texts:
            raise RuntimeError("a secret of the model")
        return found

    monkeypatch.setattr(pictures.views.searched, "by_texts", broken)
    texts = ["a dog", "a secret", *(f"a cat {number}" for number in range(6))]
    with ThreadPoolExecutor(len(texts)) as pool:
        first = pool.submit(get, pictures, "/?q=a+dog")
        while not held.calls:
            time.sleep(0.001)
        others = [pool.submit(get, pictures, f"/?{urlencode({'q': text})}") for text in texts[1:]]
        held.release(after=len(texts))
        answers = [answer.result() for answer in [first, *others]]
    assert any(len(call) > 1 and "a secret" in call for call in held.calls), "it was asked with others"
    assert [status for status, _, _ in answers] == [500 if text == "a secret" else 200 for text in texts]
    for _, headers, data in answers:
        assert b"secret of" not in data
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_more_than_may_wait_are_told_to_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WAITING", 3)
    finder = untrained(with_pictures(tmp_path, train=8, val=4, test=4)).open_search()
    at_work, go, by_texts = threading.Event(), threading.Event(), finder.by_texts

    def wait(texts, k):
        at_work.set()
        go.wait(60)
        return by_texts(texts, k)

    monkeypatch.setattr(finder, "by_texts", wait)
    with serving(finder) as busy, ThreadPoolExecutor(9) as pool:
        first = pool.submit(get, busy, "/?q=dog")
        at_work.wait(60)
        answers = [first, *(pool.submit(get, busy, f"/?q=dog+{number}") for number in range(8))]
        while sum(answer.done() for answer in answers) < 5:
            time.sleep(0.01)
        refused = [answer.result() for answer in answers if answer.done()]
        go.set()
        statuses = sorted(answer.result()[0] for answer in answers)
    assert statuses == [200] * 4 + [503] * 5, "one at the model, three that wait"
    for status, headers, data in refused:
        assert (status, headers["Retry-After"]) == (503, "2")
        assert b"try again" in data
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_one_that_waits_too_long_is_told_so_and_costs_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    finder = untrained(with_pictures(tmp_path, train=8, val=4, test=4)).open_search()
    at_work, go, calls, by_texts = threading.Event(), threading.Event(), [], finder.by_texts

    def wait(texts, k):
        calls.append(texts)
        at_work.set()
        go.wait(60)
        return by_texts(texts, k)

    monkeypatch.setattr(finder, "by_texts", wait)
    with serving(finder) as busy:
        with ThreadPoolExecutor(3) as pool:
            answers = [pool.submit(get, busy, "/?q=dog")]
            at_work.wait(60)
            answers += [pool.submit(get, busy, f"/?q=dog+{number}") for number in range(2)]
            assert [answer.result()[0] for answer in answers] == [503] * 3
        go.set()
        assert get(busy, "/?q=a+cat")[0] == 200
    assert calls == [["dog"], ["a cat"]], "those that had left were not asked"


def test_a_picture_is_made_once_and_the_browser_may_keep_it(pictures, monkeypatch):
    made, images = [], Thumbnails.images
    monkeypatch.setattr(Thumbnails, "images", lambda self, *a, **k: made.append(a) or images(self, *a, **k))
    kept = pictures.views.pictures.kept
    kept.clear()
    path = f"/picture?id={pictures.views.searched.items[3].id}"
    answers = [get(pictures, path) for _ in range(3)]
    assert len(made) == 1
    assert len({data for _, _, data in answers}) == 1
    headers = answers[0][1]
    assert headers["Cache-Control"] == "private, max-age=600"
    status, again, data = get(pictures, path, headers={"If-None-Match": headers["ETag"]})
    assert (status, data, again["ETag"]) == (304, b"", headers["ETag"])
    assert again["Cross-Origin-Resource-Policy"] == "same-origin"
    assert get(pictures, path, headers={"If-None-Match": '"another"'})[0] == 200
    assert 0 < kept.currsize <= kept.maxsize
    monkeypatch.setattr(type(kept), "maxsize", property(lambda self: 10))
    kept.clear()
    assert get(pictures, path)[0] == 200, "one that has no room is shown"
    assert not kept


def test_nothing_is_taken_but_a_file_of_a_form(pictures):
    status, headers, _ = get(pictures, "/?q=dog", method="GET", body=b"x")
    assert (status, headers["Connection"]) == (413, "close")
    status, headers, _ = get(pictures, "/", method="POST", headers={"Content-Length": str(FORM + 1)})
    assert (status, headers["Connection"]) == (413, "close")
    for odd in ({"Transfer-Encoding": "chunked"}, {"Content-Length": "+1"}, {"Content-Length": "9" * 400}):
        assert get(pictures, "/", method="POST", headers=odd)[0] in (400, 413), odd
    assert get(pictures, "/picture?id=a", method="POST", body=b"x")[0] == 405


def opened(page) -> socket.socket:
    return socket.create_connection(("127.0.0.1", page.port), timeout=30)


def received(one: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    data = b""
    try:
        while part := one.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def test_whoever_is_slow_to_ask_is_not_waited_for_though_bytes_trickle_in(pictures, monkeypatch):
    monkeypatch.setattr(connection, "ASK", 1.0)
    head = b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n"
    with opened(pictures) as silent, opened(pictures) as slow, opened(pictures) as second:
        second.sendall(head + b"\r\n")
        started = time.monotonic()
        for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 400:
            try:
                slow.sendall(bytes([byte]))
                second.sendall(bytes([byte]))
            except OSError:
                break
            assert get(pictures, "/style.css")[0] == 200, "others are served"
            time.sleep(0.01)
            assert time.monotonic() - started < 20, "it was waited for"
        assert received(silent) == b""
        assert received(slow) == b""
        assert received(second).startswith(b"HTTP/1.1 200"), (
            "a request that came was answered, its second half not"
        )


def test_an_answer_may_take_longer_than_a_question(pictures, monkeypatch):
    monkeypatch.setattr(connection, "ASK", 0.5)
    by_texts = pictures.views.searched.by_texts
    monkeypatch.setattr(
        pictures.views.searched, "by_texts", lambda texts, k: time.sleep(1.5) or by_texts(texts, k)
    )
    assert get(pictures, "/?q=dog")[0] == 200


def test_whoever_does_not_take_the_answers_is_not_waited_for(pictures, monkeypatch):
    monkeypatch.setattr(connection, "ASK", 1.0)
    monkeypatch.setattr(connection, "ANSWER", 1.0)
    id = pictures.views.searched.items[0].id
    request = f"GET /picture?id={id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 200
    with opened(pictures) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(1)
        started = time.monotonic()
        with contextlib.suppress(OSError):  # it is reset, or its requests no longer get through
            while time.monotonic() - started < 20:
                deaf.sendall(request)
    limit = time.monotonic() + 20
    while pictures._server.server_state.connections and time.monotonic() < limit:
        time.sleep(0.05)
    assert not pictures._server.server_state.connections
    assert get(pictures, "/")[0] == 200


def test_connections_are_bounded(pictures, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 2)
    with opened(pictures), opened(pictures), opened(pictures) as third:
        assert received(third) == b""
    time.sleep(0.1)
    assert get(pictures, "/")[0] == 200


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
def test_what_is_no_http_is_refused_with_the_headers(pictures, sent, caplog):
    with caplog.at_level(logging.ERROR), opened(pictures) as odd:
        odd.sendall(sent)
        odd.shutdown(socket.SHUT_WR)
        answer = received(odd)
    assert answer.split(b" ")[1] in (b"400", b"403", b"404", b"413"), answer[:100]
    assert b"cross-origin-resource-policy: same-origin" in answer.lower()
    assert not caplog.records, "no traceback"


def test_a_head_without_end_is_not_taken_in(pictures):
    with opened(pictures) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        taken = 0
        with contextlib.suppress(OSError):
            while taken < 64 << 20:
                taken += endless.send(b"x" * 65536)
        assert received(endless)[:12] in (b"HTTP/1.1 400", b"")
    assert taken < 64 << 20
    assert get(pictures, "/")[0] == 200
