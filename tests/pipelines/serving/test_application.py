from __future__ import annotations

import asyncio
import base64
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from asgi import ask, asked

from polypool.infra.errors import AwayError
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.serving.application import application
from polypool.pipelines.serving.schema import Described
from polypool.pipelines.serving.settings import Limits, digest

TOKEN = "a token of some length"
SET = [[0.5] * 10, [1] * 10]


@pytest.fixture(scope="module")
def words(words_run, of_run):
    return of_run(words_run)


@pytest.fixture(scope="module")
def app(words, over_http):
    return over_http(words)


def test_addresses_give_what_the_model_gives(app, words):
    rows = [{"text": "a dog"}, {"features": SET}]
    status, headers, body = ask(app, "/embed", {"rows": rows})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert headers["cache-control"] == "no-store"
    trained = words.trained
    x_ND = np.array(SET, np.float32)
    expected = [trained.encode_text(["a dog"])[0], trained.encode_visual([x_ND])[0]]
    np.testing.assert_allclose(
        [row["embedding"] for row in body["rows"]], torch.stack(expected).cpu(), atol=1e-5
    )
    found = ask(app, "/search", {"rows": rows, "k": 2}).body["rows"]
    assert [len(row["hits"]) for row in found] == [2, 2]
    assert found[0]["hits"][0].keys() == {"rank", "score", "id", "caption"}
    assert len(ask(app, "/search", {"rows": rows[:1]}).body["rows"][0]["hits"]) == 10
    (scored,) = ask(app, "/score", {"rows": [{"text": "a dog", "features": SET}]}).body["rows"]
    assert scored["score"] == pytest.approx(float(trained.scores([x_ND], ["a dog"])), abs=1e-5)
    assert ask(app, "/health").body == {"status": "ok"}
    assert Described.model_validate(ask(app, "/").body) == words.described


def test_pictures_and_questions(pictures, questions, over_http):
    trained = pictures.trained
    file = trained.adapter.corpus.image_path(trained.adapter.corpus.items("test")[0])
    row = {"image": base64.b64encode(file.read_bytes()).decode()}
    found = ask(over_http(pictures), "/search", {"rows": [row], "k": 3}).body["rows"][0]["hits"]
    hits = trained.open_search().find(Query(file=file), 3)
    assert [(hit["id"], hit["caption"]) for hit in found] == [(hit.id, hit.caption) for hit in hits]
    asks = {"rows": [{"text": "what is there?", "features": [[1.0] * questions.described.features]}]}
    (answer,) = ask(over_http(questions), "/answer", asks).body["rows"]
    assert answer.keys() == {"answer", "probability"}
    message = "row 0: a question is about an image; give 'features', and 'text', not 'text'"
    refused_with(over_http(questions), "/answer", {"rows": [{"text": "what is there?"}]}, message)


def test_the_schema_names_what_this_model_has(app, questions, over_http):
    found = ask(app, "/openapi.json").body
    assert found["paths"].keys() == {"/", "/health", "/embed", "/score", "/search"}
    assert found["components"]["schemas"]["Row"]["properties"].keys() == {"features", "image", "text"}
    assert found["paths"]["/embed"]["post"]["responses"].keys() == {"200", "4XX", "503"}
    assert ask(over_http(questions), "/openapi.json").body["paths"].keys() == {"/", "/health", "/answer"}


