"""A run as a folder of its own: exported, moved, and used where neither its data nor MLflow is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from kept import keep_run
from places import ROOT
from safetensors.torch import load_file, save_file
from searchable import with_pictures

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.exporting import export
from polypool.pipelines.models.trained import load
from polypool.tasks.run import to_json


def exported_without_data(run, home: Path, folders: tuple[str, ...]):
    """Export a run that was never trained, take its data away, and load it."""
    run_id = keep_run(run)
    export(run_id, home / "out" / "model")
    for folder in folders:
        shutil.rmtree(home / folder)
    return load(home / "out" / "model")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"aggregator": "slots(k=2, heads=2, head_width=8)"},
        {"model": "hgr(dropout=0.0)", "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
        {"aggregator": "score_attention(heads=2)"},
    ],
)
def test_scores_are_those_of_the_run_on_its_data(new_home, change):
    run = make_corpus(new_home)
    run = replace(run, data=replace(run.data, text_augment="", max_frames=3), **change)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    expected = adapter.scorer(adapter.model(), "test")(slice(0, 20), slice(0, 40))
    sets = [adapter.store[row] for row in adapter.store.rows(adapter.data("test").item_ids.tolist())]
    sets, texts = [np.array(x_NF) for x_NF in sets], adapter.data("test").texts
    model = exported_without_data(run, new_home, ("corpus", "features"))
    torch.testing.assert_close(model.scores(sets, texts), expected)
    if "model" in change or "score" in change.get("aggregator", ""):
        return
    similarity = model.model.similarity(model.encode_visual(sets), model.encode_text(texts))
    torch.testing.assert_close(similarity, expected)


def test_what_an_objective_learnt_is_in_the_file_and_not_needed_to_score(new_home):
    run = replace(make_corpus(new_home), objective="siglip(bias=-3)")
    export(keep_run(run), new_home / "out")
    sets, texts = [np.ones((3, 10), dtype=np.float32)], ["a dog and a cat"]
    whole = load(new_home / "out")
    assert whole.model.objective.bias.item() == -3
    file = new_home / "out" / "model.safetensors"
    weights = load_file(file)
    assert weights.pop("objective.bias").item() == -3
    assert weights.pop("objective.log_scale").item() == pytest.approx(np.log(10))
    save_file(weights, file)
    torch.testing.assert_close(load(new_home / "out").scores(sets, texts), whole.scores(sets, texts))
    weights.pop(next(iter(weights)))
    save_file(weights, file)
    with pytest.raises(InputError, match="another architecture"):
        load(new_home / "out")


def test_questions_are_answered_as_by_the_run(new_home):
    run = make_questions(new_home)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    probability_QA = adapter.scorer(adapter.model(), "test")(slice(0, 6), slice(None))
    questions = adapter.corpus.questions("test")[:6]
    rows = adapter.store.rows([q.image_id for q in questions])
    sets = [np.array(adapter.store[row]) for row in rows]
    model = exported_without_data(run, new_home, ("questions", "features"))
    found = model.answers(sets, [q.question for q in questions])
    assert [answer for answer, _ in found] == [
        adapter.vocabulary.answers[n] for n in probability_QA.argmax(1)
    ]
    np.testing.assert_allclose([share for _, share in found], probability_QA.amax(1), rtol=1e-5)
    with pytest.raises(InputError, match="an image for each question"):
        model.answers(sets, ["what?"])
    with pytest.raises(InputError, match="cannot encode images and texts apart"):
        model.encode_text(["what?"])


def test_the_lines_of_the_readme_run_without_mlflow_ray_and_data(new_home):
    exported_without_data(make_corpus(new_home), new_home, ("corpus", "features", "mlartifacts"))
    readme = (new_home / "out" / "model" / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 5
    check = "import sys\nassert not {'mlflow', 'ray'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{lines}\n{check}"],
        cwd=new_home / "out",
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"tensor\(\[\[-?\d\.\d+\]\]\)\n", done.stdout)


def test_the_readme_names_what_describes_new_pictures(new_home):
    exported_without_data(with_pictures(new_home, train=8, val=4, test=4), new_home, ("corpus", "cells"))
    readme = (new_home / "out" / "model" / "README.md").read_text()
    assert "Images or videos are described first by `cells(grid=2, pixels=8)`, looked for here" in readme


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """An exported model."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return exported_without_data(make_corpus(folder), folder, ())


@pytest.mark.parametrize(
    ("given", "texts", "message"),
    [
        ([np.zeros((3, 9))], ["a dog"], r"number 0 .*\(3, 9\); expected \(elements, 10\)"),
        ([np.zeros((3, 10)), np.zeros((0, 10))], ["a dog"], "number 1"),
        ([np.full((3, 10), np.nan)], ["a dog"], "NaN"),
        (["a.png"], ["a dog"], "reads features, not image files"),
        ([], ["a dog"], "at least one"),
        ([np.zeros((3, 10))], "a dog", "give a list"),
    ],
)
def test_input_that_does_not_fit_is_refused(loaded, given, texts, message):
    with pytest.raises(InputError, match=message):
        loaded.scores(given, texts)


def test_what_cannot_be_exported_or_loaded_is_said(new_home):
    run = make_corpus(new_home)
    start = {"uri": tracking_uri(new_home), "home": new_home, "name": "made", "params": to_json(run)}
    unfinished = Tracker.start("polypool", tags={"kind": "train"}, **start).run_id
    with pytest.raises(InputError, match=f"has no model: it ended before .*train resume {unfinished}"):
        export(unfinished, new_home / "out")
    table = Tracker.start("polypool", tags={"kind": "comparison"}, **start).run_id
    with pytest.raises(
        InputError, match="has no model: it is the summary of a comparison or a sweep; give one"
    ):
        export(table, new_home / "out")
    with pytest.raises(InputError, match=f"(?s)no run '0000'.*{table}"):
        export("0000", new_home / "out")
    run_id = keep_run(run)
    with pytest.raises(InputError, match="exists already"):
        export(run_id, new_home / "corpus")
    assert not (new_home / "out").exists()
    export(run_id, new_home / "out")
    assert sorted(path.name for path in (new_home / "out").iterdir()) == [
        "README.md",
        "assets.json",
        "model.safetensors",
        "run.json",
    ]
    (new_home / "out" / "assets.json").unlink()
    with pytest.raises(InputError, match=r"assets\.json: no such file"):
        load(new_home / "out")
    with pytest.raises(InputError, match="no such folder"):
        load(new_home / "nowhere")
