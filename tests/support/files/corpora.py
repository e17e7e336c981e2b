"""Small corpora on disk, as `ingest` and `extract` write them."""

from __future__ import annotations

import atexit
import itertools
import json
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.spec import Spec
from polypool.infra.store import StoreWriter
from polypool.tasks.datasets.corpus import Item, Question, write_corpus, write_questions
from polypool.tasks.run import Data, Optim, Run

NOUNS = ["dog", "cat", "car", "tree", "boat", "bird", "house", "horse"]


def _write_features(folder: Path, splits: list[str], *, nouns: int, dim: int, seed: int) -> list[list[str]]:
    """Write a store of images of two nouns each; return `nouns` nouns per image, the shown ones first.

    Every noun is a fixed direction; an image's set contains both directions, with noise.
    """
    rng = np.random.default_rng(seed)
    look, chosen = rng.normal(size=(len(NOUNS), dim)), []
    with StoreWriter(folder / "features", dim=dim, dtype="float32", source={"made": "by a test"}) as writer:
        for i in range(len(splits)):
            a, b, *others = rng.choice(len(NOUNS), nouns, replace=False)
            shown = look[[a, b, a, b][: rng.integers(2, 5)]]
            writer.add(str(i), (shown + 0.1 * rng.normal(size=shown.shape)).astype(np.float32))
            chosen.append([NOUNS[noun] for noun in (a, b, *others)])
        writer.close(statistics_of=[str(i) for i, split in enumerate(splits) if split == "train"])
    return chosen


def captions_about(a: str, b: str) -> tuple[str, ...]:
    """Return the captions of an image of two nouns."""
    return f"a {a} and a {b}", f"the {b} beside the {a}", f"one {a} , {b}"


def write_role_graphs(file: Path, captions: Iterable[str]) -> None:
    """Write role graphs in HGR's format: a caption's second word is the verb, the first and fourth its arguments."""
    nodes = {
        str(id): {"role": role, "spans": [word]}
        for id, (role, word) in enumerate([("V", 1), ("ARG0", 0), ("ARG1", 3)], start=1)
    }
    entry = [{"0": {"role": "ROOT", "spans": [0]}} | nodes, [["1", "2", "ARG0"], ["1", "3", "ARG1"]]]
    file.write_text(json.dumps(dict.fromkeys(captions, entry)))


@cache
def role_graphs() -> str:
    """Return a file, deleted at exit, with the role graphs of all captions of `make_corpus`."""
    file = tempfile.NamedTemporaryFile(suffix=".json", delete=False)  # noqa: SIM115
    pairs = itertools.permutations(NOUNS, 2)
    write_role_graphs(Path(file.name), [text for a, b in pairs for text in captions_about(a, b)])
    atexit.register(Path(file.name).unlink)
    return file.name


def hgr(**params: object) -> str:
    """Return the spec of HGR with the graphs of `make_corpus`."""
    return str(Spec("hgr", {"graphs": role_graphs(), **params}))


def make_corpus(
    folder: Path,
    *,
    train: int = 48,
    val: int = 16,
    test: int = 20,
    dim: int = 10,
    seed: int = 0,
    images: Path | None = None,
) -> Run:
    """Write a corpus whose images show what their captions name, and return a run on it.

    If `images` is given, the corpus names `i.png` in that folder as the picture of item i.
    """
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    items = []
    for i, (a, b) in enumerate(_write_features(folder, splits, nouns=2, dim=dim, seed=seed)):
        texts = captions_about(a, b)
        items.append(Item(id=str(i), split=splits[i], captions=texts, path=f"{i}.png" if images else ""))
    write_corpus(folder / "corpus", items, source={"made": "by a test"}, images=str(images or ""))
    if images:
        images.mkdir(exist_ok=True)
    return Run(
        recipe="tiny",
        data=Data(
            dataset="tiny",
            corpus=str(folder / "corpus"),
            features=str(folder / "features"),
            captions=2,
            visual_augment="drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
        ),
        visual="regions(width=16, standardise=True)",
        text="bigru(width=16, embedding=8, min_count=1)",
        protocol="whole",
        aggregator="mean",
        objective="infonce",
        optim=Optim(epochs=6, batch=16, lr=2e-2, schedule="cosine"),
        log_every=2,
        retries=0,
    )


def _asked(shown: str, beside: str, absent: str, *, there: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return three questions about an image of two nouns, with their annotated answers."""
    noun, right, wrong = (shown, "yes", "no") if there else (absent, "no", "yes")
    asked = (
        (f"What is beside the {shown}?", "what is", "other", beside, absent),
        ("How many things are there in all?", "how many", "number", "2", "3"),
        (f"Is there a {noun}?", "is there a", "yes/no", right, wrong),
    )
    return [
        (text, {"question_type": kind, "answer_type": of, "answers": (right,) * 9 + (wrong,), "label": right})
        for text, kind, of, right, wrong in asked
    ]


def make_questions(
    folder: Path,
    *,
    train: int = 48,
    val: int = 16,
    test: int = 20,
    dim: int = 10,
    seed: int = 0,
    images: Path | None = None,
    unanswered: int = 0,
) -> Run:
    """Write a corpus of questions about images that show two nouns, as `make_corpus` does, and return a run on it.

    Each image has three questions: the other noun, the number of things, and whether a noun is shown; nine of
    ten people agree. `test-dev` has the questions of `unanswered` images, without answers.
    """
    splits = ["train"] * train + ["val"] * val + ["test"] * test + ["test-dev"] * unanswered
    questions = []
    for i, nouns in enumerate(_write_features(folder, splits, nouns=3, dim=dim, seed=seed)):
        image = {"split": splits[i], "image_id": str(i), "path": f"{i}.png" if images else ""}
        for number, (text, people) in enumerate(_asked(*nouns, there=i % 2 == 0)):
            said = people if splits[i] != "test-dev" else {}
            questions.append(Question(id=str(10 * (i + 1) + number), question=text, **image, **said))
    write_questions(folder / "questions", questions, source={"made": "by a test"}, images=str(images or ""))
    return Run(
        recipe="tiny_questions",
        task="vqa(min_count=1)",
        data=Data(
            dataset="tiny", corpus=str(folder / "questions"), features=str(folder / "features"), max_words=5
        ),
        visual="grid(width=16, standardise=True)",
        text="bigru(width=16, embedding=8, min_count=1, ends=False, split=questions)",
        protocol="vqa",
        aggregator="mean",
        fusion="product",
        objective="bce",
        optim=Optim(epochs=6, batch=16, lr=2e-2, weight_decay=0.0, schedule="cosine"),
        log_every=2,
        retries=0,
    )


def joint_run(*, optim: Optim, **members: tuple[float, Run]) -> Run:
    """Return a run that trains several tasks together; `members` maps names to weights and runs."""
    runs = {name: run for name, (_, run) in members.items()}
    return Run(
        task=str(Spec("joint", {name: weight for name, (weight, _) in members.items()})),
        data=Data(dataset="+".join(run.data.dataset for run in runs.values()), corpus=""),
        visual="",
        protocol="joint",
        aggregator=next(iter(runs.values())).aggregator,
        optim=optim,
        members=runs,
    )
