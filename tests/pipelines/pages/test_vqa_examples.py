from __future__ import annotations

from html.parser import HTMLParser

from pictures import noise

from pipelines.pages.vqa import Example, examples_page

NASTY = "<script>alert('&\"')</script>"


def example(**changes: object) -> Example:
    usual = {
        "id": "7",
        "question": "What is it?",
        "kind": "what is",
        "answers": ("cat",) * 7 + ("dog",) * 3,
        "prediction": "cat",
        "confidence": 0.625,
        "accuracy": 1.0,
        "image": None,
    }
    return Example(**usual | changes)


def test_everything_is_escaped_and_every_tag_is_closed():
    nasty = example(id=NASTY, question=NASTY, kind=NASTY, answers=(NASTY,) * 10, prediction=NASTY)
    html = examples_page(NASTY, NASTY, [nasty, example()])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 8
    unclosed = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img"):
                unclosed.append(tag)

        def handle_endtag(self, tag):
            assert unclosed.pop() == tag

    Tags().feed(html)
    assert not unclosed


def test_a_card_tells_answers_with_counts_confidence_and_accuracy():
    html = examples_page("t", "a", [example(accuracy=0.3, prediction="dog")])
    assert "cat <small>&times;7</small>, dog <small>&times;3</small>" in html
    assert '<strong class="bad">dog</strong> <small>confidence 62%, accuracy 30%</small>' in html
    assert "no image" in html
    asked = examples_page("t", "a", [example(accuracy=None, answers=())])
    assert "not asked" in asked
    assert "accuracy" not in asked


def test_images_are_in_the_page():
    html = examples_page("t", "a", [example(image=noise()), example()])
    assert html.count('src="data:image/jpeg;base64,') == html.count("<img") == 1
    assert html.count("no image") == 1
