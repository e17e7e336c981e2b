"""Reader of VQA 2.0's files: splits, images, held-out images, bad entries, real files."""

import json
from pathlib import Path
from typing import Any

import pytest
from verbs import ingested, reasons, refused
from vqa2_files import annotation, ingest_options, question, write_vqa2

from polypool.tasks.datasets.corpus import Question, QuestionCorpus
from polypool.tasks.datasets.readers.vqa2 import Vqa2


def official(folder: Path) -> list[Path]:
    """Write two questions for each of 20 training and 3 validation images, and some of both test splits."""
    folder.mkdir(exist_ok=True)
    made = []
    for subtype, images in (("train2014", range(20)), ("val2014", range(100, 103))):
        pairs = [(10 * image + n, image) for image in images for n in range(2)]
        made.append(write_vqa2(folder, subtype, "questions", [question(*pair) for pair in pairs]))
        made.append(write_vqa2(folder, subtype, "annotations", [annotation(*pair) for pair in pairs][::-1]))
    made.append(write_vqa2(folder, "test-dev2015", "questions", [question(9000, 900)]))
    made.append(write_vqa2(folder, "test2015", "questions", [question(9000, 900), question(9010, 901)]))
    return made


def test_official_files_become_question_corpus(tmp_path):
    files, out = official(tmp_path / "in"), tmp_path / "out"
    said = ingested("vqa2", *ingest_options(files), "--out", out)
    assert "49 questions (" in said
    assert "train 38 about 19 images" in said
    assert "nothing skipped" in said
    assert "answers of a question: 3 with none, 46 with 10; scored by the protocol vqa" in said
    assert "test split" not in said
    alone = ingested("vqa2", *ingest_options(files[:2]), "--out", tmp_path / "train")
    assert "add v2_OpenEnded_mscoco_val2014_questions.json to --questions" in alone
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
    unanswered = Question(id="9000", split="test2015", image_id="900", question="What is it 9000?")
    assert corpus.questions("test2015")[0] == unanswered
    assert [image.id for image in corpus.items("test")] == ["100", "101", "102"]
    assert sorted(corpus.ids.to_pylist()) == sorted([*map(str, [*range(20), 100, 101, 102, 900, 901])])


def test_held_out_images_depend_on_seed_and_fraction(tmp_path):
    questions, annotations, *_ = official(tmp_path / "in")

    def drawn(**options: float) -> set[str]:
        rows = Vqa2(questions=(questions,), annotations=(annotations,), **options).read().rows
        return {each.image_id for each in rows if each.split == "val"}

    given = [drawn(), drawn(), drawn(seed=1), drawn(dev=0.5), drawn(dev=0)]
    assert [len(images) for images in given] == [1, 1, 1, 10, 0]
    assert given[0] == given[1] != given[2]
    assert given[0] < given[3]


