"""The demo's corpora: rendered scenes with captions and questions, and videos of moving shapes.

Scenes have three to five shapes that differ in colour, form, size, fill and place, on a pattern with noise,
and are written as COCO and Karpathy's splits are published. Videos have one or two shapes, each of which moves in a
direction, grows, shrinks, circles or stays where it is; they are written as MSR-VTT is published, and a frame from the
middle does not show which motion it is.

A caption describes a part, in random words. Sizes, fills, backgrounds and sometimes colours are left out, one thing has
several names, and several scenes may fit one caption, as with captions that people write. Questions about the scenes
have ten answers each, as in VQA 2.0: of ten people some use another word and some err, so no model can be perfect, and
half of the answers to questions of yes and no are no.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder, write_json
from polypool.infra.process.progress import Progress
from polypool.infra.video import write_video

COLOURS = {
    "red": (206, 56, 52),
    "orange": (238, 138, 42),
    "yellow": (244, 208, 68),
    "green": (70, 150, 84),
    "blue": (58, 104, 190),
    "purple": (130, 78, 166),
    "pink": (240, 152, 182),
    "brown": (124, 82, 52),
    "black": (42, 42, 48),
    "white": (248, 248, 244),
}
BACKGROUNDS = {
    "grey": (158, 162, 168),
    "beige": (226, 211, 182),
    "light blue": (170, 204, 228),
    "pale green": (184, 214, 186),
    "dark": (62, 66, 84),
}
_SMOOTH = 3
PATTERNS = ("plain", "striped", "dotted", "checked")


def _around(radius: float, points: int, *, start: float = -90, x: float = 0, y: float = 0) -> np.ndarray:
    """Return corners on a circle, the first at the angle `start`, `(points, 2)`."""
    angle = np.radians(start + np.arange(points) * 360 / points)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


def _star() -> np.ndarray:
    return np.stack([_around(1.1, 5), _around(0.48, 5, start=-54)], axis=1).reshape(-1, 2)


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 60)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([16 * np.sin(t) ** 3, y], axis=1) / 16


def _cross() -> np.ndarray:
    a, b = 0.33, 1.0
    half = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a)]
    return np.array(half + [(-x, -y) for x, y in half])


FORMS: dict[str, tuple[np.ndarray, ...]] = {  # an outline, and where there is one a hole in it, of radius 1
    "circle": (_around(1, 60),),
    "square": (_around(1.2, 4, start=-45),),
    "triangle": (_around(1.2, 3, y=0.2),),
    "star": (_star(),),
    "heart": (_heart(),),
    "cross": (_cross(),),
    "ring": (_around(1, 60), _around(0.55, 60)),
    "moon": (_around(1, 60), _around(0.9, 60, x=0.5, y=-0.2)),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One object; its centre `x`, `y` and its `radius` are in pixels."""

    form: str
    colour: str
    size: str
    striped: bool
    x: float
    y: float
    radius: float


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Content of a picture."""

    background: str
    pattern: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class Mover:
    """One shape; its centre and its radius in each frame are in pixels. One that grows or shrinks has no `size`."""

    form: str
    colour: str
    size: str
    motion: str
    x_T: np.ndarray
    y_T: np.ndarray
    radius_T: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MovingScene:
    """Content of a video; movers that come later are in front."""

    background: str
    frames: int
    movers: tuple[Mover, ...]


def colours_on(background: str) -> list[str]:
    """Return the colours that stand out from a background."""
    ground = BACKGROUNDS[background]
    return [name for name, rgb in COLOURS.items() if np.abs(np.subtract(rgb, ground)).sum() > 110]


def mask(
    form: str, *, turn: float, radius: float, x: float, y: float, width: int, height: int
) -> Image.Image:
    """Return where a form is, turned by radians, in grey levels; drawn larger and shrunk, for smooth edges."""
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    mask = Image.new("L", (width * _SMOOTH, height * _SMOOTH))
    for outline, ink in zip(FORMS[form], (255, 0), strict=False):
        corners = (outline @ rotation * radius + (x, y)) * _SMOOTH
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in corners], fill=ink)
    return mask.reduce(_SMOOTH)


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


WIDTH, HEIGHT = 224, 168  # pixels
_SPLITS = ("train",) * 15 + ("val",) * 2 + ("test",) * 3  # of every 20 scenes in turn
_FOLDERS = {"train": "train2014", "val": "val2014", "test": "val2014"}

_SHADOW, _BLURRED = 3, 8  # pixels by which it is moved, and over which it fades
RADII = {"small": (11, 14), "medium": (19, 22), "large": (28, 33)}  # pixels


def compose(rng: np.random.Generator) -> Scene:
    """Invent a scene: shapes that do not touch, sometimes several alike, in colours that stand out."""
    background = rng.choice(list(BACKGROUNDS))
    colours = colours_on(str(background))
    shapes: list[Shape] = []
    number = rng.integers(3, 6)
    while len(shapes) < number:
        alike = bool(shapes) and rng.random() < 0.3
        size = rng.choice(list(RADII))
        radius = rng.uniform(*RADII[size])
        shape = Shape(
            form=shapes[-1].form if alike else str(rng.choice(list(FORMS))),
            colour=shapes[-1].colour if alike else str(rng.choice(colours)),
            size=str(size),
            striped=shapes[-1].striped if alike else bool(rng.random() < 0.2),
            x=rng.uniform(radius + 6, WIDTH - radius - 6),
            y=rng.uniform(radius + 6, HEIGHT - radius - 6),
            radius=radius,
        )
        gaps = [np.hypot(s.x - shape.x, s.y - shape.y) - 1.2 * (s.radius + radius) for s in shapes]
        if min(gaps, default=1.0) > 0:
            shapes.append(shape)
    return Scene(background=str(background), pattern=str(rng.choice(PATTERNS)), shapes=tuple(shapes))


def draw(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """Render a scene, WIDTH x HEIGHT: the background, shapes with shade and shadow, then noise."""
    canvas_HWC = _background(scene, rng)
    for shape in scene.shapes:
        _paint(canvas_HWC, shape, rng)
    canvas_HWC += rng.normal(0, rng.uniform(2, 7), canvas_HWC.shape)
    return Image.fromarray(canvas_HWC.clip(0, 255).astype(np.uint8))


def _background(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Return the pattern in two tones of the background's colour, lit from one side, `(H, W, 3)`."""
    y_HW, x_HW = np.mgrid[:HEIGHT, :WIDTH]
    angle, pitch = rng.uniform(0, np.pi), rng.uniform(14, 24)
    u_HW = (x_HW * np.cos(angle) + y_HW * np.sin(angle)) * np.pi / pitch
    v_HW = (y_HW * np.cos(angle) - x_HW * np.sin(angle)) * np.pi / pitch
    wave_HW = {
        "plain": np.zeros_like(u_HW),
        "striped": np.sin(2 * u_HW),
        "dotted": np.cos(2 * u_HW) + np.cos(2 * v_HW) - 1,
        "checked": np.sin(u_HW) * np.sin(v_HW),
    }[scene.pattern]
    light_HW = 1 + 0.05 * (6 * wave_HW).clip(-1, 1)  # steep, not a step: smooth edges
    light_HW += (x_HW / WIDTH - 0.5) * rng.uniform(-0.16, 0.16) + (y_HW / HEIGHT - 0.5) * rng.uniform(
        -0.22, 0.22
    )
    return _tint(BACKGROUNDS[scene.background], rng) * light_HW[..., None]


