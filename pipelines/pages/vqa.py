"""A page to look at: questions of a split with their images, what people answered, and what the model did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL.Image import Image

from pipelines.pages.shell import address, page

_STYLE = """
img, .none { aspect-ratio: 4 / 3; background: var(--pale); object-fit: contain; width: 100%; }
"""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One question and its answers.

    Attributes:
        id: of the question.
        question: its text.
        kind: its type, such as "what color".
        answers: what people said; empty where nobody was asked.
        prediction: what the model says.
        confidence: its probability, 0 to 1.
        accuracy: the official one, 0 to 1; None where nobody was asked.
        image: a small picture; None where there is none.
    """

    id: str
    question: str
    kind: str
    answers: Sequence[str]
    prediction: str
    confidence: float
    accuracy: float | None
    image: Image | None


def examples_page(title: str, about: str, examples: Sequence[Example]) -> str:
    """Return a whole HTML page that needs nothing beside itself.

    Args:
        title: what it says at the top.
        about: a sentence below.
        examples: what is shown.
    """
    return page(title, about, map(_card, examples), style=_STYLE)


def _card(example: Example) -> str:
    shown = (
        f'<img src="{address(example.image)}" alt="the image" loading="lazy">'
        if example.image
        else '<div class="none">no image</div>'
    )
    said = Counter(example.answers).most_common()
    people = ", ".join(f"{escape(answer)} <small>&times;{count}</small>" for answer, count in said)
    mark, verdict = "", ""
    if example.accuracy is not None:
        mark = ' class="good"' if example.accuracy >= 0.5 else ' class="bad"'
        verdict = f", accuracy {100 * example.accuracy:.0f}%"
    return (
        f"<article>{shown}<div>\n<h2>{escape(example.question)}</h2>\n"
        f"<p>Model: <strong{mark}>{escape(example.prediction)}</strong> "
        f"<small>confidence {100 * example.confidence:.0f}%{verdict}</small></p>\n"
        f"<p>People: {people or '<small>not asked</small>'}</p>\n"
        f"<p><small>{escape(example.kind)} &middot; question {escape(example.id)}</small></p>\n</div></article>"
    )
