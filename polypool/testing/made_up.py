"""Small corpora that are made up, so that a task can be tried where no data is: sets that show what texts name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import PLUG_IN_ERRORS
from polypool.infra.registry import TASKS
from polypool.infra.store import StoreWriter
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.datasets.questions import Question, write_questions
from polypool.tasks.run import Data, Optim, Run

_NOUNS = ("dog", "cat", "car", "tree", "boat", "bird", "house", "horse")
_SPLITS = ("train",) * 48 + ("val",) * 16 + ("test",) * 16
_DIM = 12

Sample = tuple[str, str, str, str]  # id and split of an item, and the two nouns that its features show


def made_up_run(task: str, folder: Path) -> Run:
    """Write features, captions and questions into a folder, and return a run of a task on those that it takes.

    A task that takes neither gets a run on the captions, and says itself what is missing.
    """
    samples = list(_features(folder / "features"))
    write_corpus(folder / "captions", starmap(_item, samples), source={"made": "up"})
    questions = chain.from_iterable(starmap(_questions, samples))
    write_questions(folder / "questions", questions, source={"made": "up"})
    captions = _run(task, folder, "captions", _CAPTIONS, captions=2)
    questions = _run(task, folder, "questions", _QUESTIONS)
    return questions if not _takes(captions) and _takes(questions) else captions


def _takes(run: Run) -> bool:
    try:
        TASKS.build(run.task, run)
    except PLUG_IN_ERRORS:  # what it is, the checks say
        return False
    return True


def _features(folder: Path) -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    look = rng.normal(size=(len(_NOUNS), _DIM))
    with StoreWriter(folder, dim=_DIM, dtype="float32", source={"made": "up"}) as writer:
        for number, split in enumerate(_SPLITS):
            one, other = rng.choice(len(_NOUNS), 2, replace=False)
            x_NF = look[[one, other, one, one, other][: rng.integers(2, 6)]]
            writer.add(str(number), (x_NF + 0.1 * rng.normal(size=x_NF.shape)).astype(np.float32))
            yield str(number), split, _NOUNS[one], _NOUNS[other]
        writer.close(statistics_of=[str(number) for number in range(_SPLITS.count("train"))])


def _item(id: str, split: str, a: str, b: str) -> Item:
    captions = (f"a {a} and a {b}", f"the {b} beside the {a}", f"one {a} , {b}")
    return Item(id=id, split=split, captions=captions)


def _questions(id: str, split: str, a: str, b: str) -> Iterator[Question]:
    questions = ((f"What is beside the {a}?", "what is", b), (f"Is there a {b}?", "is there a", "yes"))
    for number, (text, kind, answer) in enumerate(questions):
        yield Question(
            id=f"{id}{number}",
            split=split,
            image_id=id,
            question=text,
            question_type=kind,
            answer_type="yes/no" if answer == "yes" else "other",
            answers=(answer,) * 10,
            label=answer,
        )


_CAPTIONS: dict[str, Any] = {
    "visual": "regions(width=16)",
    "text": "bigru(width=16, embedding=8, min_count=1)",
    "protocol": "whole",
    "objective": "infonce",
}
_QUESTIONS: dict[str, Any] = {
    "visual": "grid(width=16)",
    "text": "bigru(width=16, embedding=8, min_count=1, ends=False, split=questions)",
    "protocol": "vqa",
    "objective": "bce",
}


def _run(task: str, folder: Path, corpus: str, settings: dict[str, Any], **data: Any) -> Run:
    return Run(
        recipe="made_up",
        data=Data(dataset="made_up", corpus=str(folder / corpus), features=str(folder / "features"), **data),
        task=task,
        aggregator="mean",
        optim=Optim(epochs=1, batch=16),
        **settings,
    )
