"""The demo's corpora: rendered scenes with captions and questions, and videos of moving shapes.

Scenes have three to five shapes of random colour, form, size and position; their files have the form of COCO and of
Karpathy's splits. Videos have one or two shapes; each moves in a direction, grows, shrinks, circles or stays, and one
frame does not reveal the motion. Their files have the form of MSR-VTT.

A caption describes part of a scene, in random words. Sizes, backgrounds and colours are sometimes omitted, words have
synonyms, and several scenes may match one caption, as with human captions. Questions about the scenes have ten answers
each, as in VQA 2.0: some annotators use another word and some err, so no model can be perfect; about half of the
answers to yes/no questions are no.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw

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


def _around(radius: float, points: int, *, start: float = -90, x: float = 0, y: float = 0) -> np.ndarray:
    """Return corners on a circle, `(points, 2)`, from the angle `start` in degrees."""
    angle = np.radians(start + np.arange(points) * 360 / points)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


_CROSS = [(-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33)]
FORMS: dict[str, tuple[np.ndarray, ...]] = {  # the outline, and the outline of a hole, if any, for radius 1
    "circle": (_around(1, 60),),
    "square": (_around(1.2, 4, start=-45),),
    "triangle": (_around(1.2, 3, y=0.2),),
    "star": (np.stack([_around(1.1, 5), _around(0.48, 5, start=-54)], axis=1).reshape(-1, 2),),
    "cross": (np.array(_CROSS + [(-x, -y) for x, y in _CROSS]),),
    "ring": (_around(1, 60), _around(0.55, 60)),
    "moon": (_around(1, 60), _around(0.9, 60, x=0.5, y=-0.2)),
    "diamond": (_around(1.2, 4) * (0.7, 1),),
}
MOTIONS = ("left", "right", "up", "down", "grows", "shrinks", "stays", "circles")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Distribution of pictures or videos.

    Attributes:
        width, height, radii: in pixels; radii as (minimum, maximum) by size.
        shapes, frames, motions: the numbers of shapes and of frames, and the motions, to choose from.
    """

    width: int
    height: int
    radii: dict[str, tuple[float, float]]
    shapes: tuple[int, ...]
    frames: range = range(1, 2)
    motions: tuple[str, ...] = ("stays",)


PICTURES = Kind(
    width=224, height=168, radii={"small": (11, 14), "medium": (19, 22), "large": (28, 33)}, shapes=(3, 4, 5)
)
VIDEOS = Kind(
    width=96,
    height=72,
    radii={"small": (6.0, 7.5), "large": (11.5, 13.5)},
    shapes=(1, 2, 2, 2),
    frames=range(8, 17),
    motions=MOTIONS,
)
FPS = 4
_GROWN, _ORBIT = (
    (15.0, 17.0),
    (12.0, 15.0),
)  # pixels: largest radius of a shape that grows or shrinks; radius of a circular path
_REACH = 1.2  # extent of a shape from its centre on each axis, in radii
_TRIES, _SMOOTH = 500, 3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape, with its centre and radius in each frame, in pixels; `size` is empty if it grows or shrinks."""

    form: str
    colour: str
    size: str
    motion: str
    x_T: np.ndarray
    y_T: np.ndarray
    radius_T: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Content of a picture (one frame) or a video; later shapes are in front."""

    kind: Kind
    background: str
    shapes: tuple[Shape, ...]


def compose(rng: np.random.Generator, kind: Kind = PICTURES) -> Scene:
    """Sample a scene: shapes that never touch, in colours of high contrast; two in a video differ in form or colour."""
    background = str(rng.choice(list(BACKGROUNDS)))
    off = {name: np.abs(np.subtract(rgb, BACKGROUNDS[background])).sum() for name, rgb in COLOURS.items()}
    colours = [name for name in COLOURS if off[name] > 110]
    frames, number, shapes = int(rng.choice(kind.frames)), rng.choice(kind.shapes), list[Shape]()
    for _ in range(_TRIES):
        shape = _shape(rng, kind, colours=colours, frames=frames)
        if all(_apart(shape, other, kind) for other in shapes):
            shapes.append(shape)
        if len(shapes) == number:
            break
    return Scene(kind=kind, background=background, shapes=tuple(shapes))


