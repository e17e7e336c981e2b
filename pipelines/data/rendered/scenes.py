"""The demo's corpus: rendered scenes of coloured shapes, written as COCO and Karpathy's splits are published.

Every scene has three to five shapes that differ in colour, form, size, fill and place, on a patterned background with
noise. Its five captions each describe a part of it in varied words (`rendered.captions`), so a model can learn to match
them, and none can be perfect.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder, write_json
from polypool.infra.process.progress import Progress
from polypool.pipelines.data.rendered.captions import captions
from polypool.pipelines.data.rendered.shapes import (
    BACKGROUNDS,
    COLOURS,
    FORMS,
    PATTERNS,
    Scene,
    Shape,
    colours_on,
    mask,
)

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
