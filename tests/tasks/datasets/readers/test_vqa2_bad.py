"""Faults in files of VQA 2.0's form: entries are skipped and listed, files refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from verbs import ingested, reasons, refused
from vqa2_files import arguments, asked, told, write

from polypool.tasks.datasets.corpus import QuestionCorpus


def of(corpus: QuestionCorpus) -> dict[str, list[str]]:
    return {split: [each.id for each in corpus.questions(split)] for split in corpus.splits}


def skipped(
    folder: Path, questions: list[Any], annotations: list[Any]
) -> tuple[str, QuestionCorpus, list[tuple[str, str]]]:
    """Ingest entries; return what was said, the corpus, and what was left out and why."""
    files = [
        write(folder, "val2014", "questions", questions, name="questions.json"),
        write(folder, "val2014", "annotations", annotations, name="annotations.json"),
    ]
    said = ingested("vqa2", *arguments(files), "--out", folder / "out", "--allow-skipped")
    found = sorted(reasons(folder / "out", "questions.skipped.jsonl"))
    assert f"skipped {len(found)}:" in said
    return said, QuestionCorpus.open(folder / "out"), found


def test_bad_questions_are_skipped_and_listed(tmp_path):
    questions = [
        asked(1, 1),
        asked(1, 1, question="again"),
        asked(3, 3, question=" \n"),
        asked(4, 4, question="is \u6f22 ünï\n\U0001f600?"),
        {"question_id": 7, "image_id": 7},
        ["no object"],
        asked("8", 8),
        asked(True, 8),
        asked(9, 9, question="half a pair \ud83d"),
    ]
    _, corpus, found = skipped(tmp_path, questions, [told(number, number) for number in (1, 3, 4, 9)])
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


def test_bad_annotations_are_skipped_and_listed(tmp_path):
    unlabelled = told(11, 11, multiple_choice_answer=None)
    annotations = [told(1, 1), told(5, 5), told(5, 5), unlabelled, told("8", 8), "no object"]
    annotations += [{"question_id": 1, "image_id": 1}]
    questions = [asked(number, number) for number in (1, 5, 11)]
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
    twelve = told(12, 12)["answers"][:1] * 12
    annotations = [told(4, 4, answers), told(6, 6, ["", " "]), told(10, 10, [3, None])]
    annotations += [told(12, 12, answers=["cat"]) | {"answers": twelve}]
    questions = [asked(number, number) for number in (4, 6, 10, 12)]
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


def test_questions_and_annotations_that_do_not_belong_together(tmp_path):
    questions = [asked(number, number) for number in (1, 2, 5)]
    annotations = [told(1, 1), told(5, 55), told(77, 7)]
    _, corpus, found = skipped(tmp_path, questions, annotations)
    assert of(corpus) == {"test": ["1"]}
    assert found == [
        ("annotation of question 77", "an annotation without a question"),
        ("question 2", "a question without an annotation"),
        ("question 5", "its annotation is about another image"),
    ]


ASKED = json.dumps({"questions": [asked(1, 1)]})


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
        (ASKED, ("--split", "train"), "has an annotation; give their file, too"),
    ],
)
def test_files_that_are_refused(tmp_path, text, options, message):
    path, out = tmp_path / "q.json", tmp_path / "out"
    path.write_text(text)
    refused(message, "vqa2", "--questions", path, "--out", out, *options)
    assert not (out / "questions.json").exists()
