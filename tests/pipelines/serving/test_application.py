from __future__ import annotations

import base64
import json
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from polypool.infra.errors import AwayError
from polypool.pipelines.models.search import Query
from polypool.pipelines.serving.app import application
from polypool.pipelines.serving.schema import ModelInfo
from polypool.pipelines.serving.service import RowQueue

TOKEN = "a token of some length"
SET = [[0.5] * 10, [1] * 10]


def ask(app, path, body=None, **headers):
    """GET a path, or POST JSON or raw bytes; return status, headers and parsed body."""
    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): of for name, of in headers.items()}
    data = body if isinstance(body, bytes | None) else json.dumps(body)
    got = client.request(
        "GET" if body is None else "POST", client.base_url.join(path), content=data, headers=sent
    )
    return got.status_code, got.headers, got.json()


@pytest.fixture(scope="module")
def words(words_run, of_run):
    return of_run(words_run)


@pytest.fixture(scope="module")
def app(words):
    return application(words)


def test_endpoints_return_model_outputs(app, words):
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
    found = ask(app, "/search", {"rows": rows, "k": 2})[2]["rows"]
    assert [len(row["hits"]) for row in found] == [2, 2]
    assert found[0]["hits"][0].keys() == {"rank", "score", "id", "caption"}, (
        "hits must not contain file paths"
    )
    hits = trained.search("a dog", 10)
    shown = ask(app, "/search", {"rows": rows[:1]})[2]["rows"][0]["hits"]
    assert [(hit["rank"], hit["id"], hit["caption"]) for hit in shown] == [
        (hit.rank, hit.id, hit.caption) for hit in hits
    ]
    (scored,) = ask(app, "/score", {"rows": [{"text": "a dog", "features": SET}]})[2]["rows"]
    assert scored["score"] == pytest.approx(float(trained.scores([x_ND], ["a dog"])), abs=1e-5)
    assert ask(app, "/health")[2] == {"status": "ok"}
    assert ModelInfo.model_validate(ask(app, "/")[2]) == words.described


def test_image_and_question_rows_are_answered(pictures, questions):
    trained, app = pictures.trained, application(pictures)
    file = trained.adapter.corpus.image_path(trained.adapter.corpus.items("test")[0])
    row = {"image": base64.b64encode(file.read_bytes()).decode()}
    found = ask(app, "/search", {"rows": [row], "k": 3})[2]["rows"][0]["hits"]
    hits = trained.open_search().find(Query(file=file), 3)
    assert [(hit["id"], hit["caption"]) for hit in found] == [(hit.id, hit.caption) for hit in hits]
    (row,) = ask(app, "/embed", {"rows": [row]})[2]["rows"]
    expected = trained.encode_visual([pictures.reader.files.of(file, video=False)])[0]
    np.testing.assert_allclose(row["embedding"], expected.cpu(), atol=1e-5)
    x_ND = [[1.0] * questions.described.features]
    asks = {"rows": [{"text": "what is there?", "features": x_ND}]}
    (answer,) = ask(application(questions), "/answer", asks)[2]["rows"]
    ((best, probability),) = questions.trained.answers([np.array(x_ND, np.float32)], ["what is there?"])
    assert answer == {"answer": best, "probability": pytest.approx(probability, abs=1e-5)}
    message = "row 0: a question is about an image; give 'features', and 'text', not 'text'"
    refused_with(application(questions), "/answer", {"rows": [{"text": "what is there?"}]}, message)
    other = base64.b64encode(b"no picture").decode()
    for image, message in (
        ("no base64!", "row 1: 'image' must be the image's file in base64"),
        (other, "row 1: the file that you sent: does not decode as an image"),
    ):
        refused_with(app, "/embed", {"rows": [{"text": "a dog"}, {"image": image}]}, message)


def test_openapi_schema_lists_supported_routes(app, questions):
    found = ask(app, "/openapi.json")[2]
    assert found["paths"].keys() == {"/", "/health", "/embed", "/score", "/search"}
    assert found["components"]["schemas"]["Row"]["properties"].keys() == {"features", "image", "text"}
    assert found["paths"]["/embed"]["post"]["responses"].keys() == {"200", "4XX", "503"}
    assert ask(application(questions), "/openapi.json")[2]["paths"].keys() == {"/", "/health", "/answer"}


def sets(*vectors):
    return {"features": [*vectors]}


