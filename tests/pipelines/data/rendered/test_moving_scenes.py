from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from clips import decoded
from verbs import run

from polypool.infra.errors import InputError
from polypool.infra.video import write_video
from polypool.pipelines.data.rendered.captions import PHRASES, moving_captions
from polypool.pipelines.data.rendered.moving_scenes import (
    FRAMES,
    HEIGHT,
    MOTIONS,
    WIDTH,
    compose_moving,
    moving_scenes,
    render,
    write_moving_scenes,
)
from polypool.pipelines.data.rendered.shapes import COLOURS, Mover, MovingScene
from polypool.tasks.datasets.corpus import Corpus

SEED = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moving")
    names = [path.name for path in write_moving_scenes(folder, videos=20, seed=SEED)]
    assert names == ["train_val_videodatainfo.json", "test_videodatainfo.json"]
    return folder


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mover(motion: str, **changes: object) -> Mover:
    """A red disc that goes 40 pixels, or from a radius of 6 to 16."""
    t_T = np.linspace(0, 1, 8)
    paths = {"left": (68 - 40 * t_T, 36 + 0 * t_T), "right": (28 + 40 * t_T, 36 + 0 * t_T)}
    x_T, y_T = paths.get(motion, (48 + 0 * t_T, 36 + 0 * t_T))
    radius_T = {"grows": 6 + 10 * t_T, "shrinks": 16 - 10 * t_T}.get(motion, 10 + 0 * t_T)
    usual = {"form": "circle", "colour": "red", "size": "large", "motion": motion}
    return Mover(**usual | {"x_T": x_T, "y_T": y_T, "radius_T": radius_T} | changes)


