from __future__ import annotations

import base64
import io
import os
import re
import signal
import socket
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest
from PIL import Image
from programs import begin
from searchable import get, ids, serving, text_page, untrained, with_pictures
from untrained_runs import export_untrained

from polypool.pipelines.models.search import Query


def send(server, data: bytes | None, *, body: bytes | None = None, kind: str = "", **fields: str):
    """Post a form with a file like a browser, or any body; return status and HTML."""
    files = None if data is None else {"file": ("a b.png", data, "image/png")}
    sent = {"content": body} if body else {"files": files or {"": b""}, "data": fields}
    headers = {"Accept": "text/html"} | ({"Content-Type": kind} if kind else {})
    answer = httpx.post(f"http://127.0.0.1:{server.port}/", headers=headers, **sent)
    return answer.status_code, unescape(answer.text)


SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
} | {f"Cross-Origin-{what}-Policy": "same-origin" for what in ("Resource", "Opener")}


def file_of(server, number: int = 0) -> Path:
    return server.search.corpus.image_path(server.search.items[number])


def test_text_query_returns_hits_with_scores_and_images(page):
    hits = page.search.find(Query(text="a dog and a cat"), 10)
    status, html = text_page(page, q="a dog and a cat")
    assert (status, ids(html)) == (200, [hit.id for hit in hits])
    assert all(f"{hit.score:.4f}" in html and hit.caption in html for hit in hits)
    assert "//" not in html + get(page, "/style.css")[2].decode(), "the page must not refer to other hosts"
    status, headers, data = get(page, f"/picture?id={hits[0].id}")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (80, 60)
    assert ids(text_page(page, q="a dog and a cat", k=3)[1]) == [hit.id for hit in hits[:3]]


def test_start_page_lists_items_that_can_be_queried(page):
    status, html = text_page(page)
    items = page.search.items
    assert (status, ids(html)) == (200, [item.id for item in items])
    status, html = text_page(page, id=items[2].id)
    assert (status, ids(html)) == (200, [hit.id for hit in page.search.find(Query(id=items[2].id), 10)])
    status, headers, _ = get(page, "/", headers={"Accept": "*/*"})
    assert (status, headers["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize(
    "query",
    [
        *({"q": q} for q in ("", "x " * 600, "\ud800".encode("utf-8", "surrogatepass"))),
        *({"q": "a dog", "k": k} for k in ("x", "101")),
        {"page": "x"},
    ],
)
def test_invalid_query_returns_400(page, query):
    status, html = text_page(page, **query)
    assert status == 400
    assert re.search('role="?alert', html)


@pytest.mark.parametrize(
    "path",
    [
        *("/%2e%2e/%2e%2e/etc/passwd", "/images/0.png", "/picture", "/clip?id=nope"),
        *(f"/picture?id={id}" for id in ("nope", "/etc/passwd", quote("../cells/manifest.json"))),
    ],
)
def test_paths_outside_corpus_return_404(page, path):
    status, _, data = get(page, path)
    assert status == 404
    assert b"root:" not in data


def test_item_path_outside_image_folder_returns_404(pictures_run, tmp_path):
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8)).save(secret)
    with serving(untrained(pictures_run)) as server:
        items = server.search.items
        for number, path in enumerate((str(secret), f"../../{tmp_path.name}/secret.png")):
            items[number] = replace(items[number], path=path)
            assert get(server, f"/picture?id={items[number].id}")[0] == 404
        assert get(server, f"/picture?id={items[2].id}")[0] == 200


def test_host_and_method_are_checked_and_security_headers_set(page):
    assert get(page, "/?q=dog", host="evil.example:80")[0] == 400
    assert get(page, "/?q=dog", host=f"localhost:{page.port}")[0] == 200
    assert get(page, "/", method="PUT")[0] == 405
    for path in ("/", "/style.css", "/nothing", "/picture?id=nope"):
        headers = get(page, path)[1]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert {name: headers[name] for name in SAFE} == SAFE
        assert "Server" not in headers
    assert get(page, "/", host="[::1]:80")[0] == 200


@pytest.mark.parametrize("settings", [{"page": False}, {"search": False}])
def test_page_is_absent_when_disabled_or_without_search(pictures_run, settings):
    with serving(untrained(pictures_run), **settings) as server:
        assert get(server, "/")[1]["Content-Type"] == "application/json"
        for path in ("/style.css", "/picture?id=1"):
            assert get(server, path)[0] == 404
        assert get(server, "/", method="POST", body=b"x")[0] == 405


