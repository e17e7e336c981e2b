from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from markup import NASTY, well_formed
from pictures import noise
from toy import FolderLog

from polypool.infra.errors import InputError
from polypool.pipelines.figures.pages import draw
from polypool.pipelines.training.record import log_pictures
from polypool.tasks.adapter import PictureRecord
from polypool.tasks.datasets.corpus import PicturedItem
from polypool.tasks.questions.answer_report import AnswerExample, AnswerExamples


@dataclass(frozen=True, kw_only=True)
class Told(PictureRecord):
    text: str


class Silent(PictureRecord): ...


DRAWN: list[str] = []


@draw.register
def draw_told(record: Told) -> dict[str, bytes]:
    DRAWN.append(record.text)
    return {"told.txt": record.text.encode()}


def test_draw_dispatches_by_record_type():
    assert draw(Told(text="a")) == {"told.txt": b"a"}
    assert draw({"a.png": b"1"}) == {"a.png": b"1"}
    assert draw(None) == {}
    with pytest.raises(InputError, match=r"are Silent, expected .*AnswerExamples, .*RetrievalExamples"):
        draw(Silent())


def test_only_worker_with_log_draws_pictures(tmp_path):
    made = []

    def record() -> Told:
        made.append(1)
        return Told(text="b")

    log_pictures(None, record, Silent)
    assert made == [1]
    assert "b" not in DRAWN
    log_pictures(FolderLog(tmp_path), record, Silent, lambda: {"c.txt": b"c"})
    files = {path.name: path.read_text() for path in (tmp_path / "figures").iterdir()}
    assert (files["told.txt"], files["c.txt"]) == ("b", "c"), "a failed drawing must not stop the others"
    assert "Silent" in files["failed.txt"]


def example(*, file: Path | None = None, **changes: object) -> AnswerExample:
    usual = {"id": "7", "question": "What is it?", "kind": "what is", "answers": ("cat",) * 7 + ("dog",) * 3}
    usual |= {"prediction": "cat", "confidence": 0.625, "accuracy": 1.0}
    return AnswerExample(**usual | {"image": PicturedItem(id="70", file=file)} | changes)


def page(*examples: AnswerExample, split: str = "test", accuracy: float | None = 61.25) -> str:
    record = AnswerExamples(split=split, questions=1200, accuracy=accuracy, examples=examples)
    return draw(record)[f"vqa_{split}_examples.html"].decode()


def test_answer_page_escapes_html_and_embeds_images(tmp_path):
    nasty = example(id=NASTY, question=NASTY, kind=NASTY, answers=(NASTY,) * 10, prediction=NASTY)
    noise().save(tmp_path / "1.png")
    html = page(nasty, example(file=tmp_path / "1.png"), example(file=tmp_path / "gone.png"), split=NASTY)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 7
    assert well_formed(html)
    assert html.count('src="data:image/jpeg;base64,') == html.count("<img") == 1
    assert html.count("no image") == 2


def test_answer_card_shows_confidence_and_accuracy():
    html = page(example(accuracy=0.3, prediction="dog"))
    assert '<strong class="bad">dog</strong> <small>confidence 62%, accuracy 30%</small>' in html
    good = '<strong class="good">cat</strong> <small>confidence 62%, accuracy 50%</small>'
    assert good in page(example(accuracy=0.5))
    unanswered = page(example(accuracy=None, answers=()), accuracy=None)
    assert "accuracy" not in unanswered
