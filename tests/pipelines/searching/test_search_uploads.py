"""Files that visitors send to the page: searched as files of a path are, bounded, and kept nowhere."""

from __future__ import annotations

import base64
import io
import os
import re
import tempfile
from html import unescape
from pathlib import Path
from uuid import uuid4

import pytest
from PIL import Image
from searchable import get, text_page

from infra.errors import InputError
from pipelines.searching.uploads import LARGEST, as_file


def send(server, data: bytes | None, *, name: str = "file", headers=(), **fields: str):
    """Send a form as a browser does; return the status and the HTML."""
    boundary = uuid4().hex
    parts = [
        f'Content-Disposition: form-data; name="{key}"\r\n\r\n{text}'.encode() for key, text in fields.items()
    ]
    if data is not None:
        head = f'Content-Disposition: form-data; name="{name}"; filename="a b.png"\r\nContent-Type: image/png\r\n\r\n'
        parts.append(head.encode() + data)
    body = (
        b"".join(b"--%s\r\n%s\r\n" % (boundary.encode(), part) for part in parts)
        + b"--%s--\r\n" % boundary.encode()
    )
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"} | dict(headers)
    status, _, page = get(server, "/", method="POST", body=body, headers=kind)
    return status, page.decode()


def picture_of(server, number: int = 0) -> Path:
    searched = server.views.searched
    return searched.corpus.image_path(searched.items[number])


def test_a_picture_that_is_sent_gets_the_captions_of_its_file(pictures, monkeypatch):
    monkeypatch.setattr(tempfile, "mkstemp", None)  # nothing is written to a folder
    file = picture_of(pictures)
    status, page = send(pictures, file.read_bytes())
    assert status == 200
    hits = pictures.views.searched.by_file(file, 10, video=False)
    assert re.findall(r'<li data-id="(.*?)">', page) == [hit.id for hit in hits]
    assert all(hit.caption in unescape(page) for hit in hits)
    shown = base64.b64decode(re.search(r'src="data:image/jpeg;base64,(.+?)"', page)[1])
    assert Image.open(io.BytesIO(shown)).format == "JPEG"


def test_a_question_is_asked_about_a_picture_that_is_sent(questions):
    file, searched = picture_of(questions), questions.views.searched
    status, page = send(questions, file.read_bytes(), q="what colour is the square?")
    assert status == 200
    for answer, confidence in searched.of_file(file, "what colour is the square?", 5):
        assert f"{100 * confidence:.1f}%</span> {answer}" in unescape(page)
    assert 'name="q" value="what colour is the square?"' in page, "what was asked is there still"
    status, page = send(questions, file.read_bytes(), q="?!")
    assert (status, "has no word" in unescape(page)) == (400, True)


def test_a_video_that_is_sent_is_decoded_in_a_process_of_its_own(clips):
    file = picture_of(clips)
    status, page = send(clips, file.read_bytes())
    hits = clips.views.searched.by_file(file, 10, video=True)
    assert status == 200
    assert re.findall(r'<li data-id="(.*?)">', page) == [hit.id for hit in hits]


@pytest.mark.parametrize("data", [b"no picture", b"\x89PNG\r\n\x1a\n cut"])
def test_what_is_no_picture_is_said_without_a_path(pictures, data):
    status, page = send(pictures, data)
    assert status == 400
    assert "the file that you sent: does not decode as an image" in unescape(page)
    assert "/proc" not in page


def test_forms_that_hold_no_file_or_several_are_refused(pictures):
    file = picture_of(pictures).read_bytes()
    for sent in ({"data": None, "q": "dog"}, {"data": b""}, {"data": file, "name": "other"}):
        status, page = send(pictures, **sent)
        assert (status, "choose a file first" in page) == (400, True)
    many = {f"field{number}": "x" for number in range(20)}
    assert send(pictures, file, **many)[0] == 400
    assert send(pictures, file, headers={"Content-Type": "text/plain"})[0] == 400
    assert send(pictures, file, headers={"Content-Type": "multipart/form-data; boundary=another"})[0] == 400
    status, page = send(pictures, b"x" * (LARGEST + 1))
    assert (status, f"at most {LARGEST:,}" in page) == (400, True)


def test_a_form_on_a_page_of_elsewhere_sends_nothing(pictures):
    file = picture_of(pictures).read_bytes()
    for site, expected in {"cross-site": 403, "same-site": 403, "same-origin": 200}.items():
        assert send(pictures, file, headers={"Sec-Fetch-Site": site})[0] == expected


def test_the_first_page_shows_what_can_be_chosen(pictures):
    status, page = text_page(pictures)
    assert status == 200
    items = pictures.views.searched.items
    assert re.findall(r'<li data-id="(.*?)">', page) == [item.id for item in items]
    assert f'href="/?like={items[0].id}"' in page
    assert 'type="file" name="file" accept="image/*"' in page


def test_a_file_in_memory_is_gone_afterwards_and_errors_do_not_name_it(monkeypatch):
    for without in (False, True):
        if without:
            monkeypatch.delattr(os, "memfd_create")
        with as_file(b"abc", what="it") as path:
            assert path.read_bytes() == b"abc"
        assert not path.exists()
        with pytest.raises(InputError, match=r"^it: odd$"), as_file(b"", what="it") as path:
            raise InputError(f"{path}: odd")