def _shape(rng: np.random.Generator, kind: Kind, *, colours: list[str], frames: int) -> Shape:
    """Sample a shape and its path, which stays inside the picture."""
    motion, size = str(rng.choice(kind.motions)), str(rng.choice(list(kind.radii)))
    t_T, radius = np.linspace(0, 1, frames), rng.uniform(*kind.radii[size])
    x_T, y_T, radius_T = np.zeros(frames), np.zeros(frames), np.full(frames, radius)
    way_T = t_T * rng.uniform(0.6, 1) * (1 if motion in ("right", "down") else -1)
    if motion in ("left", "right"):
        x_T = way_T * (kind.width - 2 * _REACH * radius)
    elif motion in ("up", "down"):
        y_T = way_T * (kind.height - 2 * _REACH * radius)
    elif motion in ("grows", "shrinks"):
        size, least, most = "", rng.uniform(*kind.radii["small"]), rng.uniform(*_GROWN)
        radius_T = least + (most - least) * (t_T if motion == "grows" else 1 - t_T)
    elif motion == "circles":
        angle_T = rng.uniform(0, 2 * np.pi) + 2 * np.pi * t_T * rng.choice([-1, 1])
        x_T, y_T = np.array([np.cos(angle_T), np.sin(angle_T)]) * rng.uniform(*_ORBIT)
    edge = _REACH * radius_T.max()
    return Shape(
        form=str(rng.choice(list(FORMS))),
        colour=str(rng.choice(colours)),
        size=size,
        motion=motion,
        x_T=x_T + rng.uniform(edge - x_T.min(), kind.width - edge - x_T.max()),
        y_T=y_T + rng.uniform(edge - y_T.min(), kind.height - edge - y_T.max()),
        radius_T=radius_T,
    )


