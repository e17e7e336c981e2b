"""Captions for the demo's scenes: each tells a part of a scene, in words chosen at random.

Sizes, fills and sometimes colours are left unsaid, one thing has several names, and several scenes may fit one
caption, as with captions that people write.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import numpy as np

from pipelines.rendered.shapes import Scene, Shape

T = TypeVar("T")

SYNONYMS = {
    "circle": ("circle", "disc"),
    "cross": ("cross", "plus sign"),
    "ring": ("ring", "hoop"),
    "moon": ("moon", "crescent"),
    "purple": ("purple", "violet"),
    "small": ("small", "little", "tiny"),
    "medium": ("",),
    "large": ("large", "big", "huge"),
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
    "shape": ("shape", "object", "thing"),
    "top": ("at the top", "in the upper part"),
    "bottom": ("at the bottom", "in the lower part"),
    "left": ("on the left", "on the left side"),
    "right": ("on the right", "on the right side"),
}
NUMBERS = ("no", "one", "two", "three", "four", "five")


EXTREMES = {
    "left": lambda shape: shape.x,
    "right": lambda shape: -shape.x,
    "top": lambda shape: shape.y,
    "bottom": lambda shape: -shape.y,
}


def captions(scene: Scene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Return `count` different captions of a scene."""
    teller, unique = _Teller(scene, rng), {}
    while len(unique) < count:
        caption = teller.tell()
        unique[f"{caption[0].upper()}{caption[1:]}."] = True
    return list(unique)


class _Teller:
    """Makes one caption after the other; what each of them tells and leaves out is chance."""

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        self.scene = scene
        self.rng = rng

    def tell(self) -> str:
        """Return a caption of some kind, relations twice as often as the others."""
        tell = self.one_of(self.relation, self.relation, self.listing, self.place, self.group, self.overview)
        return tell()

    def relation(self) -> str:
        """Return "a small red circle above a blue square"."""
        one, other = self.some(2)
        right, down = one.x - other.x, one.y - other.y
        beside, upright = "right of" if right > 0 else "left of", "below" if down > 0 else "above"
        where = beside if abs(right) > abs(down) else upright
        there = self.one_of("", "", "there is ")
        return f"{there}{self.a(one)} {self.word(where)} {self.a(other)}{self.background(0.2)}"

    def listing(self) -> str:
        """Return "a red circle, a striped ring and a blue square on a dark background"."""
        *names, last = [self.a(shape) for shape in self.some(self.one_of(2, 3))]
        return f"{', '.join(names)} and {last}{self.background(0.5)}"

    def place(self) -> str:
        """Return "on the left there is a red circle"."""
        side = self.one_of(*EXTREMES)
        name, where = self.a(min(self.scene.shapes, key=EXTREMES[side])), self.word(side)
        return self.one_of(f"{where} there is {name}{self.background(0.3)}", f"{name} {where} of the picture")

    def group(self) -> str:
        """Return "two red circles and a blue square"; an overview where no two shapes have anything in common."""
        shapes = self.scene.shapes
        counts = Counter(
            kind for s in shapes for kind in ((s.colour, s.form), ("", s.form), (s.colour, "shape"))
        )
        common = sorted(kind for kind, number in counts.items() if number > 1)
        if not common:
            return self.overview()
        colour, form = self.one_of(*common)
        rest = [s for s in shapes if colour not in ("", s.colour) or form not in ("shape", s.form)]
        name = f"{self.word(colour)} {_plural(self.word(form))}".strip()
        also = f" and {self.a(self.one_of(*rest))}" if rest and self.chance(0.5) else ""
        return f"{NUMBERS[counts[colour, form]]} {name}{also}{self.background(0.5)}"

    def overview(self) -> str:
        """Return "four shapes on a striped beige background, one of them a red circle"."""
        number, (shape,) = NUMBERS[len(self.scene.shapes)], self.some(1)
        return f"{number} {_plural(self.word('shape'))}{self.background(0.7)}, one of them {self.a(shape)}"

    def a(self, shape: Shape) -> str:
        """Name a shape, with its article; its colour or its form may be left out, but not both."""
        form = self.chance(0.9)
        words = (
            self.word(shape.size) if self.chance(0.5) else "",
            "striped" if shape.striped and self.chance(0.6) else "",
            self.word(shape.colour) if self.chance(0.88) or not form else "",
            self.word(shape.form if form else "shape"),
        )
        name = " ".join(filter(None, words))
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

    def background(self, probability: float) -> str:
        """Name the background, or leave it out."""
        if not self.chance(probability):
            return ""
        pattern = f"{self.scene.pattern} " if self.chance(0.5) else ""
        return f" on a {pattern}{self.scene.background} background"

    def word(self, word: str) -> str:
        return self.one_of(*SYNONYMS.get(word, (word,)))

    def some(self, number: int) -> list[Shape]:
        return [self.scene.shapes[i] for i in self.rng.permutation(len(self.scene.shapes))[:number]]

    def one_of(self, *choices: T) -> T:
        return choices[self.rng.integers(len(choices))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)


def _plural(word: str) -> str:
    return f"{word}es" if word.endswith(("s", "x")) else f"{word}s"