def _paint(canvas_HWC: np.ndarray, shape: Shape, rng: np.random.Generator) -> None:
    """Draw one shape, slightly turned, and its shadow, in the window of the canvas that holds both."""
    turn = np.radians(rng.uniform(-14, 14))
    reach = 1.5 * shape.radius + _SHADOW + _BLURRED
    left, right = max(0, int(shape.x - reach)), min(WIDTH, int(shape.x + reach))
    top, bottom = max(0, int(shape.y - reach)), min(HEIGHT, int(shape.y + reach))
    window_HWC, x, y = canvas_HWC[top:bottom, left:right], shape.x - left, shape.y - top
    place = {"turn": turn, "radius": shape.radius, "width": right - left, "height": bottom - top}
    shadow = mask(shape.form, x=x + _SHADOW, y=y + _SHADOW, **place)
    shadow_HW = np.asarray(shadow.filter(ImageFilter.GaussianBlur(2))) / 255
    window_HWC *= 1 - 0.3 * shadow_HW[..., None]
    y_HW, x_HW = np.mgrid[top:bottom, left:right]
    light_HW = 1 - 0.07 * (x_HW - shape.x + y_HW - shape.y) / shape.radius
    if shape.striped:
        light_HW *= 0.8 + 0.2 * (4 * np.sin((x_HW + y_HW) * 11 / shape.radius)).clip(-1, 1)
    ink_HWC = _tint(COLOURS[shape.colour], rng) * light_HW[..., None]
    covered_HW = np.asarray(mask(shape.form, x=x, y=y, **place)) / 255
    window_HWC += covered_HW[..., None] * (ink_HWC - window_HWC)


