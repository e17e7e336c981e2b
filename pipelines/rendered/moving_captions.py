"""Captions for the demo's videos: what is seen and how it moves, in words chosen at random.

In lower case and without a full stop, as MSR-VTT's. Each caption tells of one or two things and of the motion of
both; sizes, backgrounds and at times colours are left unsaid.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from pipelines.rendered.scene_captions import SYNONYMS
from pipelines.rendered.shapes import Mover, MovingScene

T = TypeVar("T")

PHRASES = {  # of each motion: how it is said of one thing, of one thing at this moment, and of several
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


def moving_captions(scene: MovingScene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Return `count` different captions of a video."""
    unique: dict[str, None] = {}
    while len(unique) < count:
        unique[_caption(scene, rng)] = None
    return list(unique)


def _caption(scene: MovingScene, rng: np.random.Generator) -> str:
    movers = [scene.movers[i] for i in rng.permutation(len(scene.movers))]
    if len(movers) == 1 or rng.random() < 0.35:
        start = _one_of(rng, "", "", "there is ", "the video shows ")
        link = "that " if start else ""
        story = f"{start}{_name(movers[0], rng)} {link}{_motion(movers[0].motion, rng)}"
    elif movers[0].motion == movers[1].motion and rng.random() < 0.5:
        several = _one_of(rng, *PHRASES[movers[0].motion])[2]
        story = f"{_name(movers[0], rng)} and {_name(movers[1], rng)} {several}"
    else:
        first, second = (f"{_name(mover, rng)} {_motion(mover.motion, rng)}" for mover in movers[:2])
        story = f"{first} {_one_of(rng, 'while', 'and', 'as')} {second}"
    return f"{story} on a {scene.background} background" if rng.random() < 0.25 else story


def _name(mover: Mover, rng: np.random.Generator) -> str:
    """Name a thing, with its article; its colour or its form may be left out, but not both."""
    form = rng.random() < 0.92
    words = (
        _word(mover.size, rng) if mover.size and rng.random() < 0.5 else "",
        _word(mover.colour, rng) if rng.random() < 0.9 or not form else "",
        _word(mover.form if form else "shape", rng),
    )
    name = " ".join(filter(None, words))
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _motion(motion: str, rng: np.random.Generator) -> str:
    return _one_of(rng, *_one_of(rng, *PHRASES[motion])[:2])


def _word(word: str, rng: np.random.Generator) -> str:
    return _one_of(rng, *SYNONYMS.get(word, (word,)))


def _one_of(rng: np.random.Generator, *choices: T) -> T:
    return choices[rng.integers(len(choices))]
