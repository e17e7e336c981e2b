from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verbs import reasons, run

from infra.errors import InputError
from infra.skipped import Skipped
from tasks.datasets.questions import SKIPPED, Question, QuestionCorpus
from tasks.datasets.vqa2 import hold_out, read_vqa2


def asked(number: int, image: int, **changes: Any) -> dict:
    return {"question_id": number, "image_id": image, "question": f"What is it {number}?"} | changes


def told(number: int, image: int, answers: list[Any] | None = None, **changes: Any) -> dict:
    """An annotation; the answers stand in the file in the opposite order of their numbers."""
    given = ["cat"] * 7 + ["the cat", "dog", "dog"] if answers is None else answers
    numbered = [
        {"answer_id": place, "answer": answer, "answer_confidence": "yes"}
        for place, answer in enumerate(given, 1)
    ]
    return {
        "question_id": number,
        "image_id": image,
        "question_type": "what is",
        "answer_type": "other",
        "multiple_choice_answer": "cat",
        "answers": numbered[::-1],
    } | changes


def write(folder: Path, subtype: str, key: str, entries: Any, *, name: str = "") -> Path:
    path = folder / (name or f"v2_OpenEnded_mscoco_{subtype}_{key}.json")
    path.write_text(json.dumps({"info": {}, "data_subtype": subtype, key: entries}))
    return path


def official(folder: Path) -> list[Path]:
    """Two questions to each of twenty training and three validation images, and some of both test splits."""
    folder.mkdir(exist_ok=True)
    made = []
    for subtype, images in (("train2014", range(20)), ("val2014", range(100, 103))):
        pairs = [(10 * image + n, image) for image in images for n in range(2)]
        made.append(write(folder, subtype, "questions", [asked(*pair) for pair in pairs]))
        made.append(write(folder, subtype, "annotations", [told(*pair) for pair in pairs][::-1]))
    made.append(write(folder, "test-dev2015", "questions", [asked(9000, 900)]))
    made.append(write(folder, "test2015", "questions", [asked(9000, 900), asked(9010, 901)]))
    return made


def arguments(files: list[Path]) -> list[object]:
    questions = [path for path in files if "annotations" not in path.name]
    return ["--questions", *questions, "--annotations", *(path for path in files if path not in questions)]


def of(corpus: QuestionCorpus) -> dict[str, list[str]]:
    return {split: [each.id for each in corpus.questions(split)] for split in corpus.splits}


def test_the_official_files(tmp_path: Path) -> None:
    files, out = official(tmp_path / "in"), tmp_path / "out"
    code, said, _ = run("vqa2", *arguments(files), "--out", out)
    assert code == 0
    assert "49 questions (" in said
    assert "train 38 about 19 images" in said
    assert "nothing skipped" in said
    assert "accuracy of each" not in said
    corpus = QuestionCorpus.open(out)
    assert corpus.splits == {"train": 38, "val": 2, "test": 6, "test-dev": 1, "test2015": 2}
    train, val = ({each.image_id for each in corpus.questions(split)} for split in ("train", "val"))
    assert not train & val
    assert train | val == {str(image) for image in range(20)}
    assert corpus.questions("test")[1] == Question(
        id="1001",
        split="test",
        image_id="100",
        question="What is it 1001?",
        question_type="what is",
        answer_type="other",
        answers=("cat",) * 7 + ("the cat", "dog", "dog"),
        label="cat",
    )
    assert corpus.questions("test2015")[0] == Question(
        id="9000", split="test2015", image_id="900", question="What is it 9000?"
    )
    assert [image.id for image in corpus.items("test")] == ["100", "101", "102"]
    assert sorted(corpus.ids.to_pylist()) == sorted([*map(str, [*range(20), 100, 101, 102, 900, 901])])


def test_the_held_out_images_depend_on_the_seed_alone(tmp_path: Path) -> None:
    files = official(tmp_path / "in")
    drawn = {}
    for name, options in {
        "a": (),
        "again": (),
        "seed": ("--seed", 1),
        "more": ("--dev", 0.5),
        "none": ("--dev", 0),
    }.items():
        assert run("vqa2", *arguments(files), "--out", tmp_path / name, *options)[0] == 0
        corpus = QuestionCorpus.open(tmp_path / name)
        drawn[name] = (
            {image.id for image in corpus.items("val")} if "val" in corpus.splits else set(),
            corpus.digest,
        )
    assert drawn["a"] == drawn["again"]
    assert drawn["a"][0] != drawn["seed"][0]
    assert {name: len(images) for name, (images, _) in drawn.items()} == {
        "a": 1,
        "again": 1,
        "seed": 1,
        "more": 10,
        "none": 0,
    }
    assert drawn["a"][0] < drawn["more"][0]


