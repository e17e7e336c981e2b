"""The demo's corpora: readers take all of them, pictures show what their scenes say, texts say nothing false."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from clips import decoded
from PIL import Image
from verbs import run

from polypool.infra.errors import InputError
from polypool.pipelines.data.rendered import (
    COLOURS,
    HEIGHT,
    MOTIONS,
    PHRASES,
    RADII,
    VIDEO_HEIGHT,
    VIDEO_WIDTH,
    WIDTH,
    Mover,
    MovingScene,
    Scene,
    Shape,
    answers,
    captions,
    compose,
    compose_moving,
    draw,
    moving_captions,
    moving_scenes,
    questions,
    render,
    write_moving_scenes,
    write_scene_questions,
    write_scenes,
)
from polypool.tasks.datasets.corpus import Corpus, Item, Question
from polypool.tasks.datasets.readers.karpathy import Karpathy
from polypool.tasks.datasets.readers.vqa2 import Vqa2


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shape(
    form: str = "circle", colour: str = "red", x: float = 50, y: float = 80, **changed: object
) -> Shape:
    usual = {"size": "medium", "striped": False, "radius": 20}
    return Shape(form=form, colour=colour, x=x, y=y, **usual | changed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty scenes with captions, questions about them, and twenty videos."""
    folder = tmp_path_factory.mktemp("rendered")
    write_scenes(folder, images=20, seed=3)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jpg")}
    write_scene_questions(folder, images=20, seed=3)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.jpg")} == before
    write_moving_scenes(folder, videos=20, seed=3)
    return folder


def test_readers_take_every_scene_question_and_video(folder, tmp_path):
    items = list(Karpathy(json=folder / "dataset_scenes.json", images=folder).read().rows)
    assert all(isinstance(item, Item) and len({*item.captions}) == 5 for item in items)
    assert Counter(item.split for item in items) == {"train": 15, "val": 2, "test": 3}
    with Image.open(folder / items[0].path) as image:
        assert (image.size, image.format, image.mode) == ((WIDTH, HEIGHT), "JPEG", "RGB")
    asked, given = (tuple(sorted(folder.glob(f"v2_*_{kind}.json"))) for kind in ("questions", "annotations"))
    found = list(Vqa2(questions=asked, annotations=given, images=folder / "images", dev=0).read().rows)
    assert all(isinstance(question, Question) and len(question.answers) == 10 for question in found)
    assert Counter(question.split for question in found) == {"train": 15 * 8, "test": 5 * 8}
    paths = {item.id: item.path for item in items}
    assert all(paths[question.image_id] == f"images/{question.path}" for question in found)
    right = Counter(question.label for question in found if question.answer_type == "yes/no")
    assert 0.35 < right["yes"] / right.total() < 0.65

    files = [folder / f"{name}_videodatainfo.json" for name in ("train_val", "test")]
    code, out, _ = run("msrvtt", "--json", *files, "--videos", folder / "videos", "--out", tmp_path)
    assert (code, "nothing skipped" in out) == (0, True)
    assert "20 items (train 15, val 2, test 3), 100 captions" in out
    corpus, made = Corpus.open(tmp_path), [*moving_scenes(20, seed=3)]
    for split in corpus.splits:
        for item in corpus.items(split):
            scene, lines, rest = made[int(item.id.removeprefix("video"))]
            assert item.captions == tuple(lines)
            read, drawn = decoded(corpus.image_path(item)), render(scene, rest)
            assert read.shape == drawn.shape == (scene.frames, VIDEO_HEIGHT, VIDEO_WIDTH, 3)
            assert np.abs(drawn.astype(float) - read).mean() < 6


def test_shapes_lie_inside_and_do_not_touch():
    for seed in range(200):
        shapes = compose(rng(seed)).shapes
        assert 3 <= len(shapes) <= 5
        for one in shapes:
            assert RADII[one.size][0] <= one.radius <= RADII[one.size][1]
            assert one.radius < one.x < WIDTH - one.radius
            assert one.radius < one.y < HEIGHT - one.radius
            others = (other for other in shapes if other is not one)
            assert all(np.hypot(one.x - o.x, one.y - o.y) > one.radius + o.radius for o in others)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_shape_is_drawn_in_its_colour_at_its_place(colour):
    background = "beige" if colour not in ("white", "yellow", "pink") else "dark"
    scene = Scene(background=background, pattern="plain", shapes=(shape(colour=colour),))
    pixels_HWC = np.asarray(draw(scene, rng()), float)
    inside, outside = pixels_HWC[75:85, 45:55].mean((0, 1)), pixels_HWC[75:85, 150:200].mean((0, 1))
    assert min(COLOURS, key=lambda name: np.abs(inside - COLOURS[name]).sum()) == colour
    assert np.abs(inside - outside).sum() > 90