@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        ("/embed", {"text": "a", "features": SET}, "row 0: give one of 'features' and 'text', not"),
        ("/embed", {"text": "?!"}, "row 0: a text without a word"),
        ("/embed", {"text": "a" * 1001}, "row 0: a text of 1,001 characters; the limit is 1,000"),
        ("/embed", {"words": "a"}, "rows.0.words: Extra inputs are not permitted"),
        ("/embed", sets([1.0] * 9), "row 0: 'features' have shape (1, 9); expected (elements, 10)"),
        ("/embed", sets([1.0] * 10, [1.0]), "row 0: 'features' must be N lists of"),
        ("/embed", sets([1e39] * 10), "row 0: 'features' hold numbers that are too large"),
        ("/embed", sets(*[[1.0] * 10] * 1025), "row 0: 'features' have 1,025 elements"),
        ("/embed", {"image": "aGk="}, "row 0: the model accepts no 'image' here; give 'features'"),
        ("/embed", [{"text": "a"}, {}], "row 1: give one of 'features' and 'text', not nothing"),
        ("/score", {"text": "a"}, "row 0: an image or video is compared; give 'features', and"),
        ("/embed", b'{"rows": [{"text": "a \\ud800"}]}', "row 0: a text with half a surrogate"),
        ("/embed", b'{"rows": [{"features": [[NaN]]}]}', "rows.0.features.0.0: Input should be a finite"),
        ("/embed", [{"text": "a"}] * 257, "257 rows; the limit is 256 per request"),
        ("/embed", [], "rows: List should have at least 1 item"),
        ("/embed", b"{", ""),
        ("/embed", b"[" * 100_000, "There was an error parsing the body"),
        ("/search", b'{"rows": [{"text": "a"}], "k": 0}', "k: Input should be greater than or equal to 1"),
        ("/search", b'{"rows": [{"text": "a"}], "k": 101}', "k is 101; the limit is 100"),
    ],
)
def test_invalid_rows_return_400_with_one_line(app, path, sent, message):
    rows = [sent] if isinstance(sent, dict) else sent
    refused_with(app, path, rows if isinstance(rows, bytes) else {"rows": rows}, message)


def refused_with(app, path, body, message):
    status, _, found = ask(app, path, body)
    assert status == 400
    assert found["error"].startswith(message), found
    assert "\n" not in found["error"]
    assert "/proc" not in found["error"]


@pytest.mark.parametrize(
    ("path", "headers", "status", "message"),
    [
        (
            "/embed",
            {"content_length": "16777217"},
            413,
            "a request of 16777217 bytes; the limit is 16,777,216",
        ),
        ("/embed", {"content_length": "-1"}, 411, "send the Content-Length"),
        ("/answer", {}, 404, "Not Found"),
        ("/docs", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)
def test_http_errors_have_status_and_message(app, path, headers, status, message):
    code, _, body = ask(app, path, {"rows": [{"text": "a dog"}]}, **headers)
    assert (code, body["error"][: len(message)]) == (status, message)


def test_token_is_required_except_for_health(words, monkeypatch):
    monkeypatch.setattr(
        words, "settings", replace(words.settings, token=sha256(TOKEN.encode()).hexdigest(), local=False)
    )
    app = application(words)
    for headers in ({}, {"authorization": "Bearer another token"}, {"authorization": f"Basic {TOKEN}"}):
        for path in ("/", "/openapi.json", "/embed", "//health", "/health/"):
            status, said, body = ask(app, path, **headers)
            assert (status, said["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer TOKEN" in body["error"]
    assert ask(app, "/health")[0] == 200
    assert ask(app, "/", authorization=f"Bearer {TOKEN}", host="any.example")[0] == 200


def test_overload_returns_503_and_faults_return_500(words, monkeypatch):
    async def away(*_):
        raise AwayError("too many requests; try again in a moment")

    async def broken(*_):
        raise ZeroDivisionError

    for does, status, message in (
        (away, 503, "too many requests"),
        (broken, 500, "the service failed at this request"),
    ):
        monkeypatch.setattr(RowQueue, "answer", does)
        code, headers, body = ask(application(words), "/embed", {"rows": [{"text": "a dog"}]})
        assert (code, body["error"][: len(message)]) == (status, message)
        assert ("retry-after" in headers) == (status == 503)
    monkeypatch.setattr(words, "check", lambda: 1 / 0)
    assert ask(application(words), "/health")[0] == 503