def test_a_val_split_of_ones_own_is_left_alone() -> None:
    entries = [
        Question(id=str(i), split="val" if i == 3 else "train", image_id=str(i), question="x")
        for i in range(9)
    ]
    assert list(hold_out(entries, share=0.5)) == entries
    with pytest.raises(InputError, match="expected a share"):
        list(hold_out(entries, share=1))
    with pytest.raises(InputError, match="one training image only"):
        list(hold_out(entries[:1], share=0.5))
    tests = [Skipped(where="a", why="b"), Question(id="1", split="test", image_id="1", question="x")]
    assert list(hold_out(tests, share=0.5)) == tests


def test_images_are_found_by_number(tmp_path: Path) -> None:
    for name in (
        "train2014/COCO_train2014_000000000007.jpg",
        "val2014/COCO_val2014_000000000007.jpg",
        "8.PNG",
        "deep/er/scene_9.jpeg",
        "10.txt",
        "x.jpg",
    ):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    numbers = [7, 8, 9, 10, "x"]
    pairs = list(enumerate(numbers))
    files = [
        write(tmp_path, "val2014", "questions", [asked(*pair) for pair in pairs]),
        write(tmp_path, "val2014", "annotations", [told(*pair) for pair in pairs]),
    ]
    out = tmp_path / "out"
    assert run("vqa2", *arguments(files), "--images", tmp_path / "images", "--out", out)[0] == 0
    corpus = QuestionCorpus.open(out)
    found = corpus.questions("test")
    assert [each.path for each in found] == [
        "val2014/COCO_val2014_000000000007.jpg",
        "8.PNG",
        "deep/er/scene_9.jpeg",
        "x.jpg",
    ]
    assert all(corpus.image_path(each).is_file() for each in [*found, *corpus.items("test")])
    assert reasons(out, SKIPPED) == [("question 3, image 10", f"no such image in {tmp_path / 'images'}")]
    (tmp_path / "empty").mkdir()
    for place, message in (
        ("none", "no such folder"),
        ("empty", "holds no images; expected files that end in .jpg"),
    ):
        code, _, err = run("vqa2", *arguments(files), "--images", tmp_path / place, "--out", out)
        assert (code, message in err) == (2, True)


def test_bad_entries_are_skipped_and_listed(tmp_path: Path) -> None:
    name = "v2_OpenEnded_mscoco_val2014_questions.json"
    questions = [
        asked(1, 1),
        asked(2, 2),
        asked(1, 1, question="again"),
        asked(3, 3, question=" \n"),
        asked(4, 4, question="is \u6f22 ünï\n\U0001f600?"),
        asked(5, 5),
        asked(6, 6),
        {"question_id": 7, "image_id": 7},
        ["no object"],
        asked("8", 8),
        asked(True, 8),
        asked(9, 9, question="half a pair \ud83d"),
        asked(10, 10),
        asked(11, 11),
        asked(12, 12),
    ]
    annotations = [
        told(1, 1),
        told(3, 3),
        told(4, 4, ["café"] * 3 + [7, None, "", " ", "\ud83d"] + ["x y "] * 4),
        told(5, 55),
        told(5, 5),
        told(6, 6, ["", " "]),
        told(9, 9),
        told(10, 10, [3, None]),
        told(11, 11, multiple_choice_answer=None),
        told(12, 12, answers=["cat"]),
        told(77, 7),
        told("8", 8),
        "no object",
        {"question_id": 1, "image_id": 1},
    ]
    annotations[9]["answers"] = annotations[9]["answers"] * 12
    files = [
        write(tmp_path, "val2014", "questions", questions),
        write(tmp_path, "val2014", "annotations", annotations, name="val_annotations.json"),
    ]
    out = tmp_path / "out"
    code, said, _ = run("vqa2", *arguments(files), "--out", out)
    assert code == 0
    assert "2 questions have not 10 answers (1 with 7, 1 with 12)" in said
    corpus = QuestionCorpus.open(out)
    assert of(corpus) == {"test": ["1", "4", "12"]}
    fourth = corpus.questions("test")[1]
    assert fourth.answers == ("café",) * 3 + ("x y ",) * 4
    assert fourth.question == "is \u6f22 ünï \U0001f600?"
    form = "not of the expected form"
    question = f"{form}: a question needs question_id, image_id and question"
    assert sorted(reasons(out, SKIPPED)) == sorted(
        [
            (
                "val_annotations.json, annotation 4, question 5",
                "a second annotation of a question; the first is kept",
            ),
            ("val_annotations.json, annotation 7, question 10", "no usable answer"),
            (
                "val_annotations.json, annotation 8, question 11",
                "a question_type, answer_type or multiple_choice_answer that is not a string",
            ),
            ("val_annotations.json, annotation 11", f"{form}: an annotation needs question_id and image_id"),
            ("val_annotations.json, annotation 12", f"{form}: no answers"),
            ("val_annotations.json, annotation 13", f"{form}: no answers"),
            ("question 2", "a question without an annotation"),
            ("question 1", "duplicate question id; the first is kept"),
            ("question 3", "an empty question"),
            ("question 4, answer 4", "an answer that is not a string"),
            ("question 4, answer 5", "an answer that is not a string"),
            ("question 4, answer 4", "an empty answer"),
            ("question 4, answer 5", "an empty answer"),
            ("question 4, answer 6", "an answer that is not valid UTF-8"),
            ("question 5", "its annotation is about another image"),
            ("question 6, answer 1", "an empty answer"),
            ("question 6, answer 2", "an empty answer"),
            ("question 6", "no usable answer"),
            (f"{name}, question 7", question),
            (f"{name}, question 8", question),
            (f"{name}, question 9", question),
            (f"{name}, question 10", question),
            ("question 9", "a question, type or label that is not valid UTF-8"),
            ("question 10", "a question without an annotation"),
            ("question 11", "a question without an annotation"),
            ("annotation of question 77", "an annotation without a question"),
        ]
    )
    assert "skipped 26:" in said