def _apart(one: Shape, other: Shape, kind: Kind) -> bool:
    gap_T = np.hypot(one.x_T - other.x_T, one.y_T - other.y_T) - _REACH * (one.radius_T + other.radius_T)
    return gap_T.min() > 0 and (kind is PICTURES or (one.form, one.colour) != (other.form, other.colour))


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Return the frames `(T, H, W, 3)`, uint8: shapes, slightly rotated, on a background with a gradient and noise."""
    sides = (scene.kind.height, scene.kind.width)
    light_HW = 1 + np.add.outer(*(np.linspace(-0.1, 0.1, side) * rng.normal() for side in sides))
    ground_HWC = np.multiply.outer(light_HW, BACKGROUNDS[scene.background]).clip(0, 255).astype(np.uint8)
    turns = [np.radians(rng.uniform(-14, 14)) for _ in scene.shapes]
    frames_THWC = np.empty((len(scene.shapes[0].x_T), *ground_HWC.shape))
    for t, frame_HWC in enumerate(frames_THWC):
        picture = Image.fromarray(ground_HWC)
        for shape, turn in zip(scene.shapes, turns, strict=True):
            mask, corner = _mask(shape, t, turn=turn)
            picture.paste(COLOURS[shape.colour], corner, mask)
        frame_HWC[:] = picture
    frames_THWC += rng.normal(0, rng.uniform(1, 6), frames_THWC.shape)
    return frames_THWC.clip(0, 255).astype(np.uint8)


def _mask(shape: Shape, t: int, *, turn: float) -> tuple[Image.Image, tuple[int, int]]:
    """Return a shape in grey levels, drawn larger and shrunk for smooth edges, and its upper left corner."""
    x, y, radius = shape.x_T[t], shape.y_T[t], shape.radius_T[t]
    side = int(1.3 * radius) + 2
    corner = int(x) - side, int(y) - side
    mask = Image.new("L", (2 * side * _SMOOTH, 2 * side * _SMOOTH))
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    for outline, ink in zip(FORMS[shape.form], (255, 0), strict=False):
        points = (outline @ rotation * radius + (x - corner[0], y - corner[1])) * _SMOOTH
        ImageDraw.Draw(mask).polygon([tuple(point) for point in points], fill=ink)
    return mask.reduce(_SMOOTH), corner


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
EXTREMES: dict[str, Callable[[Shape], float]] = {
    "left": lambda shape: shape.x_T[0],
    "right": lambda shape: -shape.x_T[0],
    "top": lambda shape: shape.y_T[0],
    "bottom": lambda shape: -shape.y_T[0],
}
PHRASES = {  # by motion: singular and plural
    "left": (("moves to the left", "move to the left"), ("slides left", "slide left")),
    "right": (("moves to the right", "move to the right"), ("slides right", "slide right")),
    "up": (("moves up", "move up"), ("rises", "rise"), ("goes upwards", "go upwards")),
    "down": (("moves down", "move down"), ("falls", "fall"), ("goes downwards", "go downwards")),
    "grows": (("grows", "grow"), ("gets bigger", "get bigger"), ("becomes larger", "become larger")),
    "shrinks": (
        ("shrinks", "shrink"),
        ("gets smaller", "get smaller"),
        ("becomes smaller", "become smaller"),
    ),
    "stays": (("stays in place", "stay in place"), ("does not move", "do not move")),
    "circles": (("moves in a circle", "move in a circle"), ("goes round and round", "go round and round")),
}


class Wording:
    """Random captions of a scene and questions about it."""

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        self.scene, self.rng = scene, rng

    def one_of(self, *choices: T) -> T:
        return choices[self.rng.integers(len(choices))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def word(self, word: str) -> str:
        return self.one_of(*SYNONYMS.get(word, (word,)))

    def some(self, number: int) -> list[Shape]:
        return [self.scene.shapes[i] for i in self.rng.permutation(len(self.scene.shapes))[:number]]

    def a(self, shape: Shape) -> str:
        """Name a shape, with its article: by its form and mostly its colour, or by its colour only."""
        form = self.chance(0.9)
        words = (
            self.word(shape.size) if shape.size and self.chance(0.5) else "",
            self.word(shape.colour) if self.chance(0.9) or not form else "",
            self.word(shape.form if form else "shape"),
        )
        return _with_article(" ".join(filter(None, words)))

    def ground(self, probability: float) -> str:
        """Name the background, or omit it."""
        return f" on a {self.scene.background} background" if self.chance(probability) else ""

    def relation(self) -> str:
        """Return "a small red circle above a blue square"."""
        one, other = self.some(2)
        right, down = one.x_T[0] - other.x_T[0], one.y_T[0] - other.y_T[0]
        beside, upright = "right of" if right > 0 else "left of", "below" if down > 0 else "above"
        where = beside if abs(right) > abs(down) else upright
        return f"{self.one_of('', 'there is ')}{self.a(one)} {self.word(where)} {self.a(other)}{self.ground(0.2)}"

    def listing(self) -> str:
        """Return "a red circle, a ring and a blue square on a dark background"."""
        *names, last = [self.a(shape) for shape in self.some(self.one_of(2, 3))]
        return f"{', '.join(names)} and {last}{self.ground(0.5)}"

    def extreme(self) -> str:
        """Return "on the left there is a red circle"."""
        side = self.one_of(*EXTREMES)
        return f"{self.word(side)} there is {self.a(min(self.scene.shapes, key=EXTREMES[side]))}{self.ground(0.3)}"

    def overview(self) -> str:
        """Return "four shapes on a beige background, one of them a red circle"."""
        number, (shape,) = NUMBERS[len(self.scene.shapes)], self.some(1)
        return f"{number} {_plural(self.word('shape'))}{self.ground(0.7)}, one of them {self.a(shape)}"

    def motion(self) -> str:
        """Return "a red circle falls while a large blue square grows"."""
        first, *others = self.some(2)
        if not others or self.chance(0.35):
            return f"{self.a(first)} {self.one_of(*PHRASES[first.motion])[0]}{self.ground(0.25)}"
        (second,) = others
        one, several = self.one_of(*PHRASES[first.motion])
        if first.motion == second.motion and self.chance(0.5):
            return f"{self.a(first)} and {self.a(second)} {several}{self.ground(0.25)}"
        then = (
            f"{self.one_of('while', 'and', 'as')} {self.a(second)} {self.one_of(*PHRASES[second.motion])[0]}"
        )
        return f"{self.a(first)} {one} {then}{self.ground(0.25)}"

    def caption(self) -> str:
        """Return a caption of a random kind, relations twice as often as the others."""
        if self.scene.kind is VIDEOS:
            return self.motion()
        return self.one_of(self.relation, self.relation, self.listing, self.extreme, self.overview)()

    def question(self) -> Question | None:
        """Return a question of a random kind; None if the scene lacks its subject."""
        shapes, where = self.scene.shapes, self.one_of(*EXTREMES)
        forms, colours = (Counter(getattr(shape, name) for shape in shapes) for name in ("form", "colour"))
        alone = [shape for shape in self.some(len(shapes)) if forms[shape.form] == 1]
        shown = {(shape.colour, shape.form) for shape in shapes}
        asked = self.one_of("colour", "ground", "number", "number", "side", "there", "there", "relation")
        if asked == "ground":
            ground = "What color is the background?"
            return Question("what color is the", ground, self.scene.background, tuple(BACKGROUNDS))
        if asked == "colour" and alone:
            text = f"What color is the {self.word(alone[0].form)}?"
            return Question("what color is the", text, alone[0].colour, tuple(COLOURS))
        if asked == "number":
            form, colour = self.one_of(*forms, *FORMS), self.one_of(*colours, *COLOURS)
            what, number = self.one_of(
                (self.word(form), forms[form]),
                (f"{self.word(colour)} {self.word('shape')}", colours[colour]),
                (self.word("shape"), len(shapes)),
            )
            near = tuple(str(other) for other in (number - 1, number, number + 1) if other >= 0)
            return Question("how many", f"How many {_plural(what)} are there?", str(number), near)
        if asked == "side":
            right = min(shapes, key=EXTREMES[where]).form
            return Question("what shape is", f"What shape is {self.word(where)}?", right, tuple(FORMS))
        others = {(colour, form) for colour in colours for form in forms} - shown
        if asked == "there":
            truly = not others or self.chance(0.5)
            colour, form = self.one_of(*sorted(shown if truly else others))
            name = _with_article(f"{self.word(colour)} {self.word(form)}")
            return Question("is there a", f"Is there {name}?", "yes" if truly else "no", ("yes", "no"))
        if asked == "relation" and len(alone) > 1:
            beside = {"left": "left of", "right": "right of", "top": "above", "bottom": "below"}[where]
            truly = EXTREMES[where](alone[0]) < EXTREMES[where](alone[1])
            text = f"Is the {self.word(alone[0].form)} {self.word(beside)} the {self.word(alone[1].form)}?"
            return Question("is the", text, "yes" if truly else "no", ("yes", "no"))
        return None


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _plural(word: str) -> str:
    return f"{word}es" if word.endswith(("s", "x")) else f"{word}s"


@dataclass(frozen=True)
class Question:
    """A question, its type, its correct answer and the choices, including that one."""

    type: str
    text: str
    right: str
    choices: tuple[str, ...]


def captions(scene: Scene, rng: np.random.Generator, *, count: int = 5) -> list[str]:
    """Return `count` different captions of a scene."""
    wording, found = Wording(scene, rng), dict[str, None]()
    while len(found) < count:
        found[wording.caption()] = None
    return [*found]


def questions(scene: Scene, rng: np.random.Generator, *, count: int = 8) -> list[Question]:
    """Return `count` different questions about a scene."""
    wording, found = Wording(scene, rng), dict[str, Question]()
    while len(found) < count:
        if question := wording.question():
            found.setdefault(question.text, question)
    return [*found.values()]


PEOPLE = 10
_ERR, _OTHER_WORD = 0.08, 0.2  # probabilities that a person errs, and uses a synonym


def answers(question: Question, rng: np.random.Generator) -> list[str]:
    """Return the answers of ten annotators."""
    wrong = [choice for choice in question.choices if choice != question.right]
    usual, *others = SYNONYMS.get(question.right, (question.right,))
    said = []
    for errs, varies, at in rng.random((PEOPLE, 3)):
        choices = wrong if errs < _ERR else others if others and varies < _OTHER_WORD else [usual]
        said.append(choices[int(at * len(choices))])
    return said


def scenes(count: int, kind: Kind, *, seed: int) -> Iterator[tuple[Scene, list[str], np.random.Generator]]:
    """Yield each scene, its captions, and the random generator for rendering it."""
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        scene = compose(rng, kind)
        yield scene, captions(scene, rng), rng


_SPLITS = ("train",) * 15 + ("val",) * 2 + ("test",) * 3  # of every 20 scenes in turn


def _numbered(each: Iterable[T], count: int, what: str) -> Iterator[tuple[int, str, T]]:
    """Yield each scene with its number and split, with a progress bar; refuse too few for three splits."""
    if count < len(_SPLITS):
        raise InputError(f"{count} {what}: expected at least {len(_SPLITS)}, so that no split is empty")
    for index, scene in enumerate(Progress(each, desc=what, unit="scene", total=count)):
        yield index, _SPLITS[index % len(_SPLITS)], scene


def _picture(index: int, split: str) -> tuple[str, str]:
    """Return the folder and the name of a scene's picture."""
    return f"images/{'train2014' if split == 'train' else 'val2014'}", f"{index + 1:012d}.jpg"