def test_captions_of_scenes_are_true():
    green = {"form": "star", "colour": "green"}
    shapes = (shape(**green, x=30), shape(**green, x=100, size="large"), shape("ring", "blue", 180))
    scene = Scene(background="grey", pattern="dotted", shapes=shapes)
    told = {caption for seed in range(60) for caption in captions(scene, rng(seed), count=10)}
    text = "\n".join(sorted(told))
    assert "Two green stars" in text
    assert "on a dotted grey background" in text
    untrue = ("small", "red", "four", "Four", " above ", " below ", " over ", " under ", " beneath ", "An ")
    assert not [word for word in untrue if word in text]
    beside = ("A green star left of a blue", "A green star to the left of a blue")
    assert any(caption.startswith(beside) for caption in told)
    on_the_right = [caption for caption in told if "on the right" in caption.lower()]
    assert on_the_right
    assert not any("star" in caption or "green" in caption for caption in on_the_right)


def test_questions_are_answered_rightly():
    shapes = (shape("star", "green", 30), shape("ring", "blue", 100, 40), shape("star", "red", 180))
    shapes = (*shapes, shape("heart", "pink", 150, 120))
    scene = Scene(background="grey", pattern="dotted", shapes=shapes)
    told = {q.question: q for seed in range(400) for q in questions(scene, rng(seed))}
    right = {
        "What color is the background?": "grey",
        "What color is the hoop?": "blue",
        "What shape is red?": "star",
        "What shape is on the left?": "star",
        "What shape is at the top?": "ring",
        "How many stars are there?": "2",
        "How many shapes are there?": "4",
        "How many crosses are there?": "0",
        "Is there a blue ring?": "yes",
        "Is there a blue star?": "no",
        "Is the background dotted?": "yes",
        "Is the background striped?": "no",
        "Is the ring left of the heart?": "yes",
        "Is the ring below the heart?": "no",
    }
    assert {text: told[text].right for text in right} == right
    assert "What color is the star?" not in told
    assert all(q.right not in q.wrong for q in told.values())
    people = [(q, entry["answer"]) for q in told.values() for entry in answers(q, rng(len(q.question)))]
    assert 0.03 < sum(said in q.wrong for q, said in people) / len(people) < 0.13


@pytest.mark.parametrize("motion", ["left", "right", "grows", "shrinks", "stays"])
def test_a_motion_is_seen_in_the_frames(motion):
    t_T = np.linspace(0, 1, 8)
    x_T = {"left": 68 - 40 * t_T, "right": 28 + 40 * t_T}.get(motion, 48 + 0 * t_T)
    radius_T = {"grows": 6 + 10 * t_T, "shrinks": 16 - 10 * t_T}.get(motion, 10 + 0 * t_T)
    paths = {"x_T": x_T, "y_T": 36 + 0 * t_T, "radius_T": radius_T}
    red = Mover(form="circle", colour="red", size="large", motion=motion, **paths)
    frames_THWC = render(MovingScene(background="grey", frames=8, movers=(red,)), rng())
    there_THW = np.abs(frames_THWC.astype(float) - COLOURS["red"]).sum(-1) < 60
    area_T, place_T = there_THW.sum((1, 2)), (there_THW * np.arange(VIDEO_WIDTH)).sum((1, 2))
    np.testing.assert_allclose(place_T / area_T, x_T, atol=1.5)
    np.testing.assert_allclose(np.sqrt(area_T / np.pi), radius_T, atol=1.5)


def test_paths_do_what_the_motion_says_and_captions_name_it():
    told = set()
    for seed in range(100):
        scene = compose_moving(rng(seed))
        for one in scene.movers:
            told.add(one.motion)
            for path_T, side in ((one.x_T, VIDEO_WIDTH), (one.y_T, VIDEO_HEIGHT)):
                assert ((path_T > one.radius_T) & (path_T < side - one.radius_T)).all()
            across, down, growth = (path_T[-1] - path_T[0] for path_T in (one.x_T, one.y_T, one.radius_T))
            assert np.sign(across) * (abs(across) > 15) == {"left": -1, "right": 1}.get(one.motion, 0)
            assert np.sign(down) * (abs(down) > 15) == {"up": -1, "down": 1}.get(one.motion, 0)
            assert np.sign(growth) == {"shrinks": -1, "grows": 1}.get(one.motion, 0)
        shown = {one.motion for one in scene.movers}
        colours = {one.colour for one in scene.movers} | set(scene.background.split())
        for caption in moving_captions(scene, rng(seed), count=8):
            said = {m for m, kinds in PHRASES.items() if any(p in caption for kind in kinds for p in kind)}
            assert said
            assert said <= shown
            assert {word for word in caption.split() if word in COLOURS} <= colours
    assert told == set(MOTIONS)


def test_too_few_for_each_split_are_refused(tmp_path):
    makers = (write_scenes, write_scene_questions)
    for write, few in (*((each, {"images": 19}) for each in makers), (write_moving_scenes, {"videos": 19})):
        with pytest.raises(InputError, match="at least 20"):
            write(tmp_path, **few)