def sets(*vectors):
    return {"features": [*vectors]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "features": SET}, "give one of 'features' and 'text', not"),
        ({"text": "?!"}, "a text without a word"),
        ({"text": ""}, "a text without a word"),
        ({"text": "a" * 1001}, "a text of 1,001 characters; at most 1,000"),
        ({"text": 5}, "text: Input should be a valid string"),
        ({"words": "a"}, "words: Extra inputs are not permitted"),
        (sets(), "'features' have shape (0,); expected (elements, 10)"),
        (sets([]), "'features' have shape (1, 0)"),
        (sets([1.0] * 9), "'features' have shape (1, 9); expected"),
        (sets([1.0] * 10, [1.0]), "'features' must be N lists of"),
        (sets([True] * 10), "features[0][0]: Input should be a valid"),
        (sets(["1"] * 10), "features[0][0]: Input should be a valid"),
        (sets([1e39] * 10), "'features' hold numbers that are too large"),
        (sets(*[[1.0] * 10] * 1025), "'features' have 1,025 elements"),
        ({"image": "aGk="}, "the model takes no 'image' here; give 'features'"),
    ],
)
def test_a_row_that_cannot_be_used_is_said_in_one_line(app, row, message):
    refused_with(app, "/embed", {"rows": [row]}, f"row 0: {message}")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {"rows": [{"text": "a"}, {}]}, "row 1: give one of 'features' and 'text', not nothing"),
        ("/score", {"rows": [{"text": "a"}]}, "row 0: an image or video is compared; give 'features', and"),
        ("/embed", b'{"rows": [{"text": "a \\ud800"}]}', "row 0: a text with half a character"),
        ("/embed", b'{"rows": [{"features": [[NaN]]}]}', "row 0: features[0][0]: Input should be a finite"),
        ("/embed", {"rows": [{"text": "a"}] * 257}, "257 rows; at most 256 are taken in a request"),
        ("/embed", {"rows": []}, "rows: List should have at least 1 item"),
        ("/embed", {}, "rows: Field required"),
        ("/embed", [], "Input should be a valid"),
        ("/embed", b"{", "the body is no JSON"),
        ("/embed", b"", "Field required"),
        ("/embed", b"[" * 100_000, "the body cannot be read as JSON"),
        ("/embed", b'{"rows": [{"text": "\xff"}]}', "the body cannot be read as JSON"),
        ("/embed", b'{"rows": [{"features": [[' + b"9" * 5000 + b"]]}]}", "the body"),
        ("/embed", {"rows": [{"text": "a"}], "k": 3}, "k: Extra inputs are not permitted"),
        ("/search", {"rows": [{"text": "a"}], "k": 0}, "k: Input should be greater than or equal to 1"),
        ("/search", {"rows": [{"text": "a"}], "k": 101}, "k is 101; at most 100"),
        ("/search", {"rows": [{"text": "a"}], "k": "3"}, "k: Input should be a valid integer"),
    ],
)
def test_a_body_that_cannot_be_used_is_said_in_one_line(app, path, body, message):
    refused_with(app, path, body, message)


def refused_with(app, path, body, message):
    status, _, found = ask(app, path, body)
    assert status == 400
    assert found["error"].startswith(message), found
    assert "\n" not in found["error"]
    assert "/proc" not in found["error"]


def test_a_picture_that_is_none_is_named_by_its_row(pictures, over_http):
    app = over_http(pictures)
    other = base64.b64encode(b"no picture").decode()
    for image, message in (
        ("no base64!", "row 1: 'image' must be the image's file in base64"),
        (other, "row 1: the file that you sent: does not decode as an image"),
    ):
        refused_with(app, "/embed", {"rows": [{"text": "a dog"}, {"image": image}]}, message)


@pytest.mark.parametrize(
    ("path", "headers", "status", "message"),
    [
        ("/embed", {"content_type": "text/plain"}, 400, 'send JSON, {"rows": [...]}, with the header'),
        ("/embed", {"content_length": "16777217"}, 413, "a request of 16,777,217 bytes; at most 16 MiB"),
        ("/embed", {"content_length": "1" * 30}, 411, "say by Content-Length"),
        ("/embed", {"content_length": "-1"}, 411, "say by Content-Length"),
        ("/embed", {"transfer_encoding": "chunked"}, 411, "say by Content-Length"),
        ("/embed", {"host": "evil.example:8000"}, 403, "this service answers to 127.0.0.1, localhost"),
        ("/embed", {"host": ""}, 403, "this service answers to"),
        ("/answer", {}, 404, "there is nothing at this address"),
        ("/embed/", {}, 404, "there is nothing at this address"),
        ("/docs", {}, 404, "there is nothing at this address"),
        ("/health", {}, 405, "this address takes another method"),
    ],
)
def test_who_is_refused_is_told_why(app, path, headers, status, message):
    found = ask(app, path, {"rows": [{"text": "a dog"}]}, **headers)
    assert (found.status, found.body["error"][: len(message)]) == (status, message)
    hosts = ("localhost", "127.0.0.1", "[::1]", "localhost:80", "[::1]:80")
    assert {ask(app, "/", host=host).status for host in hosts} == {200}