def write_scenes(folder: str | Path, *, images: int = 600, seed: int = 0) -> Path:
    """Write `images/{train,val}2014/*.jpg` and `dataset_scenes.json` in Karpathy's form below `folder`.

    Of every 20 scenes, 15 are for training, 2 for validation and 3 for the test. The same seed gives the same scenes.
    Returns the path of the JSON file.

    Raises:
        InputError: fewer than 20 images, so that a split is empty, or nothing can be written there.
    """
    entries = []
    for index, split, (scene, lines, rng) in _numbered(scenes(images, PICTURES, seed=seed), images, "scenes"):
        below, name = _picture(index, split)
        path = make_folder(Path(folder) / below) / name
        try:
            Image.fromarray(render(scene, rng)[0]).save(path, quality=92)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        sentences = [{"raw": raw, "sentid": len(lines) * index + n} for n, raw in enumerate(lines)]
        entry = {"filepath": below, "filename": name, "imgid": index, "cocoid": index + 1, "split": split}
        entries.append(entry | {"sentences": sentences})
    write_json(listing := Path(folder) / "dataset_scenes.json", {"dataset": "scenes", "images": entries})
    return listing


def write_moving_scenes(folder: str | Path, *, videos: int, seed: int = 0) -> tuple[Path, Path]:
    """Write `videos/videoN.mp4` and MSR-VTT's pair of JSON files below `folder`, with the splits of `write_scenes`.

    Returns the paths of `train_val_videodatainfo.json` and `test_videodatainfo.json`.

    Raises:
        InputError: fewer than 20 videos, so that a split is empty, or nothing can be written there.
    """
    parts = "train_val", "test"
    files: dict[str, dict[str, Any]] = {part: {"videos": [], "sentences": []} for part in parts}
    for index, split, (scene, lines, rng) in _numbered(scenes(videos, VIDEOS, seed=seed), videos, "videos"):
        id, part = f"video{index}", files["test" if split == "test" else "train_val"]
        write_video(make_folder(Path(folder) / "videos") / f"{id}.mp4", render(scene, rng), fps=FPS)
        part["videos"].append({"video_id": id, "split": "validate" if split == "val" else split, "id": index})
        part["sentences"] += [
            {"caption": caption, "video_id": id, "sen_id": len(lines) * index + n}
            for n, caption in enumerate(lines)
        ]
    train_val, test = (Path(folder) / f"{part}_videodatainfo.json" for part in parts)
    write_json(train_val, files["train_val"])
    write_json(test, files["test"])
    return train_val, test


