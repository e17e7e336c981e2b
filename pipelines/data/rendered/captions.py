"""Captions of the demo's scenes and videos: each describes a part, in random words.

Sizes, fills, backgrounds and sometimes colours are left out, one thing has several names, and several scenes may fit
one caption, as with captions that people write. Those of scenes are sentences as in COCO; those of videos are in lower
case and without a full stop, as in MSR-VTT, and describe a motion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from polypool.pipelines.data.rendered.shapes import Mover, MovingScene, Scene, Shape

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
PHRASES = {  # of each motion: of one thing, of one thing at this moment, and of several
    "left": (
        ("moves to the left", "is moving to the left", "move to the left"),
        ("slides left", "is sliding left", "slide left"),
        ("goes from right to left", "is going from right to left", "go from right to left"),
    ),
    "right": (
        ("moves to the right", "is moving to the right", "move to the right"),
        ("slides right", "is sliding right", "slide right"),
        ("goes from left to right", "is going from left to right", "go from left to right"),
    ),
    "up": (
        ("moves up", "is moving up", "move up"),
        ("rises", "is rising", "rise"),
        ("goes upwards", "is going upwards", "go upwards"),
    ),
    "down": (
        ("moves down", "is moving down", "move down"),
        ("falls", "is falling", "fall"),
        ("goes downwards", "is going downwards", "go downwards"),
    ),
    "grows": (
        ("grows", "is growing", "grow"),
        ("gets bigger", "is getting bigger", "get bigger"),
        ("becomes larger", "is becoming larger", "become larger"),
    ),
    "shrinks": (
        ("shrinks", "is shrinking", "shrink"),
        ("gets smaller", "is getting smaller", "get smaller"),
        ("becomes smaller", "is becoming smaller", "become smaller"),
    ),
    "stays": (
        ("stays in place", "is staying in place", "stay in place"),
        ("does not move", "is not moving", "do not move"),
        ("stands still", "is standing still", "stand still"),
    ),
    "circles": (
        ("moves in a circle", "is moving in a circle", "move in a circle"),
        ("goes round and round", "is going round and round", "go round and round"),
        ("turns around a point", "is turning around a point", "turn around a point"),
    ),
}


class Wording:
    """Random choices of words; the order of calls decides what a generator of numbers gives."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one_of(self, *choices: T) -> T:
        return choices[self.rng.integers(len(choices))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def word(self, word: str) -> str:
        return self.one_of(*SYNONYMS.get(word, (word,)))

    def shape(self, shape: Shape | Mover, *, formed: float, coloured: float) -> str:
        """Name a shape, with its article.

        Its form is said with a probability, and where it is, its colour likewise; one of both always is.
        """
        form = self.chance(formed)
        words = (
            self.word(shape.size) if shape.size and self.chance(0.5) else "",
            "striped" if isinstance(shape, Shape) and shape.striped and self.chance(0.6) else "",
            self.word(shape.colour) if self.chance(coloured) or not form else "",
            self.word(shape.form if form else "shape"),
        )
        return with_article(" ".join(filter(None, words)))


def different(make: Callable[[], str], count: int) -> list[str]:
    """Return what a function makes until it has made `count` different texts, each once."""
    unique: dict[str, None] = {}
    while len(unique) < count:
        unique[make()] = None
    return list(unique)


def with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def plural(word: str) -> str:
    return f"{word}es" if word.endswith(("s", "x")) else f"{word}s"


def captions(scene: Scene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Return `count` different captions of a scene."""
    found = different(_SceneWording(scene, rng).caption, count)
    return [f"{caption[0].upper()}{caption[1:]}." for caption in found]


class _SceneWording(Wording):
    """Makes captions of a scene of random kinds."""

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.scene = scene

    def caption(self) -> str:
        """Return a caption of some kind, relations twice as often as the others."""
        kinds = (self.relation, self.relation, self.listing, self.place, self.group, self.overview)
        return self.one_of(*kinds)()

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
        name = f"{self.word(colour)} {plural(self.word(form))}".strip()
        also = f" and {self.a(self.one_of(*rest))}" if rest and self.chance(0.5) else ""
        return f"{NUMBERS[counts[colour, form]]} {name}{also}{self.background(0.5)}"

    def overview(self) -> str:
        """Return "four shapes on a striped beige background, one of them a red circle"."""
        number, (shape,) = NUMBERS[len(self.scene.shapes)], self.some(1)
        return f"{number} {plural(self.word('shape'))}{self.background(0.7)}, one of them {self.a(shape)}"

    def a(self, shape: Shape) -> str:
        return self.shape(shape, formed=0.9, coloured=0.88)

    def background(self, probability: float) -> str:
        """Name the background, or leave it out."""
        if not self.chance(probability):
            return ""
        pattern = f"{self.scene.pattern} " if self.chance(0.5) else ""
        return f" on a {pattern}{self.scene.background} background"

    def some(self, number: int) -> list[Shape]:
        return [self.scene.shapes[i] for i in self.rng.permutation(len(self.scene.shapes))[:number]]


def moving_captions(scene: MovingScene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Return `count` different captions of a video."""
    return different(partial(_MotionWording(rng).caption, scene), count)


class _MotionWording(Wording):
    """Makes captions of one or two things and the motion of both."""

    def caption(self, scene: MovingScene) -> str:
        movers = [scene.movers[i] for i in self.rng.permutation(len(scene.movers))]
        if len(movers) == 1 or self.chance(0.35):
            start = self.one_of("", "", "there is ", "the video shows ")
            link = "that " if start else ""
            story = f"{start}{self.name(movers[0])} {link}{self.motion(movers[0])}"
        elif movers[0].motion == movers[1].motion and self.chance(0.5):
            several = self.one_of(*PHRASES[movers[0].motion])[2]
            story = f"{self.name(movers[0])} and {self.name(movers[1])} {several}"
        else:
            first, second = (f"{self.name(mover)} {self.motion(mover)}" for mover in movers[:2])
            story = f"{first} {self.one_of('while', 'and', 'as')} {second}"
        return f"{story} on a {scene.background} background" if self.chance(0.25) else story

    def name(self, mover: Mover) -> str:
        return self.shape(mover, formed=0.92, coloured=0.9)

    def motion(self, mover: Mover) -> str:
        return self.one_of(*self.one_of(*PHRASES[mover.motion])[:2])