def _tint(colour: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Return a shade of a colour that still has its name."""
    return np.array(colour) * rng.uniform(0.94, 1.04) + rng.normal(0, 3, 3)


def scene_of(index: int, *, seed: int) -> tuple[Scene, list[str], np.random.Generator]:
    """Return a corpus's scene of this number, its captions, and what `draw` is then given to make its picture."""
    rng = np.random.default_rng([seed, index])
    scene = compose(rng)
    return scene, captions(scene, rng), rng


def picture_of(index: int) -> str:
    """Return the path of a scene's picture below the corpus's folder."""
    folder = _FOLDERS[_SPLITS[index % len(_SPLITS)]]
    return f"images/{folder}/SCENES_{folder}_{index + 1:012d}.jpg"


def save_picture(scene: Scene, rng: np.random.Generator, path: Path) -> None:
    """Draw a scene into a file.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        draw(scene, rng).save(path, quality=92)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def write_scenes(folder: str | Path, *, images: int = 600, seed: int = 0) -> Path:
    """Write `images/{train,val}2014/*.jpg` and `dataset_scenes.json` in Karpathy's form below `folder`.

    Of every 20 scenes, 15 are for training, 2 for validation and 3 for the test. The same seed gives the same scenes.
    Returns the path of the JSON file.

    Raises:
        InputError: fewer than 20 images, so that a split is empty, or nothing can be written there.
    """
    if images < len(_SPLITS):
        raise InputError(f"{images} scenes: expected at least {len(_SPLITS)}, so that no split is empty")
    folder = Path(folder)
    for name in set(_FOLDERS.values()):
        make_folder(folder / "images" / name)
    entries = []
    for index in Progress(range(images), desc="scenes", unit="image"):
        scene, sentences, rng = scene_of(index, seed=seed)
        save_picture(scene, rng, folder / picture_of(index))
        entries.append(_entry(index, sentences))
    listing = folder / "dataset_scenes.json"
    write_json(listing, {"dataset": "scenes", "images": entries})
    return listing


def _entry(index: int, sentences: list[str]) -> dict[str, Any]:
    """Return a scene's entry in Karpathy's file."""
    below, _, name = picture_of(index).rpartition("/")
    first = index * len(sentences)
    return {
        "filepath": below,
        "filename": name,
        "imgid": index,
        "cocoid": index + 1,
        "split": _SPLITS[index % len(_SPLITS)],
        "sentids": [first + number for number in range(len(sentences))],
        "sentences": [
            {"tokens": re.findall(r"\w+", raw.lower()), "raw": raw, "imgid": index, "sentid": first + number}
            for number, raw in enumerate(sentences)
        ],
    }


VIDEO_WIDTH, VIDEO_HEIGHT = 96, 72  # pixels
FRAMES = (8, 16)  # the fewest and the most in a video
FPS = 4
MOTIONS = ("left", "right", "up", "down", "grows", "shrinks", "stays", "circles")
MOVING_RADII = {"small": (6.0, 7.5), "large": (11.5, 13.5)}  # pixels
_GROWN = (15.0, 17.0)  # pixels: the larger end of a shape that grows or shrinks
_ORBIT = (12.0, 15.0)  # pixels: the radius of a circular path
_REACH = 1.2  # corners are this much beyond the radius
_TRIES = 200
_VIDEO_SPLITS = ("train",) * 15 + ("validate",) * 2 + ("test",) * 3  # of every 20 videos in turn


def compose_moving(rng: np.random.Generator) -> MovingScene:
    """Invent a video: two shapes, or at times one, that differ in form or colour and never touch."""
    background = str(rng.choice(list(BACKGROUNDS)))
    frames = int(rng.integers(FRAMES[0], FRAMES[1] + 1))
    number = 1 if rng.random() < 0.25 else 2
    movers: list[Mover] = []
    for _ in range(_TRIES):
        mover = _mover(rng, colours=colours_on(background), frames=frames)
        if all(_apart(mover, other) for other in movers):
            movers.append(mover)
        if len(movers) == number:
            break
    return MovingScene(background=background, frames=frames, movers=tuple(movers))


def _mover(rng: np.random.Generator, *, colours: list[str], frames: int) -> Mover:
    """Invent a shape and its path, which stays inside the picture."""
    motion, size = str(rng.choice(MOTIONS)), str(rng.choice(list(MOVING_RADII)))
    t_T, radius = np.linspace(0, 1, frames), rng.uniform(*MOVING_RADII[size])
    x_T, y_T, radius_T = np.zeros(frames), np.zeros(frames), np.full(frames, radius)
    if motion in ("left", "right"):
        x_T = (
            t_T * rng.uniform(0.6, 1) * (VIDEO_WIDTH - 2 * _REACH * radius) * (1 if motion == "right" else -1)
        )
    elif motion in ("up", "down"):
        y_T = (
            t_T * rng.uniform(0.6, 1) * (VIDEO_HEIGHT - 2 * _REACH * radius) * (1 if motion == "down" else -1)
        )
    elif motion in ("grows", "shrinks"):
        size, ends = "", (rng.uniform(*MOVING_RADII["small"]), rng.uniform(*_GROWN))
        radius_T = ends[0] + (ends[1] - ends[0]) * (t_T if motion == "grows" else 1 - t_T)
    elif motion == "circles":
        angle_T = rng.uniform(0, 2 * np.pi) + 2 * np.pi * t_T * rng.choice([-1, 1])
        orbit = rng.uniform(*_ORBIT)
        x_T, y_T = orbit * np.cos(angle_T), orbit * np.sin(angle_T)
    edge = _REACH * radius_T.max()
    return Mover(
        form=str(rng.choice(list(FORMS))),
        colour=str(rng.choice(colours)),
        size=size,
        motion=motion,
        x_T=x_T + rng.uniform(edge - x_T.min(), VIDEO_WIDTH - edge - x_T.max()),
        y_T=y_T + rng.uniform(edge - y_T.min(), VIDEO_HEIGHT - edge - y_T.max()),
        radius_T=radius_T,
    )


def _apart(one: Mover, other: Mover) -> bool:
    gap_T = np.hypot(one.x_T - other.x_T, one.y_T - other.y_T) - _REACH * (one.radius_T + other.radius_T)
    return gap_T.min() > 0 and (one.form, one.colour) != (other.form, other.colour)


def render(scene: MovingScene, rng: np.random.Generator) -> np.ndarray:
    """Return the frames `(T, VIDEO_HEIGHT, VIDEO_WIDTH, 3)`, uint8: shapes on a ground lit from one side, and noise."""
    light_HW = 1 + np.add.outer(
        np.linspace(-0.1, 0.1, VIDEO_HEIGHT) * rng.normal(),
        np.linspace(-0.1, 0.1, VIDEO_WIDTH) * rng.normal(),
    )
    ground_HWC = np.multiply.outer(light_HW, BACKGROUNDS[scene.background]).clip(0, 255).astype(np.uint8)
    turns = [np.radians(rng.uniform(-14, 14)) for _ in scene.movers]
    frames_THWC = np.empty((scene.frames, VIDEO_HEIGHT, VIDEO_WIDTH, 3))
    for t in range(scene.frames):
        picture = Image.fromarray(ground_HWC)
        for mover, turn in zip(scene.movers, turns, strict=True):
            place = {"radius": mover.radius_T[t], "x": mover.x_T[t], "y": mover.y_T[t]}
            form = mask(mover.form, turn=turn, **place, width=VIDEO_WIDTH, height=VIDEO_HEIGHT)
            picture.paste(COLOURS[mover.colour], mask=form)
        frames_THWC[t] = picture
    frames_THWC += rng.normal(0, rng.uniform(1, 5), frames_THWC.shape)
    return frames_THWC.clip(0, 255).astype(np.uint8)


def moving_scenes(videos: int, *, seed: int) -> Iterator[tuple[MovingScene, list[str], np.random.Generator]]:
    """Yield each video's scene, its captions, and the generator that goes on to draw it."""
    for index in range(videos):
        rng = np.random.default_rng([seed, index])
        scene = compose_moving(rng)
        yield scene, moving_captions(scene, rng), rng


def write_moving_scenes(folder: str | Path, *, videos: int, seed: int = 0) -> tuple[Path, Path]:
    """Write `videos/videoN.mp4` and MSR-VTT's pair of JSON files below `folder`.

    Of every 20 videos, 15 are for training, 2 for validation and 3 for the test. The same seed gives the same scenes
    and captions. Returns the paths of `train_val_videodatainfo.json` and `test_videodatainfo.json`.

    Raises:
        InputError: fewer than 20 videos, so that a split is empty, or nothing can be written there.
    """
    if videos < len(_VIDEO_SPLITS):
        raise InputError(
            f"{videos} videos: expected at least {len(_VIDEO_SPLITS)}, so that no split is empty"
        )
    place = make_folder(Path(folder) / "videos")
    paths = {name: Path(folder) / f"{name}_videodatainfo.json" for name in ("train_val", "test")}
    files: dict[str, dict[str, Any]] = {
        name: {"info": {"description": f"rendered, seed {seed}"}, "videos": [], "sentences": []}
        for name in paths
    }
    scenes = moving_scenes(videos, seed=seed)
    for index, (scene, captions, rng) in enumerate(
        Progress(scenes, desc="videos", unit="video", total=videos)
    ):
        id, split = f"video{index}", _VIDEO_SPLITS[index % len(_VIDEO_SPLITS)]
        write_video(place / f"{id}.mp4", render(scene, rng), fps=FPS)
        file = files["test" if split == "test" else "train_val"]
        times = {"start time": 0.0, "end time": scene.frames / FPS}
        file["videos"].append(
            {"category": 0, "url": "", "video_id": id, **times, "split": split, "id": index}
        )
        for number, caption in enumerate(captions, start=index * len(captions)):
            file["sentences"].append({"caption": caption, "video_id": id, "sen_id": number})
    for name, path in paths.items():
        write_json(path, files[name])
    return paths["train_val"], paths["test"]


QUESTIONS = 8  # about each scene
PEOPLE = 10
_FEWEST = 20  # scenes, so that no split is empty
_ERR, _OTHER_WORD = 0.08, 0.2  # how often a person errs, and says another word for the same
_SUBTYPES = ("train2014", "val2014")


@dataclass(frozen=True, kw_only=True)
class SceneQuestion:
    """A question, its type, its right answer and wrong ones."""

    question: str
    type: str
    right: str
    wrong: tuple[str, ...]

    @property
    def answer_type(self) -> str:
        """The kind of answer, as VQA 2.0 calls it."""
        if self.right in ("yes", "no"):
            return "yes/no"
        return "number" if self.right.isdigit() else "other"


def questions(scene: Scene, rng: np.random.Generator, *, count: int = QUESTIONS) -> list[SceneQuestion]:
    """Return `count` different questions about a scene, of all kinds in turn."""
    questioner, unique = _Questioner(scene, rng), {}
    kinds = rng.permutation(len(questioner.kinds))
    turn = 0
    while len(unique) < count:
        question = questioner.kinds[kinds[turn % len(kinds)]]()
        turn += 1
        if question:
            unique.setdefault(question.question, question)
    return list(unique.values())


class _Questioner(Wording):
    """Asks one question of each kind, where a scene has what it is about."""

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.scene = scene
        self.forms, self.colours = (
            Counter(getattr(shape, name) for shape in scene.shapes) for name in ("form", "colour")
        )
        self.kinds: tuple[Callable[[], SceneQuestion | None], ...] = (
            *(self.colour, self.colour, self.number, self.number, self.form, self.side),
            *(self.background, self.existence, self.existence, self.relation, self.pattern),
        )

    def colour(self) -> SceneQuestion | None:
        """Ask "What color is the star?" where there is one star."""
        alone = self.alone("form")
        if not alone:
            return None
        shape = self.one_of(*alone)
        return self.question(
            "what color is the", f"What color is the {self.word(shape.form)}?", shape.colour, COLOURS
        )

    def background(self) -> SceneQuestion:
        """Ask "What color is the background?"."""
        return self.question(
            "what color is the", "What color is the background?", self.scene.background, BACKGROUNDS
        )

    def number(self) -> SceneQuestion:
        """Ask "How many circles are there?", of forms, of colours or of all shapes; sometimes there is none."""
        form, colour = self.one_of(*self.forms, *self.forms, *FORMS), self.one_of(*self.colours, *COLOURS)
        what, number = self.one_of(
            (self.word(form), self.forms[form]),
            (f"{self.word(colour)} {self.word('shape')}", self.colours[colour]),
            (self.word("shape"), len(self.scene.shapes)),
        )
        near = [str(other) for other in (number - 1, number + 1) if other >= 0]
        return self.question("how many", f"How many {plural(what)} are there?", str(number), near)

    def form(self) -> SceneQuestion | None:
        """Ask "What shape is red?" where one is."""
        alone = self.alone("colour")
        if not alone:
            return None
        shape = self.one_of(*alone)
        return self.question("what shape is", f"What shape is {self.word(shape.colour)}?", shape.form, FORMS)

    def side(self) -> SceneQuestion:
        """Ask "What shape is on the left?"."""
        side = self.one_of(*EXTREMES)
        shape = min(self.scene.shapes, key=EXTREMES[side])
        return self.question("what shape is", f"What shape is {self.word(side)}?", shape.form, FORMS)

    def existence(self) -> SceneQuestion:
        """Ask "Is there a red star?" of a colour and a form that are there, together or not."""
        pairs = {(shape.colour, shape.form) for shape in self.scene.shapes}
        others = {(colour, form) for colour in self.colours for form in self.forms} - pairs
        truly = not others or self.chance(0.5)
        colour, form = self.one_of(*sorted(pairs if truly else others))
        name = with_article(f"{self.word(colour)} {self.word(form)}")
        return self.yes_or_no("is there a", f"Is there {name}?", truly)

    def relation(self) -> SceneQuestion | None:
        """Ask "Is the star left of the ring?" where there is one of each."""
        alone = self.alone("form")
        if len(alone) < 2:
            return None
        one, other = (alone[i] for i in self.rng.permutation(len(alone))[:2])
        where, truly = self.one_of(
            ("left of", one.x < other.x),
            ("right of", one.x > other.x),
            ("above", one.y < other.y),
            ("below", one.y > other.y),
        )
        question = f"Is the {self.word(one.form)} {self.word(where)} the {self.word(other.form)}?"
        return self.yes_or_no("is the", question, truly)

    def pattern(self) -> SceneQuestion:
        """Ask "Is the background striped?"."""
        pattern = self.one_of(self.scene.pattern, self.one_of(*PATTERNS))
        return self.yes_or_no("is the", f"Is the background {pattern}?", pattern == self.scene.pattern)

    def yes_or_no(self, type: str, question: str, truly: bool) -> SceneQuestion:
        return self.question(type, question, "yes" if truly else "no", ("yes", "no"))

    def question(self, type: str, question: str, right: str, choices: Any) -> SceneQuestion:
        wrong = tuple(choice for choice in choices if choice != right)
        return SceneQuestion(question=question, type=type, right=right, wrong=wrong)

    def alone(self, name: str) -> list[Shape]:
        """Return the shapes whose form or colour no other one has."""
        counts = self.forms if name == "form" else self.colours
        return [shape for shape in self.scene.shapes if counts[getattr(shape, name)] == 1]


def answers(question: SceneQuestion, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return what ten people answer, in VQA's form."""
    words, ten = SYNONYMS.get(question.right, (question.right,)), []
    for number in range(PEOPLE):
        errs, varies, place = rng.random(3)
        choices = question.wrong if errs < _ERR else words[1:] if varies < _OTHER_WORD else ()
        answer = choices[int(place * len(choices))] if choices else words[0]
        confidence = "maybe" if errs < _ERR else "yes"
        ten.append({"answer": answer, "answer_confidence": confidence, "answer_id": number + 1})
    return ten


def write_scene_questions(
    folder: str | Path, *, images: int = 600, seed: int = 0
) -> tuple[list[Path], list[Path]]:
    """Write pictures, questions and annotations below `folder`, and return the paths of the two kinds of JSON files.

    Pictures that `write_scenes` wrote there, of the same seed, are left as they are. Of every 20 scenes, 15 are for
    training (`train2014`) and 5 for the test (`val2014`).

    Raises:
        InputError: fewer than 20 images, so that a split is empty, or nothing can be written there.
    """
    if images < _FEWEST:
        raise InputError(f"{images} scenes: expected at least {_FEWEST}, so that no split is empty")
    folder = Path(folder)
    head = {"info": {"description": "questions about rendered scenes"}, "task_type": "Open-Ended"}
    head |= {"data_type": "scenes"}
    files: dict[Path, dict[str, Any]] = {}
    paths: dict[str, list[Path]] = {}
    for kind, prefix in (("questions", "v2_OpenEnded_scenes"), ("annotations", "v2_scenes")):
        paths[kind] = [folder / f"{prefix}_{subtype}_{kind}.json" for subtype in _SUBTYPES]
        files |= {
            path: head | {"data_subtype": subtype, kind: []}
            for path, subtype in zip(paths[kind], _SUBTYPES, strict=True)
        }
    for subtype in _SUBTYPES:
        make_folder(folder / "images" / subtype)
    for index in Progress(range(images), desc="questions about scenes", unit="image"):
        scene, _, rng = scene_of(index, seed=seed)
        path = folder / picture_of(index)
        if not path.exists():
            save_picture(scene, rng, path)
        part = _SUBTYPES.index(path.parent.name)
        for entries in _entries(index, scene, np.random.default_rng([seed, index, 1])):
            for kind, entry in zip(paths, entries, strict=True):
                files[paths[kind][part]][kind].append(entry)
    for path, held in files.items():
        write_json(path, held)
    return paths["questions"], paths["annotations"]


def _entries(
    index: int, scene: Scene, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the entries of each of a scene's questions in both files."""
    for number, question in enumerate(questions(scene, rng)):
        people = answers(question, rng)
        ids = {"image_id": index + 1, "question_id": (index + 1) * 1000 + number}
        label = Counter(entry["answer"] for entry in people).most_common(1)[0][0]
        kinds = {"question_type": question.type, "answer_type": question.answer_type}
        annotation = ids | kinds | {"multiple_choice_answer": label, "answers": people}
        yield ids | {"question": question.question}, annotation
