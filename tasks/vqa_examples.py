"""A page to look at: questions of a split with their images, what people answered, and what the model did."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
from PIL import Image

_SIDE, _QUALITY = 320, 70  # of the pictures: the longer side in pixels, and JPEG's quality
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #c0362c; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); }
article { border: 1px solid var(--line); border-radius: .6rem; overflow: hidden; }
article > div { padding: .2rem .9rem .7rem; }
img, .none { aspect-ratio: 4 / 3; display: block; object-fit: contain; width: 100%; background: #8882; }
.none { align-content: center; text-align: center; opacity: .6; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: .5rem 0; overflow-wrap: anywhere; }
p { margin: .4rem 0; overflow-wrap: anywhere; } small { opacity: .7; }
.good { color: var(--good); } .bad { color: var(--bad); }
@media (prefers-color-scheme: dark) { :root { --good: #56d364; --bad: #ff7b72; } }
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
        image: the picture's file; None where there is none.
    """

    id: str
    question: str
    kind: str
    answers: Sequence[str]
    prediction: str
    confidence: float
    accuracy: float | None
    image: Path | None


def choose(type_Q: Sequence[str], right_Q: np.ndarray, *, count: int = 40) -> list[int]:
    """Return the numbers of up to `count` questions: right and wrong ones in turn, of as many types as there are."""
    groups: dict[bool, dict[str, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    for number in np.random.default_rng(0).permutation(len(type_Q)).tolist():
        groups[bool(right_Q[number])][type_Q[number]].append(number)
    pairs = zip_longest(_in_turn(groups[True]), _in_turn(groups[False]))
    return list(islice((number for pair in pairs for number in pair if number is not None), count))


def _in_turn(groups: dict[str, list[int]]) -> Iterator[int]:
    """Yield one of each group, then another of each, the largest group first."""
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for turn in zip_longest(*(numbers for _, numbers in largest_first)):
        yield from (number for number in turn if number is not None)


def page(
    title: str, about: str, examples: Sequence[Example], *, picture: Callable[[Path], str] | None = None
) -> str:
    """Return a whole HTML page that needs nothing beside itself.

    Args:
        title: what it says at the top.
        about: a sentence below.
        examples: what is shown.
        picture: makes the address of an image for the page; by default the image itself, made small.
    """
    cards = "\n".join(_card(example, picture or small_jpeg) for example in examples)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n<main>\n{cards}\n</main>\n</body>\n</html>\n"
    )


def _card(example: Example, picture: Callable[[Path], str]) -> str:
    source = picture(example.image) if example.image else ""
    shown = (
        f'<img src="{escape(source)}" alt="the image" loading="lazy">'
        if source
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


def small_jpeg(path: Path) -> str:
    """Return a small copy of an image as an address that holds it; empty where it does not decode."""
    buffer = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.draft(
                "RGB", (_SIDE, _SIDE)
            )  # a JPEG decodes at a fraction of its size, in a fraction of the time
            small = image.convert("RGB")
        small.thumbnail((_SIDE, _SIDE))
        small.save(buffer, "JPEG", quality=_QUALITY)
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
