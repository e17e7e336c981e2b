"""The page of answers: questions of a split with their images, what people answered, and what the model did."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipelines.pages.document import data_address, templates
from pipelines.pages.thumbnails import Thumbnails
from tasks.questions.report import AnswerExample, AnswerExamples


def answers_page(record: AnswerExamples) -> str:
    """Return the whole page; an answer counts as good from an accuracy of one half."""
    about = f"{len(record.examples)} of {record.questions:,} questions: right and wrong answers in turn, of many types."
    if record.accuracy is not None:
        about += f" The accuracy of all is {record.accuracy:.2f}%."
    with Thumbnails(video=False) as thumbnails:
        cards = [_card(example, thumbnails) for example in record.examples]
    page = templates("pipelines.pages").get_template("answers.html.j2")
    return page.render(title=f"Questions of the split {record.split}", about=about, cards=cards)


def _card(example: AnswerExample, thumbnails: Thumbnails) -> dict[str, Any]:
    images = thumbnails.images(example.image.file)
    good = None if example.accuracy is None else example.accuracy >= 0.5
    return {
        "example": example,
        "image": data_address(images[0]) if images else "",
        "mark": {None: "", True: "good", False: "bad"}[good],
        "people": Counter(example.answers).most_common(),
    }
