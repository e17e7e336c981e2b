from __future__ import annotations

from pathlib import Path

from markup import well_formed
from pictures import noise

from polypool.pipelines.figures.pages.draw import draw
from polypool.tasks.datasets.open_corpora import PicturedItem
from polypool.tasks.questions.answer_report import AnswerExample, AnswerExamples

NASTY = "<script>alert('&\"')</script>"


def example(*, file: Path | None = None, **changes: object) -> AnswerExample:
    usual = {
        "id": "7",
        "question": "What is it?",
        "kind": "what is",
        "answers": ("cat",) * 7 + ("dog",) * 3,
        "prediction": "cat",
        "confidence": 0.625,
        "accuracy": 1.0,
        "image": PicturedItem(id="70", file=file),
    }
    return AnswerExample(**usual | changes)


def page(*examples: AnswerExample, split: str = "test", accuracy: float | None = 61.25) -> str:
    record = AnswerExamples(split=split, questions=1200, accuracy=accuracy, examples=examples)
    return draw(record)[f"vqa_{split}_examples.html"].decode()


def test_everything_is_escaped_and_every_tag_is_closed() -> None:
    nasty = example(id=NASTY, question=NASTY, kind=NASTY, answers=(NASTY,) * 10, prediction=NASTY)
    html = page(nasty, example(), split=NASTY)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 7
    assert well_formed(html)


def test_a_card_tells_answers_with_counts_confidence_and_accuracy() -> None:
    html = page(example(accuracy=0.3, prediction="dog"))
    assert "1 of 1,200 questions" in html
    assert "The accuracy of all is 61.25%." in html
    assert "cat <small>&times;7</small>, dog <small>&times;3</small>" in html
    assert '<strong class="bad">dog</strong> <small>confidence 62%, accuracy 30%</small>' in html
    assert '<strong class="good">cat</strong> <small>confidence 62%, accuracy 50%</small>' in page(
        example(accuracy=0.5)
    )
    assert "no image" in html
    unanswered = page(example(accuracy=None, answers=()), accuracy=None)
    assert "not asked" in unanswered
    assert "accuracy" not in unanswered
    assert "<strong>cat</strong>" in unanswered


def test_images_are_in_the_page(tmp_path: Path) -> None:
    noise().save(tmp_path / "1.png")
    html = page(example(file=tmp_path / "1.png"), example(file=tmp_path / "gone.png"))
    assert html.count('src="data:image/jpeg;base64,') == html.count("<img") == 1
    assert html.count("no image") == 1