def test_images_are_found_by_number_in_file_name(tmp_path):
    kept = ["val2014/COCO_val2014_000000000007.jpg", "8.PNG", "deep/er/scene_9.webp", "x.jpg"]
    for name in (*kept, "train2014/COCO_train2014_000000000007.jpg", "10.txt"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    pairs = list(enumerate([7, 8, 9, 10, "x"]))
    entries = {
        "questions": [question(*pair) for pair in pairs],
        "annotations": [annotation(*pair) for pair in pairs],
    }
    files = [write_vqa2(tmp_path, "val2014", *entry) for entry in entries.items()]
    out = tmp_path / "out"
    ingested("vqa2", *ingest_options(files), "--images", tmp_path / "images", "--out", out, "--allow-skipped")
    corpus = QuestionCorpus.open(out)
    found = corpus.questions("test")
    assert [each.path for each in found] == kept
    assert all(corpus.image_path(each).is_file() for each in [*found, *corpus.items("test")])
    lost = ("question 3, image 10", f"no such image in {tmp_path / 'images'}")
    assert reasons(out, "questions.skipped.jsonl") == [lost]
    (tmp_path / "empty").mkdir()
    for place, message in (
        ("none", "no such folder"),
        ("empty", "holds no images; expected files that end in .jpg"),
    ):
        refused(message, "vqa2", *ingest_options(files), "--images", tmp_path / place, "--out", out)


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
def test_split_comes_from_option_subtype_or_file_name(tmp_path, subtype, name, split, expected):
    path = write_vqa2(tmp_path, subtype, "questions", [question(1, 1)], name=name)
    assert [each.split for each in Vqa2(questions=(path,), split=split).read().rows] == [expected]


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("v2_OpenEnded_mscoco_valid_subset_questions", "v2_mscoco_valid_subset_annotations"), 8977),
        (("withimages_questions", "withimages_annotations"), 127),
    ],
    ids=["subset", "subset with images"],
)
def test_real_vqa2_files_are_read_completely(shared, tmp_path, names, count):
    folder = shared / "data" / "vqa2_subset"
    files, images = [folder / f"{name}.json" for name in names], count == 127
    options = ("--images", folder / "images") if images else ()
    assert "nothing skipped" in ingested("vqa2", *ingest_options(files), *options, "--out", tmp_path / "out")
    corpus = QuestionCorpus.open(tmp_path / "out")
    assert sum(corpus.splits.values()) == count
    for split in corpus.splits:
        assert all(len(each.answers) == 10 for each in corpus.questions(split))
        assert not images or all(corpus.image_path(item).is_file() for item in corpus.items(split))
    images_of = {split: len(corpus.items(split)) for split in ("train", "val")}
    assert 0.03 < images_of["val"] / sum(images_of.values()) < 0.07


def of(corpus: QuestionCorpus) -> dict[str, list[str]]:
    return {split: [each.id for each in corpus.questions(split)] for split in corpus.splits}


def skipped(
    folder: Path, questions: list[Any], annotations: list[Any]
) -> tuple[str, QuestionCorpus, list[tuple[str, str]]]:
    """Ingest entries; return the output, the corpus, and the skipped entries with reasons."""
    files = [
        write_vqa2(folder, "val2014", "questions", questions, name="questions.json"),
        write_vqa2(folder, "val2014", "annotations", annotations, name="annotations.json"),
    ]
    said = ingested("vqa2", *ingest_options(files), "--out", folder / "out", "--allow-skipped")
    found = sorted(reasons(folder / "out", "questions.skipped.jsonl"))
    assert f"skipped {len(found)}:" in said
    return said, QuestionCorpus.open(folder / "out"), found


def test_bad_questions_are_skipped_and_listed(tmp_path):
    questions = [
        question(1, 1),
        question(1, 1, question="again"),
        question(3, 3, question=" \n"),
        question(4, 4, question="is \u6f22 ünï\n\U0001f600?"),
        {"question_id": 7, "image_id": 7},
        ["no object"],
        question("8", 8),
        question(True, 8),
        question(9, 9, question="half a pair \ud83d"),
    ]
    _, corpus, found = skipped(tmp_path, questions, [annotation(number, number) for number in (1, 3, 4, 9)])
    assert of(corpus) == {"test": ["1", "4"]}
    assert corpus.questions("test")[1].question == "is \u6f22 ünï \U0001f600?"
    form = "not of the expected form: a question"
    assert found == [
        ("question 1", "duplicate id; the first is kept"),
        ("question 3", "a question that is empty"),
        ("question 9", "a question that is not valid UTF-8"),
        ("questions.json, question 4", f"{form} whose question is missing or no string"),
        ("questions.json, question 5", f"{form} that is not an object"),
        ("questions.json, question 6", f"{form} whose question_id is missing or no whole number"),
        ("questions.json, question 7", f"{form} whose question_id is missing or no whole number"),
    ]


def test_ok_vqa_annotations_are_read(tmp_path):
    answers = ["race", "motocross", "motocross", "race", "ride", "ride", "ride", "ride", "", "dirt bike"]
    ok_vqa = {
        "image_id": 51606,
        "answer_type": "other",
        "question_type": "four",
        "question_id": 516065,
        "answers": [
            {"answer_id": place, "raw_answer": f"{answer}ing", "answer_confidence": "yes", "answer": answer}
            for place, answer in enumerate(answers, 1)
        ],
        "confidence": 3,
    }
    bare = {name: ok_vqa[name] for name in ("image_id", "answers")} | {"question_id": 516066}
    _, corpus, found = skipped(tmp_path, [question(516065, 51606), question(516066, 51606)], [ok_vqa, bare])
    first, second = corpus.questions("test")
    assert first.answers == (*answers[:8], "dirt bike")
    assert (first.label, first.question_type, first.answer_type) == ("ride", "four", "other")
    assert (second.label, second.question_type, second.answer_type) == ("ride", "", "")
    assert [why for _, why in found] == ["an answer that is empty"] * 2


