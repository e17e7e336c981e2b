"""Corpora of the demo: readers accept them, images match their scenes, captions and answers are true."""

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
    MOTIONS,
    PHRASES,
    PICTURES,
    VIDEOS,
    Kind,
    Scene,
    Shape,
    answers,
    captions,
    compose,
    questions,
    render,
    scenes,
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
    form="circle", colour="red", x=50.0, y=80.0, *, radius=20.0, size="medium", motion="stays"
) -> Shape:
    path = {"x_T": np.atleast_1d(x), "y_T": np.atleast_1d(y), "radius_T": np.atleast_1d(radius)}
    return Shape(form=form, colour=colour, size=size, motion=motion, **path)


def scene(*shapes: Shape, background: str = "grey", kind: Kind = PICTURES) -> Scene:
    return Scene(kind=kind, background=background, shapes=shapes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty scenes with captions, questions about them, and twenty videos."""
    folder = tmp_path_factory.mktemp("rendered")
    write_scenes(folder, images=20, seed=3)
    write_scene_questions(folder, images=20, seed=3)
    write_moving_scenes(folder, videos=20, seed=3)
    return folder


def test_readers_accept_all_scenes_questions_and_videos(folder, tmp_path):
    items = list(Karpathy(json=folder / "dataset_scenes.json", images=folder).read().rows)
    assert all(isinstance(item, Item) and len({*item.captions}) == 5 for item in items)
    assert Counter(item.split for item in items) == {"train": 15, "val": 2, "test": 3}
    with Image.open(folder / items[0].path) as image:
        assert (image.size, image.format, image.mode) == ((PICTURES.width, PICTURES.height), "JPEG", "RGB")
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
    corpus, made = Corpus.open(tmp_path), [*scenes(20, VIDEOS, seed=3)]
    for split in corpus.splits:
        for item in corpus.items(split):
            told, lines, rest = made[int(item.id.removeprefix("video"))]
            assert item.captions == tuple(lines)
            read, drawn = decoded(corpus.image_path(item)), render(told, rest)
            assert read.shape == drawn.shape == (len(drawn), VIDEOS.height, VIDEOS.width, 3)
            assert np.abs(drawn.astype(float) - read).mean() < 6


def test_captions_match_scene():
    green = {"form": "star", "colour": "green"}
    shapes = shape(**green, x=30), shape(**green, x=100, size="large"), shape("ring", "blue", 180)
    text = "\n".join(sorted({c for seed in range(60) for c in captions(scene(*shapes), rng(seed), count=10)}))
    assert "on a grey background" in text
    untrue = ("small", "red", "four", " above ", " below ", " over ", " under ", " beneath ", "an ")
    assert not [word for word in untrue if word in text]
    assert "a green star left of a blue" in text
    on_the_right = [caption for caption in text.splitlines() if caption.startswith("on the right")]
    assert on_the_right
    assert not any("star" in caption or "green" in caption for caption in on_the_right)


def test_questions_have_correct_answers():
    shapes = shape("star", "green", 30), shape("ring", "blue", 100, 40), shape("star", "red", 180)
    shapes = (*shapes, shape("moon", "pink", 150, 120))
    told = {q.text: q for seed in range(400) for q in questions(scene(*shapes), rng(seed))}
    right = {
        "What color is the background?": "grey",
        "What color is the hoop?": "blue",
        "What shape is on the left?": "star",
        "What shape is at the top?": "ring",
        "How many stars are there?": "2",
        "How many shapes are there?": "4",
        "How many crosses are there?": "0",
        "Is there a blue ring?": "yes",
        "Is there a blue star?": "no",
        "Is the ring left of the moon?": "yes",
        "Is the ring below the moon?": "no",
    }
    assert {text: told[text].right for text in right} == right
    assert "What color is the star?" not in told
    assert all(q.right in q.choices for q in told.values())
    people = [(q, said) for q in told.values() for said in answers(q, rng(len(q.text)))]
    wrong = sum(said in {*q.choices} - {q.right} for q, said in people)
    assert 0.03 < wrong / len(people) < 0.13


@pytest.mark.parametrize("motion", ["left", "right", "grows", "shrinks", "stays"])
def test_frames_show_motion(motion):
    t_T = np.linspace(0, 1, 8)
    x_T = {"left": 68 - 40 * t_T, "right": 28 + 40 * t_T}.get(motion, 48 + 0 * t_T)
    radius_T = {"grows": 6 + 10 * t_T, "shrinks": 16 - 10 * t_T}.get(motion, 10 + 0 * t_T)
    red = shape(x=x_T, y=36 + 0 * t_T, radius=radius_T, motion=motion)
    frames_THWC = render(scene(red, kind=VIDEOS), rng())
    there_THW = np.abs(frames_THWC.astype(float) - COLOURS["red"]).sum(-1) < 60
    area_T, place_T = there_THW.sum((1, 2)), (there_THW * np.arange(VIDEOS.width)).sum((1, 2))
    np.testing.assert_allclose(place_T / area_T, x_T, atol=1.5)
    np.testing.assert_allclose(np.sqrt(area_T / np.pi), radius_T, atol=1.5)


@pytest.mark.parametrize("kind", [PICTURES, VIDEOS], ids=["pictures", "videos"])
def test_shapes_stay_inside_apart_and_move_as_captioned(kind):
    told = set()
    for seed in range(100):
        made = compose(rng(seed), kind)
        assert kind.shapes[0] <= len(made.shapes) <= kind.shapes[-1]
        for one in made.shapes:
            told.add(one.motion)
            for path_T, side in ((one.x_T, kind.width), (one.y_T, kind.height)):
                assert ((path_T > one.radius_T) & (path_T < side - one.radius_T)).all()
            for other in made.shapes:
                gap_T = np.hypot(one.x_T - other.x_T, one.y_T - other.y_T)
                assert other is one or (gap_T > one.radius_T + other.radius_T).all()
            across, down, growth = (path_T[-1] - path_T[0] for path_T in (one.x_T, one.y_T, one.radius_T))
            assert np.sign(across) * (abs(across) > 15) == {"left": -1, "right": 1}.get(one.motion, 0)
            assert np.sign(down) * (abs(down) > 15) == {"up": -1, "down": 1}.get(one.motion, 0)
            assert np.sign(growth) == {"shrinks": -1, "grows": 1}.get(one.motion, 0)
        shown = {one.motion for one in made.shapes}
        colours = {one.colour for one in made.shapes} | set(made.background.split())
        for caption in captions(made, rng(seed), count=8):
            said = {m for m, kinds in PHRASES.items() if any(p in caption for kind in kinds for p in kind)}
            assert bool(said) == (kind is VIDEOS)
            assert said <= shown
            assert {word for word in caption.split() if word in COLOURS} <= colours
    assert told == {*kind.motions} <= {*MOTIONS}


def test_too_few_items_are_refused(tmp_path):
    makers = (write_scenes, write_scene_questions)
    for write, few in (*((each, {"images": 19}) for each in makers), (write_moving_scenes, {"videos": 19})):
        with pytest.raises(InputError, match="at least 20"):
            write(tmp_path, **few)
