"""User workflow: own questions from a table to a leaderboard file; test_vqa.py has a fast version."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from verbs import called, ingested

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.train import prepare, start
from polypool.tasks.datasets.corpus import QuestionCorpus

pytestmark = pytest.mark.slow

COLORS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}
SPLITS = ["train"] * 6 + ["val"] * 3 + ["test"] * 3 + ["test-dev"] * 3


def table(folder: Path) -> Path:
    """Write a table with a question about each of 15 one-colour pictures; test-dev has no answers."""
    (folder / "photos").mkdir()
    (folder / "cells" / "photos").mkdir(parents=True)
    lines = ["image,question,answer,split"]
    for number, split in enumerate(SPLITS):
        name, color = [*COLORS.items()][number % 3]
        Image.new("RGB", (8, 8), tuple(255 * c for c in color)).save(folder / "photos" / f"{number}.png")
        features = np.array(color, np.float32) + 0.01 * np.arange(12, dtype=np.float32).reshape(4, 3)
        np.save(folder / "cells" / "photos" / f"{number}.npy", features)
        answer = "" if split == "test-dev" else name.title()
        lines.append(f"photos/{number}.png,What color is it?,{answer},{split}")
    (folder / "q.csv").write_text("\n".join(lines) + "\n")
    return folder / "q.csv"


@pytest.fixture(scope="module")
def walked(home) -> str:
    """Ingest a table and features and train a run; return its id."""
    said = ingested("table", "--file", table(home), "--out", home / "data" / "mine")
    assert "12 with 1; scored by the protocol exact-match" in said
    assert "3 with none" in said
    corpus, features = home / "data" / "mine", home / "data" / "mine" / "cells"
    ingested("arrays", "--dir", home / "cells", "--corpus", corpus, "--out", features)
    places = ["--corpus", str(corpus), "--features", str(features)]
    optim = ["--optim.epochs", "6", "--optim.batch", "2", "--optim.lr", "0.005"]
    return start(read_run("vqa", [*places, "--aggregator", "mean", *optim, "--no-figures"]))


def test_question_ids_are_table_row_numbers(walked, home):
    corpus = QuestionCorpus.open(home / "data" / "mine")
    first = corpus.questions("train")[:2]
    assert [(each.id, each.answers, each.label) for each in first] == [
        ("1", ("Red",), "Red"),
        ("2", ("Green",), "Green"),
    ]
    assert corpus.questions("test-dev")[0].answers == ()


def test_single_answer_questions_use_exact_match(walked, home):
    run = Tracker.attach(tracking_uri(home), walked, running=False)
    metrics = run.metrics()
    assert metrics["exact-match/accuracy"] == metrics["test/score"] == 100  # VQA's rule would give 0
    assert (run.tag("protocol"), "vqa/accuracy" in metrics) == ("exact-match", False)
    assert not {"exact-match/accuracy_2017"} & {*metrics}
    for words in (
        ("evaluate", walked),
        ("compare",),
        ("search", walked, "What color is it?", "--id", "photos/9.png"),
    ):
        code, out, err = called(*words)
        assert code == 0, err
        assert ("red" if words[0] == "search" else "exact-match") in out
    code, _, err = called("evaluate", walked, "--protocol", "vqa")
    assert (code, "--protocol exact-match" in err) == (2, True), err


def test_unanswered_questions_give_a_results_file(walked):
    code, out, err = called("evaluate", walked, "--split", "test-dev")
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("vqa_test-dev_results.json: ")]
    said = json.loads(Path(line.partition(": ")[2]).read_text())
    assert said == [{"question_id": 13 + n, "answer": color} for n, color in enumerate(COLORS)]


def test_ten_answer_questions_use_vqa_protocol(home):
    rows = [
        {"image_id": n, "question": "What?", "answers": ["red"] * 10, "split": split}
        for n, split in enumerate(SPLITS[:12])
    ]
    (home / "ten.json").write_text(json.dumps(rows))
    assert "12 with 10; scored by the protocol vqa" in ingested(
        "table", "--file", home / "ten.json", "--out", home / "t"
    )
    places = ["--corpus", str(home / "t"), "--features", str(home / "data" / "mine" / "cells")]
    assert read_run("vqa", places).protocol == "vqa"
    few = ["--corpus", str(home / "data" / "mine"), *places[2:], "--protocol", "vqa"]
    with pytest.raises(InputError, match=r"the split 'train' .* questions of fewer \(6 with 1\)"):
        prepare(read_run("vqa", few))