def test_bad_annotations_are_skipped_and_listed(tmp_path):
    mistyped = annotation(11, 11, multiple_choice_answer=3)
    annotations = [
        annotation(1, 1),
        annotation(5, 5),
        annotation(5, 5),
        mistyped,
        annotation("8", 8),
        "no object",
    ]
    annotations += [{"question_id": 1, "image_id": 1}]
    questions = [question(number, number) for number in (1, 5, 11)]
    _, corpus, found = skipped(tmp_path, questions, annotations)
    assert of(corpus) == {"test": ["1", "5"]}
    file, form = "annotations.json, annotation", "not of the expected form"
    assert found == [
        (f"{file} 2, question 5", "a second annotation of a question; the first is kept"),
        (
            f"{file} 3, question 11",
            f"{form}: an annotation whose multiple_choice_answer is missing or no string",
        ),
        (f"{file} 4", f"{form}: an annotation whose question_id is missing or no whole number"),
        (f"{file} 5", f"{form}: no answers"),
        (f"{file} 6", f"{form}: no answers"),
        ("question 11", "a question without an annotation"),
    ]


def test_bad_answers_are_skipped_and_listed(tmp_path):
    answers = ["café"] * 3 + [7, None, "", " ", "\ud83d"] + ["x y "] * 4
    twelve = annotation(12, 12)["answers"][:1] * 12
    annotations = [
        annotation(4, 4, answers),
        annotation(6, 6, ["", " "]),
        annotation(10, 10, [3, None]),
    ]
    annotations += [annotation(12, 12, answers=["cat"]) | {"answers": twelve}]
    questions = [question(number, number) for number in (4, 6, 10, 12)]
    said, corpus, found = skipped(tmp_path, questions, annotations)
    assert "answers of a question: 1 with 7, 1 with 12; scored by the protocol exact-match" in said
    assert of(corpus) == {"test": ["4", "12"]}
    assert corpus.questions("test")[0].answers == ("café",) * 3 + ("x y ",) * 4
    assert found == [
        ("question 10", "no usable answer"),
        ("question 10, answer 1", "an answer that is not a string"),
        ("question 10, answer 2", "an answer that is not a string"),
        ("question 4, answer 4", "an answer that is not a string"),
        ("question 4, answer 5", "an answer that is not a string"),
        ("question 4, answer 6", "an answer that is empty"),
        ("question 4, answer 7", "an answer that is empty"),
        ("question 4, answer 8", "an answer that is not valid UTF-8"),
        ("question 6", "no usable answer"),
        ("question 6, answer 1", "an answer that is empty"),
        ("question 6, answer 2", "an answer that is empty"),
    ]


def test_unmatched_questions_and_annotations_are_skipped(tmp_path):
    questions = [question(number, number) for number in (1, 2, 5)]
    annotations = [annotation(1, 1), annotation(5, 55), annotation(77, 7)]
    _, corpus, found = skipped(tmp_path, questions, annotations)
    assert of(corpus) == {"test": ["1"]}
    assert found == [
        ("annotation of question 77", "an annotation without a question"),
        ("question 2", "a question without an annotation"),
        ("question 5", "its annotation is about another image"),
    ]


ASKED = json.dumps({"questions": [question(1, 1)]})


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
        (ASKED, ("--split", "train"), "has an annotation with answers; give their file, too"),
    ],
)
def test_invalid_files_or_splits_are_refused(tmp_path, text, options, message):
    path, out = tmp_path / "q.json", tmp_path / "out"
    path.write_text(text)
    refused(message, "vqa2", "--questions", path, "--out", out, *options)
    assert not (out / "questions.json").exists()