def test_a_token_is_asked_for_but_of_who_looks_after_the_service(words, over_http):
    app = over_http(words, replace(words.settings, token=digest(TOKEN), local=False))
    for headers in ({}, {"authorization": "Bearer another token"}, {"authorization": f"Basic {TOKEN}"}):
        for path in ("/", "/openapi.json", "/embed", "/nothing", "//health", "/health/"):
            status, said, body = ask(app, path, **headers)
            assert (status, said["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer TOKEN" in body["error"]
    assert ask(app, "/health").status == 200
    for said in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
        assert ask(app, "/", authorization=said, host="any.example").status == 200


def test_who_waits_too_long_or_comes_too_many_may_ask_again(words):
    async def never(*_):
        await asyncio.sleep(60)

    async def away(*_):
        raise AwayError("too many ask at once; try again in a moment")

    async def broken(*_):
        raise ZeroDivisionError

    settings = replace(words.settings, limits=Limits(patience=0.05))
    for does, status, message in (
        (never, 503, "no answer in 0.05 seconds"),
        (away, 503, "too many ask at once"),
        (broken, 500, "the service failed at this request"),
    ):
        app = application(words.described, settings, SimpleNamespace(answer=does, check=does))
        for path, body in (("/embed", {"rows": [{"text": "a dog"}]}), ("/health", None)):
            if body is None and does is broken:
                status, message = 503, "the model does not answer"
            found = ask(app, path, body)
            assert (found.status, found.body["error"][: len(message)]) == (status, message)
            assert ("retry-after" in found.headers) == (status == 503)


def test_all_that_is_sent_at_once_is_bounded(words):
    body = json.dumps({"rows": [{"text": "a dog " * 50}]}).encode()
    most = 2.5 * len(body) / 2**20

    async def ask_thrice():
        go = asyncio.Event()

        async def answer(rows):
            await go.wait()
            return [{"embedding": np.zeros(2)}] * len(rows)

        settings = replace(words.settings, limits=Limits(max_body_mib=most, max_bodies_mib=most))
        app = application(words.described, settings, SimpleNamespace(answer=answer, check=answer))
        first = [asyncio.create_task(asked(app, "POST", "/embed", body)) for _ in range(2)]
        await asyncio.sleep(0.01)
        third = await asked(app, "POST", "/embed", body)
        go.set()
        await asyncio.gather(*first)
        return third, [task.result() for task in first], await asked(app, "POST", "/embed", body)

    third, first, later = asyncio.run(ask_thrice())
    assert (third.status, third.body["error"]) == (503, "too much is sent at once; try again in a moment")
    assert [answer.status for answer in (*first, later)] == [200, 200, 200]


def test_damaged_bodies_are_refused_or_answered_and_nothing_else(words):
    async def answer(rows):
        return [{"embedding": np.zeros(2)}] * len(rows)

    app = application(words.described, words.settings, SimpleNamespace(answer=answer, check=answer))
    whole = json.dumps({"rows": [{"text": "a dög \u1234"}, {"features": SET}, {"image": "aGk="}], "k": 2})
    chance, statuses = random.Random(0), set()
    for _ in range(400):
        body = bytearray(whole.encode())
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(body))
            change = chance.randrange(3)
            if change == 0:
                body[place] = chance.randrange(256)
            elif change == 1:
                del body[place : place + chance.randrange(1, 30)]
            else:
                body[place:place] = chance.choice([b"[", b"{", b'"', b"null", b"1e999", b"-", b"\\u", b","])
        status, _, found = ask(app, chance.choice(["/embed", "/search"]), bytes(body))
        assert status in (200, 400), (status, bytes(body))
        assert found.keys() == ({"rows"} if status == 200 else {"error"})
        statuses.add(status)
    assert 400 in statuses
