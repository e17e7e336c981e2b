"""The page over plain HTTP, with what a stranger might send."""

from __future__ import annotations

import io
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from PIL import Image
from searchable import get, ids, serving, text_page, untrained, with_pictures

from infra.errors import InputError
from pipelines.searching.server import Server


def test_a_text_gets_results_with_scores_and_pictures(pictures):
    status, html = text_page(pictures, q="a dog and a cat")
    hits = pictures.views.searched.by_text("a dog and a cat", 10)
    assert status == 200
    assert ids(html) == [hit.id for hit in hits]
    assert all(f"{hit.score:.4f}" in html and hit.caption in html for hit in hits)
    status, headers, data = get(pictures, f"/picture?id={hits[0].id}")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (80, 60)
    assert get(pictures, "/")[0] == 200
    assert pictures.address.startswith("http://127.0.0.1:")


def test_an_item_gets_its_captions(pictures):
    id = pictures.views.searched.items[2].id
    status, html = text_page(pictures, like=id)
    assert status == 200
    assert ids(html) == [hit.id for hit in pictures.views.searched.by_id(id, 10)]


@pytest.mark.parametrize(
    "query", ["", "   ", "?!", "x " * 600, "\x00", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_query_without_sense_is_said(pictures, query):
    status, html = text_page(pictures, q=query)
    assert status == 400
    assert 'role="alert"' in html


def test_nothing_outside_the_corpus_is_served(pictures, tmp_path):
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/picture?id=../../etc/passwd",
        "/picture?id=/etc/passwd",
        f"/picture?id={quote('../cells/manifest.json')}",
        "/picture?id=nope",
        "/picture",
        "/clip?id=nope",
        "/images/0.png",
        "//etc/passwd",
    ):
        status, _, data = get(pictures, path)
        assert status in (400, 404), path
        assert b"root:" not in data
    items, secret = pictures.views.searched.items, tmp_path / "secret.png"
    Image.new("RGB", (8, 8)).save(secret)
    kept = items[-1]
    for path in (str(secret), f"../../{tmp_path.name}/secret.png"):
        items[-1] = replace(kept, path=path)
        pictures.views.pictures.kept.clear()
        assert get(pictures, f"/picture?id={kept.id}")[0] == 404
    items[-1] = kept
    pictures.views.pictures.kept.clear()
    assert get(pictures, f"/picture?id={kept.id}")[0] == 200


def test_other_names_and_other_methods_are_refused(pictures):
    assert get(pictures, "/?q=dog", host="evil.example:80")[0] == 403
    assert get(pictures, "/?q=dog", host=f"localhost:{pictures.port}")[0] == 200
    assert get(pictures, "/", method="PUT")[0] == 405
    status, headers, data = get(pictures, "/", method="HEAD")
    assert (status, data) == (200, b"")
    for path in ("/", "/style.css", "/nothing", "/picture?id=nope"):
        for host in (None, "evil.example"):
            headers = get(pictures, path, host=host)[1]
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-store"
            assert "Server" not in headers
    assert get(pictures, "/?" + "&".join(f"a{n}=1" for n in range(50)))[0] == 400
    with pytest.raises(InputError, match="cannot be had"):
        Server(pictures.views.searched, title="", port=pictures.port)


def test_nothing_is_said_of_queries_and_ctrl_c_ends_it(tmp_path):
    program = tmp_path / "serve.py"
    program.write_text(
        "import sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from searchable import ids, serving, untrained, with_pictures\n"
        "from pipelines.searching.server import serve\n"
        "run = with_pictures(Path(sys.argv[1]), train=8, val=4, test=4)\n"
        "serve(untrained(run).open_search(), title='t')\n"
        "print('ended')\n"
    )
    arguments = [sys.executable, str(program), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/  \(Ctrl-C ends it\)", line)[1])
            assert get(SimpleNamespace(port=port), "/?q=dog+unheard")[0] == 200
            assert get(SimpleNamespace(port=port), "/nothing?q=unheard")[0] == 404
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "\nended\n"), errors
    assert "unheard" not in errors
    assert "Traceback" not in errors


def test_ctrl_c_ends_it_though_the_model_is_at_work(tmp_path):
    program = tmp_path / "serve.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from infra.errors import command\n"
        "from pipelines.searching import server\n"
        "from searchable import untrained, with_pictures\n"
        "finder = untrained(with_pictures(Path(sys.argv[1]), train=8, val=4, test=4)).open_search()\n"
        "finder.by_texts = lambda texts, k: print('at work', flush=True) or time.sleep(90)\n"
        "command(lambda: server.serve(finder, title='t'))()\n"
    )
    arguments = [sys.executable, str(program), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(b"GET /?q=dog HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert process.stdout.readline() == "at work\n"
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "stopped by Ctrl-C" in errors
    assert "Traceback" not in errors


def test_the_page_asks_nothing_of_elsewhere(pictures):
    pages = [text_page(pictures, q="a dog")[1], get(pictures, "/style.css")[2].decode()]
    assert not any("http" in page or "//" in page for page in pages)


def test_videos_play_a_few_frames(clips):
    status, html = text_page(clips, q="a dog")
    assert status == 200
    id = ids(html)[0]
    assert f"/clip?id={id}" in html
    status, headers, data = get(clips, f"/clip?id={id}")
    assert (status, headers["Content-Type"]) == (200, "image/webp")
    with Image.open(io.BytesIO(data)) as strip:
        assert strip.n_frames == 6
    assert get(clips, f"/picture?id={id}")[1]["Content-Type"] == "image/jpeg"


def test_a_picture_that_does_not_decode_or_is_gone_costs_only_itself(tmp_path):
    finder = untrained(with_pictures(tmp_path, train=8, val=4, test=4)).open_search()
    files = [tmp_path / "images" / f"{item.id}.png" for item in finder.items]
    files[0].write_text("broken")
    files[1].unlink()
    with serving(finder) as server:
        status, html = text_page(server, q="a dog")
        assert status == 200
        assert len(ids(html)) == 4
        assert html.count("no file") == 1
        assert get(server, f"/picture?id={files[0].stem}")[0] == 404
        shutil.rmtree(tmp_path / "images")
        assert "scores and captions alone" in text_page(server, q="a dog")[1]


def test_an_image_is_chosen_and_a_question_answered(questions):
    status, html = text_page(questions)
    assert status == 200
    first = ids(html)
    assert len(first) == 24
    second = ids(text_page(questions, page=1)[1])
    assert len(second) == 6
    assert not set(first) & set(second)
    for odd in ("-1", "x", "9" * 40, "²"):
        assert text_page(questions, page=odd)[0] == 200
    status, html = text_page(questions, image=first[0])
    assert status == 200
    assert "<form" in html
    status, html = text_page(questions, image=first[0], q="how many things?")
    assert status == 200
    for answer, share in questions.views.searched.of_id(first[0], "how many things?", 5):
        assert f"{100 * share:.1f}%</span> {answer}" in html
    assert text_page(questions, image="nope", q="how many?")[0] == 404
    assert text_page(questions, image=first[0], q="")[0] == 400
    assert text_page(questions, q="how many?")[0] == 400