@pytest.mark.parametrize(
    ("subtype", "name", "split", "expected"),
    [
        ("val2014", "questions.json", (), "test"),
        ("", "v2_OpenEnded_mscoco_val2014_questions.json", (), "test"),
        ("test2015", "v2_OpenEnded_mscoco_test-dev2015_questions.json", (), "test-dev"),
        ("abstract_v002", "q.json", ("test",), "test"),
        ("train2014", "val2014.json", ("test2015",), "test2015"),
    ],
)
def test_the_split_of_a_file(
    tmp_path: Path, subtype: str, name: str, split: tuple[str, ...], expected: str
) -> None:
    path = write(tmp_path, subtype, "questions", [asked(1, 1)], name=name)
    assert [each.split for each in read_vqa2([path], splits=split)] == [expected]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ('{"questions": [', (), "not valid JSON at line 1"),
        ("[]", (), "not of the expected form"),
        ('{"questions": {}}', (), "not of the expected form"),
        ('{"annotations": []}', (), "it holds annotations: give it as --annotations"),
        ('{"data_subtype": "other", "questions": []}', (), "which split is this?"),
        ('{"data_subtype": 7, "questions": []}', (), "say none of train2014, val2014"),
        ('{"data_subtype": "val2014", "questions": []}', (), "nothing usable was found"),
        ('{"questions": []}', ("--split", "tets"), "unknown split 'tets'. Did you mean 'test'?"),
        ('{"questions": []}', ("--split", "test", "val"), "2 splits for 1 files of questions"),
        (
            json.dumps({"questions": [asked(1, 1)]}),
            ("--split", "train"),
            "has an annotation; give their file, too",
        ),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, options: tuple[str, ...], message: str) -> None:
    path, out = tmp_path / "q.json", tmp_path / "out"
    path.write_text(text)
    code, _, err = run("vqa2", "--questions", path, "--out", out, *options)
    assert code == 2
    assert message in err
    assert not (out / "questions.json").exists()


def test_a_name_and_a_subtype_that_differ(tmp_path: Path) -> None:
    path = write(tmp_path, "train2014", "questions", [asked(1, 1)], name="val2014_questions.json")
    with pytest.raises(InputError, match="say both train2014 and val2014 of"):
        list(read_vqa2([path]))


@pytest.mark.parametrize(
    ("place", "pairs", "questions", "images"),
    [
        (
            "daquar_vqa",
            [
                ("v2_OpenEnded_daquar_train2014_questions.json", "v2_daquar_train2014_annotations.json"),
                ("v2_OpenEnded_daquar_val2014_questions.json", "v2_daquar_val2014_annotations.json"),
            ],
            {"train": 6795, "test": 5673},
            True,
        ),
        (
            "vqa2_subset",
            [("v2_OpenEnded_mscoco_valid_subset_questions.json", "v2_mscoco_valid_subset_annotations.json")],
            {"train": 8977},
            False,
        ),
        ("vqa2_subset", [("withimages_questions.json", "withimages_annotations.json")], {"train": 127}, True),
    ],
)
def test_real_files_whole(
    shared: Path,
    tmp_path: Path,
    place: str,
    pairs: list[tuple[str, str]],
    questions: dict[str, int],
    images: bool,
) -> None:
    folder = shared / "data" / place
    asks, tells = ([folder / name for name in names] for names in zip(*pairs, strict=True))
    options = ("--images", folder / "images") if images else ()
    code, said, _ = run(
        "vqa2", "--questions", *asks, "--annotations", *tells, *options, "--out", tmp_path / "out"
    )
    assert code == 0
    assert "nothing skipped" in said
    corpus = QuestionCorpus.open(tmp_path / "out")
    assert {"train": corpus.splits["train"] + corpus.splits["val"]} | {
        split: count for split, count in corpus.splits.items() if split not in ("train", "val")
    } == questions
    for split in corpus.splits:
        assert all(len(each.answers) == 10 for each in corpus.questions(split))
        assert not images or all(corpus.image_path(item).is_file() for item in corpus.items(split))
    held = len(corpus.items("val")) / (len(corpus.items("val")) + len(corpus.items("train")))
    assert 0.03 < held < 0.07
