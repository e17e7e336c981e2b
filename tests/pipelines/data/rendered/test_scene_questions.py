from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.pipelines.data.rendered.scene_questions import answers, questions, write_scene_questions
from polypool.pipelines.data.rendered.scenes import compose, scene_of, write_scenes
from polypool.pipelines.data.rendered.shapes import COLOURS, FORMS, Scene, Shape
from polypool.tasks.datasets.questions import Question
from polypool.tasks.datasets.readers.vqa2 import Vqa2


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shape(form: str, colour: str, x: float, y: float = 80) -> Shape:
    return Shape(form=form, colour=colour, size="small", striped=False, x=x, y=y, radius=12)


SCENE = Scene(
    background="grey",
    pattern="dotted",
    shapes=(shape("star", "green", 30), shape("ring", "blue", 100, 40), shape("star", "red", 180)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twenty scenes, their captions and questions."""
    folder = tmp_path_factory.mktemp("questions")
    write_scene_questions(folder, images=20, seed=3)
    return folder


def read(folder: Path) -> list[Question]:
    asked, given = (tuple(sorted(folder.glob(f"v2_*_{kind}.json"))) for kind in ("questions", "annotations"))
    return list(Vqa2(questions=asked, annotations=given, images=folder / "images", dev=0).read().rows)


def test_the_reader_of_vqa_takes_every_question(folder):
    found = read(folder)
    assert all(isinstance(question, Question) for question in found)
    assert Counter(question.split for question in found) == {"train": 15 * 8, "test": 5 * 8}
    assert {len(question.answers) for question in found} == {10}
    assert len({question.id for question in found}) == 160
    assert all((folder / "images" / question.path).is_file() for question in found)
    kinds = Counter(question.answer_type for question in found)
    assert min(kinds[kind] for kind in ("yes/no", "number", "other")) > 20
    right = Counter(q.label for q in found if q.answer_type == "yes/no")
    assert 0.35 < right["yes"] / right.total() < 0.65


def test_they_are_about_the_pictures_of_the_scenes(folder, tmp_path):
    write_scenes(tmp_path, images=20, seed=3)
    pictures = [path.relative_to(folder) for path in folder.rglob("*.jpg")]
    assert len(pictures) == 20
    assert all((folder / path).read_bytes() == (tmp_path / path).read_bytes() for path in pictures)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    write_scene_questions(tmp_path, images=20, seed=3)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")} == before
    for file in folder.glob("*.json"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    listed = json.loads((tmp_path / "dataset_scenes.json").read_text())["images"]
    ids = {str(entry["cocoid"]): f"{entry['filepath']}/{entry['filename']}" for entry in listed}
    assert all(ids[q.image_id] == f"images/{q.path}" for q in read(folder))
    with pytest.raises(InputError, match="at least 20"):
        write_scene_questions(tmp_path, images=19)


def test_questions_are_answered_rightly():
    told = {q.question: q for seed in range(300) for q in questions(SCENE, rng(seed))}
    right = {text: q.right for text, q in told.items()}
    assert right["What color is the background?"] == "grey"
    assert right["What color is the ring?"] == right["What color is the hoop?"] == "blue"
    assert "What color is the star?" not in right
    assert right["What shape is red?"] == "star"
    assert right["What shape is on the left?"] == "star"
    assert right["What shape is at the top?"] == "ring"
    assert right["How many stars are there?"] == "2"
    assert right["How many shapes are there?"] == "3"
    assert right["How many blue objects are there?"] == "1"
    assert right["How many hearts are there?"] == "0"
    assert right["Is there a blue ring?"] == "yes"
    assert right["Is there a blue star?"] == right["Is there a red ring?"] == "no"
    assert right["Is the background dotted?"] == "yes"
    assert right["Is the background striped?"] == "no"
    assert all(q.right not in q.wrong for q in told.values())
    assert {q.answer_type for q in told.values()} == {"yes/no", "number", "other"}
    assert all(text.lower().startswith(q.type) for text, q in told.items())


def test_a_relation_is_asked_of_shapes_that_are_alone_of_their_form():
    scene = Scene(
        background="grey", pattern="plain", shapes=(*SCENE.shapes, shape("heart", "pink", 150, 120))
    )
    told = {q.question: q.right for seed in range(300) for q in questions(scene, rng(seed))}
    assert told["Is the ring left of the heart?"] == "yes"
    assert told["Is the ring below the heart?"] == "no"
    assert not any("star" in text and text.startswith("Is the ") for text in told)


def test_most_people_are_right():
    said, most = Counter(), 0
    for seed in range(200):
        asked = questions(compose(rng(seed)), rng(seed))[0]
        people = [entry["answer"] for entry in answers(asked, rng(seed))]
        said["right"] += people.count(asked.right)
        said["wrong"] += sum(person in asked.wrong for person in people)
        most += Counter(people).most_common(1)[0][0] == asked.right
    assert 0.05 < said["wrong"] / 2000 < 0.11
    assert said["right"] / 2000 > 0.8
    assert most > 190


def test_questions_of_a_scene_differ_and_a_seed_names_them():
    for index in range(30):
        scene, _, _ = scene_of(index, seed=0)
        asked = questions(scene, rng(index))
        assert len({q.question for q in asked}) == len(asked) == 8
        assert asked == questions(scene, rng(index))
        assert all(
            set(q.wrong) <= {*COLOURS, *FORMS} or q.answer_type != "other" or "background" in q.question
            for q in asked
        )