def write_scene_questions(
    folder: str | Path, *, images: int = 600, seed: int = 0
) -> tuple[list[Path], list[Path]]:
    """Write questions about the scenes of `write_scenes` in VQA 2.0's form.

    Of every 20 scenes, 15 are for training (`train2014`), the others for the test (`val2014`). Returns the paths of
    question files and of annotation files.

    Raises:
        InputError: fewer than 20 images, so that a split is empty, or nothing can be written there.
    """
    entries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    of = scenes(images, PICTURES, seed=seed)
    for index, split, (scene, _, _) in _numbered(of, images, "questions about scenes"):
        rng, subtype = np.random.default_rng([seed, index, 1]), Path(_picture(index, split)[0]).name
        for number, question in enumerate(questions(scene, rng)):
            said, right = answers(question, rng), question.right
            ids = {"image_id": index + 1, "question_id": (index + 1) * 1000 + number}
            kind = "yes/no" if right in ("yes", "no") else "number" if right.isdigit() else "other"
            annotation = {
                "question_type": question.type,
                "answer_type": kind,
                "multiple_choice_answer": Counter(said).most_common(1)[0][0],
                "answers": [{"answer": answer, "answer_id": n} for n, answer in enumerate(said, 1)],
            }
            entries.setdefault(("questions", subtype), []).append(ids | {"question": question.text})
            entries.setdefault(("annotations", subtype), []).append(ids | annotation)
    paths = {"questions": list[Path](), "annotations": list[Path]()}
    for (kind, subtype), rows in entries.items():
        paths[kind].append(Path(folder) / f"v2_scenes_{subtype}_{kind}.json")
        write_json(paths[kind][-1], {"data_subtype": subtype, kind: rows})
    return paths["questions"], paths["annotations"]
