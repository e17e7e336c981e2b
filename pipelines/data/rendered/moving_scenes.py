"""The demo's corpus of videos: coloured shapes that move, written as MSR-VTT is published.

Every video has one or two shapes, each of which moves in a direction, grows, shrinks, circles or stays where it is.
Every caption describes a motion (`rendered.captions`); a frame from the middle does not show which it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder, write_json
from polypool.infra.process.progress import Progress
from polypool.infra.video import write_video
from polypool.pipelines.data.rendered.captions import moving_captions
from polypool.pipelines.data.rendered.shapes import (
    BACKGROUNDS,
    COLOURS,
    FORMS,
    Mover,
    MovingScene,
    colours_on,
    mask,
)

WIDTH, HEIGHT = 96, 72  # pixels
FRAMES = (8, 16)  # the fewest and the most in a video
FPS = 4
MOTIONS = ("left", "right", "up", "down", "grows", "shrinks", "stays", "circles")
RADII = {"small": (6.0, 7.5), "large": (11.5, 13.5)}  # pixels
_GROWN = (15.0, 17.0)  # pixels: the larger end of a shape that grows or shrinks
_ORBIT = (12.0, 15.0)  # pixels: the radius of a circular path
_REACH = 1.2  # corners are this much beyond the radius
_TRIES = 200
_SPLITS = ("train",) * 15 + ("validate",) * 2 + ("test",) * 3  # of every 20 videos in turn


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
    motion, size = str(rng.choice(MOTIONS)), str(rng.choice(list(RADII)))
    t_T, radius = np.linspace(0, 1, frames), rng.uniform(*RADII[size])
    x_T, y_T, radius_T = np.zeros(frames), np.zeros(frames), np.full(frames, radius)
    if motion in ("left", "right"):
        x_T = t_T * rng.uniform(0.6, 1) * (WIDTH - 2 * _REACH * radius) * (1 if motion == "right" else -1)
    elif motion in ("up", "down"):
        y_T = t_T * rng.uniform(0.6, 1) * (HEIGHT - 2 * _REACH * radius) * (1 if motion == "down" else -1)
    elif motion in ("grows", "shrinks"):
        size, ends = "", (rng.uniform(*RADII["small"]), rng.uniform(*_GROWN))
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
        x_T=x_T + rng.uniform(edge - x_T.min(), WIDTH - edge - x_T.max()),
        y_T=y_T + rng.uniform(edge - y_T.min(), HEIGHT - edge - y_T.max()),
        radius_T=radius_T,
    )


def _apart(one: Mover, other: Mover) -> bool:
    gap_T = np.hypot(one.x_T - other.x_T, one.y_T - other.y_T) - _REACH * (one.radius_T + other.radius_T)
    return gap_T.min() > 0 and (one.form, one.colour) != (other.form, other.colour)


def render(scene: MovingScene, rng: np.random.Generator) -> np.ndarray:
    """Return the frames `(T, HEIGHT, WIDTH, 3)`, uint8: shapes on a ground lit from one side, and noise."""
    light_HW = 1 + np.add.outer(
        np.linspace(-0.1, 0.1, HEIGHT) * rng.normal(), np.linspace(-0.1, 0.1, WIDTH) * rng.normal()
    )
    ground_HWC = np.multiply.outer(light_HW, BACKGROUNDS[scene.background]).clip(0, 255).astype(np.uint8)
    turns = [np.radians(rng.uniform(-14, 14)) for _ in scene.movers]
    frames_THWC = np.empty((scene.frames, HEIGHT, WIDTH, 3))
    for t in range(scene.frames):
        picture = Image.fromarray(ground_HWC)
        for mover, turn in zip(scene.movers, turns, strict=True):
            place = {"radius": mover.radius_T[t], "x": mover.x_T[t], "y": mover.y_T[t]}
            form = mask(mover.form, turn=turn, **place, width=WIDTH, height=HEIGHT)
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
    if videos < len(_SPLITS):
        raise InputError(f"{videos} videos: expected at least {len(_SPLITS)}, so that no split is empty")
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
        id, split = f"video{index}", _SPLITS[index % len(_SPLITS)]
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
