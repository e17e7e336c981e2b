from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from pictures import noise
from PIL import Image
from toy import FolderLog

from polypool.infra.errors import InputError
from polypool.pipelines.figures.pages.document import data_address, templates
from polypool.pipelines.figures.pages.draw import draw
from polypool.pipelines.training.run_results import log_pictures
from polypool.tasks.adapter import PictureRecord


@dataclass(frozen=True, kw_only=True)
class Told(PictureRecord):
    text: str


class Silent(PictureRecord):
    pass


DRAWN: list[str] = []


@draw.register
def draw_told(record: Told) -> dict[str, bytes]:
    DRAWN.append(record.text)
    return {"told.txt": record.text.encode()}


def test_values_are_escaped_and_none_may_be_left_out() -> None:
    page = templates("polypool.pipelines.figures.pages").get_template("document.html.j2")
    html = page.render(title="<b>'&\"", about="<script>")
    assert "<title>&lt;b&gt;&#39;&amp;&#34;</title>" in html
    assert "<p>&lt;script&gt;</p>" in html
    with pytest.raises(UndefinedError, match="about"):
        page.render(title="")


def test_an_address_holds_a_jpeg_or_the_very_bytes() -> None:
    image = noise()
    source = data_address(image)
    assert source.startswith("data:image/jpeg;base64,")
    with Image.open(io.BytesIO(base64.b64decode(source.partition("base64,")[2]))) as read:
        assert (read.format, read.size) == ("JPEG", image.size)
    assert len(data_address(image, quality=95)) > len(source)
    for kind in ("png", "jpeg"):
        buffer = io.BytesIO()
        image.save(buffer, kind)
        source = data_address(buffer.getvalue())
        assert source == f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def test_records_of_others_files_and_nothing_are_drawn() -> None:
    assert draw(Told(text="a")) == {"told.txt": b"a"}
    assert draw({"a.png": b"1"}) == {"a.png": b"1"}
    assert draw(None) == {}
    with pytest.raises(InputError, match=r"are Silent, expected .*AnswerExamples, .*RetrievalExamples"):
        draw(Silent())
    with pytest.raises(InputError, match=r"'a.png' of an evaluation's pictures is str, expected bytes"):
        draw({"a.png": "1"})


def test_every_worker_makes_records_and_the_one_with_a_log_draws_them(tmp_path: Path) -> None:
    made = []

    def record() -> Told:
        made.append(1)
        return Told(text="b")

    log_pictures(None, record, Silent)
    assert made == [1]
    assert "b" not in DRAWN
    log_pictures(FolderLog(tmp_path), record, Silent, lambda: {"c.txt": b"c"})
    kept = {path.name: path.read_text() for path in (tmp_path / "figures").iterdir()}
    assert (kept["told.txt"], kept["c.txt"]) == ("b", "c"), "one that cannot be drawn costs no other"
    assert "Silent" in kept["failed.txt"]