def test_videos_are_previewed_and_searched_by_upload(clips):
    status, html = text_page(clips, q="a dog")
    id = ids(html)[0]
    assert (status, f"/clip?id={id}" in html) == (200, True)
    status, headers, data = get(clips, f"/clip?id={id}")
    assert (status, headers["Content-Type"]) == (200, "image/webp")
    with Image.open(io.BytesIO(data)) as strip:
        assert strip.n_frames == 6
    assert get(clips, f"/picture?id={id}")[1]["Content-Type"] == "image/jpeg"
    status, html = send(clips, file_of(clips).read_bytes())
    hits = clips.search.find(Query(file=file_of(clips), video=True), 10)
    assert (status, ids(html)) == (200, [hit.id for hit in hits])


def answers_in(html: str, found: list[tuple[str, float]]) -> bool:
    return all(f"{100 * share:.1f}%</span> {answer}" in html for answer, share in found)


def test_questions_on_chosen_and_uploaded_images_are_answered(question_page):
    first, second = (ids(text_page(question_page, page=number)[1]) for number in (0, 1))
    assert (len(first), len(second)) == (24, 6)
    assert not set(first) & set(second)
    assert ids(text_page(question_page, page=9)[1]) == second
    status, html = text_page(question_page, id=first[0])
    assert (status, f'name="id" value="{first[0]}"' in html) == (200, True)
    question, search, file = "how many things?", question_page.search, file_of(question_page)
    status, html = text_page(question_page, id=first[0], q=question)
    assert status == 200
    assert answers_in(html, search.find(Query(id=first[0], text=question), 5))
    assert text_page(question_page, id="nope", q="how many?")[0] == 404
    assert text_page(question_page, id=first[0], q="")[0] == 400
    assert text_page(question_page, q="how many?")[0] == 400
    status, html = send(question_page, file.read_bytes(), q=question)
    assert (status, f'name="q" value="{question}"' in html) == (200, True)
    assert answers_in(html, search.find(Query(file=file, text=question), 5))
    status, html = send(question_page, file.read_bytes(), q="?!")
    assert (status, "a text without a word" in html) == (400, True)


def test_uploaded_image_finds_same_captions_as_its_file(page):
    status, html = send(page, file_of(page).read_bytes())
    hits = page.search.find(Query(file=file_of(page)), 10)
    assert (status, ids(html)) == (200, [hit.id for hit in hits])
    assert all(hit.caption in html for hit in hits)
    shown = base64.b64decode(re.search(r'src="data:image/jpeg;base64,(.+?)"', html)[1])
    assert Image.open(io.BytesIO(shown)).format == "JPEG"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"data": b"no picture"}, "the file that you sent: does not decode as an image"),
        ({"data": None, "q": "dog"}, "Field required"),
        ({"data": b""}, "choose a file first"),
        ({"data": None, "body": b"x", "kind": "text/plain"}, "Field required"),
        ({"data": None, "body": b"x", "kind": "multipart/form-data; boundary=a"}, "Invalid multipart"),
    ],
)
def test_form_without_valid_image_is_refused(page, sent, message):
    status, html = send(page, **sent)
    assert (status, message in html) == (400, True), html
    assert "/proc" not in html


SERVE = """
import sys, time
from polypool.pipelines.commands.serve import main
from polypool.pipelines.serving.service import Service
answer = Service.answer
slow = lambda service, rows: print("at work", flush=True) or time.sleep(90)
Service.answer = lambda self, rows: (slow if rows[0].text == "slow" else answer)(self, rows)
sys.argv = ["polypool serve", sys.argv[1], "--port", "0"]
main()
"""


@pytest.mark.slow  # starts a process; `infra/process/test_stopping.py` tests signals
def test_ctrl_c_stops_busy_server_and_queries_are_not_logged(tmp_path):
    (tmp_path / "model").mkdir()
    folder = export_untrained(with_pictures(tmp_path, train=8, val=4, test=4), tmp_path / "model")
    process = begin("-c", SERVE, str(folder), env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        line = process.stdout.readline()
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)  \(a page, .*Ctrl-C ends it\)", line)[1])
        assert process.stdout.readline().startswith("curl ")
        assert get(SimpleNamespace(port=port), "/?q=dog+unheard")[0] == 200
        assert get(SimpleNamespace(port=port), "/nothing?q=unheard")[0] == 404
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(b"GET /?q=slow HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
            assert process.stdout.readline() == "at work\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "stopped by Ctrl-C" in errors
    assert "unheard" not in errors
    assert "Traceback" not in errors