def seen(frames_THWC: np.ndarray, colour: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many pixels of each frame have a colour, and their mean x and y."""
    far_THW = np.abs(frames_THWC.astype(float) - COLOURS[colour]).sum(-1)
    y_HW, x_HW = np.mgrid[:HEIGHT, :WIDTH]
    there_THW = far_THW < 60
    area_T = there_THW.sum((1, 2))
    return area_T, (there_THW * x_HW).sum((1, 2)) / area_T, (there_THW * y_HW).sum((1, 2)) / area_T


def test_ingest_takes_every_video(folder, tmp_path):
    files = [folder / f"{name}_videodatainfo.json" for name in ("train_val", "test")]
    code, out, _ = run("msrvtt", "--json", *files, "--videos", folder / "videos", "--out", tmp_path)
    assert code == 0
    assert "20 items (train 15, val 2, test 3), 100 captions" in out
    assert "nothing skipped" in out
    corpus = Corpus.open(tmp_path)
    made = [(captions, scene) for scene, captions, _ in moving_scenes(20, seed=SEED)]
    for split in corpus.splits:
        for item in corpus.items(split):
            captions, scene = made[int(item.id.removeprefix("video"))]
            assert item.captions == tuple(captions)
            assert len(set(captions)) == 5
            frames_THWC = decoded(corpus.image_path(item))
            assert frames_THWC.shape == (scene.frames, HEIGHT, WIDTH, 3)


def test_the_files_have_the_fields_of_msrvtt(folder):
    names = [f"{name}_videodatainfo.json" for name in ("train_val", "test")]
    data, test = (json.loads((folder / name).read_text()) for name in names)
    assert set(data) == {"info", "videos", "sentences"}
    fields = {"category", "url", "video_id", "start time", "end time", "split", "id"}
    assert all(set(video) == fields for video in data["videos"])
    assert set(data["sentences"][0]) == {"caption", "video_id", "sen_id"}
    assert {video["split"] for video in data["videos"]} == {"train", "validate"}
    numbers = [sentence["sen_id"] for sentence in data["sentences"] + test["sentences"]]
    assert sorted(numbers) == list(range(100))


def test_what_is_decoded_is_what_was_drawn(folder):
    for index, (scene, _, rest) in enumerate(moving_scenes(6, seed=SEED)):
        drawn, read = render(scene, rest).astype(float), decoded(folder / "videos" / f"video{index}.mp4")
        assert np.abs(drawn - read).mean() < 6
        for one in scene.movers:
            for t in (0, scene.frames - 1):
                hole = one.form in ("ring", "moon")
                if not hole:
                    pixel = read[t, round(one.y_T[t]), round(one.x_T[t])].astype(float)
                    assert np.abs(pixel - COLOURS[one.colour]).sum() < 90


@pytest.mark.parametrize("motion", ["left", "right", "grows", "shrinks", "stays"])
def test_a_motion_is_seen_in_the_frames(motion):
    scene = MovingScene(background="grey", frames=8, movers=(mover(motion),))
    area_T, x_T, y_T = seen(render(scene, rng()), "red")
    step = {"left": -40, "right": 40}.get(motion, 0)
    assert x_T[-1] - x_T[0] == pytest.approx(step, abs=1.5)
    assert y_T[-1] - y_T[0] == pytest.approx(0, abs=1.5)
    radius_T = np.sqrt(area_T / np.pi)
    change = {"grows": 10, "shrinks": -10}.get(motion, 0)
    assert radius_T[-1] - radius_T[0] == pytest.approx(change, abs=1.5)


def test_paths_do_what_the_motion_says_inside_the_picture():
    told = set()
    for seed in range(150):
        scene = compose_moving(rng(seed))
        assert FRAMES[0] <= scene.frames <= FRAMES[1]
        assert 1 <= len(scene.movers) <= 2
        for one in scene.movers:
            told.add(one.motion)
            x_T, y_T, radius_T = one.x_T, one.y_T, one.radius_T
            assert len(x_T) == len(y_T) == len(radius_T) == scene.frames
            for path_T, side in ((x_T, WIDTH), (y_T, HEIGHT)):
                assert (path_T > radius_T).all()
                assert (path_T < side - radius_T).all()
            across, down, growth = (path_T[-1] - path_T[0] for path_T in (x_T, y_T, radius_T))
            assert np.sign(across) * (abs(across) > 15) == {"left": -1, "right": 1}.get(one.motion, 0)
            assert np.sign(down) * (abs(down) > 15) == {"up": -1, "down": 1}.get(one.motion, 0)
            assert np.sign(growth) == {"shrinks": -1, "grows": 1}.get(one.motion, 0)
            moved = max(np.ptp(x_T), np.ptp(y_T))
            assert (moved == 0) == (one.motion in ("stays", "grows", "shrinks"))
            assert one.motion != "circles" or min(np.ptp(x_T), np.ptp(y_T)) > 15
            assert (one.size == "") == (one.motion in ("grows", "shrinks"))
        if len(scene.movers) == 2:
            one, other = scene.movers
            assert (np.hypot(one.x_T - other.x_T, one.y_T - other.y_T) > one.radius_T + other.radius_T).all()
            assert (one.form, one.colour) != (other.form, other.colour)
    assert told == set(MOTIONS) == set(PHRASES)


def test_captions_tell_the_motions_and_nothing_false():
    for seed in range(100):
        scene = compose_moving(rng(seed))
        shown = {one.motion for one in scene.movers}
        colours = {one.colour for one in scene.movers} | set(scene.background.split())
        for caption in moving_captions(scene, rng(seed), count=8):
            said = {m for m, kinds in PHRASES.items() if any(p in caption for kind in kinds for p in kind)}
            assert said
            assert said <= shown
            assert {word for word in caption.split() if word in COLOURS} <= colours
            assert caption == caption.lower().strip(" .")
            assert "  " not in caption
    pair = (mover("left"), mover("left", form="star", colour="orange", size=""))
    scene = MovingScene(background="grey", frames=8, movers=pair)
    told = {caption for seed in range(40) for caption in moving_captions(scene, rng(seed))}
    assert any(" and a" in caption and caption.endswith("slide left") for caption in told)
    assert any(" while " in caption for caption in told)
    assert any("an orange star" in caption for caption in told)
    assert not any("small" in caption or "large orange" in caption for caption in told)


def test_a_seed_names_a_corpus():
    def drawn(count: int, seed: int) -> list[tuple[list[str], np.ndarray]]:
        return [(captions, render(scene, rest)) for scene, captions, rest in moving_scenes(count, seed=seed)]

    few, more, other = drawn(3, SEED), drawn(5, SEED), drawn(3, SEED + 1)
    for (captions, frames_THWC), (same, likewise_THWC), (others, _) in zip(few, more[:3], other, strict=True):
        assert captions == same != others
        assert np.array_equal(frames_THWC, likewise_THWC)


def test_too_few_videos_and_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="at least 20"):
        write_moving_scenes(tmp_path, videos=19)
    (tmp_path / "videos" / "video0.mp4").mkdir(parents=True)
    with pytest.raises(InputError, match=r"video0\.mp4: cannot be written"):
        write_moving_scenes(tmp_path, videos=20)
    with pytest.raises(InputError, match="cannot be written"):
        write_video(tmp_path / "none" / "a.mp4", np.zeros((2, 8, 8, 3), np.uint8), fps=2)
