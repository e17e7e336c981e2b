"""Export and load trained models: from runs and folders, without data or MLflow, and damaged."""

import inspect
import json
import re
import shutil
import textwrap
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import hgr, make_corpus, make_questions
from places import ROOT
from programs import begin, end
from safetensors.torch import load_file, save_file
from stores import flip
from untrained_runs import export_untrained, track_untrained
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.exporting import export
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import train as start
from polypool.pipelines.training.checkpoint import load_weights, save_weights
from polypool.pipelines.training.record import tags as tags_of
from polypool.tasks.datasets.corpus import write_corpus
from polypool.tasks.run import Run, to_json


def exported_without_data(run, home: Path, folders: tuple[str, ...]):
    """Export an untrained run, delete its data and load the export."""
    run_id = track_untrained(run)
    export(run_id, home / "out" / "model")
    for folder in folders:
        shutil.rmtree(home / folder)
    return load(home / "out" / "model")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": hgr(dropout=0.0), "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
    ],
)
def test_exported_scores_match_run_scores(new_home, change):
    run = make_corpus(new_home)
    run = replace(run, data=replace(run.data, text_augment="", max_frames=3), **change)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    expected = adapter.scorer(adapter.model(), "test")(slice(0, 20), slice(0, 40))
    sets = [adapter.store[row] for row in adapter.store.rows(adapter.data("test").item_ids.tolist())]
    sets, texts = [np.array(x_NF) for x_NF in sets], adapter.data("test").texts
    model = exported_without_data(run, new_home, ("corpus", "features"))
    torch.testing.assert_close(model.scores(sets, texts).cpu(), expected)
    if change:
        return
    similarity = model.model.similarity(model.encode_visual(sets), model.encode_text(texts))
    torch.testing.assert_close(similarity.cpu(), expected)


def test_objective_weights_are_saved_but_optional(new_home):
    run = replace(make_corpus(new_home), objective="siglip(bias=-3)")
    export(track_untrained(run), new_home / "out")
    sets, texts = [np.ones((3, 10), dtype=np.float32)], ["a dog and a cat"]
    whole = load(new_home / "out")
    assert whole.model.objective.bias.item() == -3
    file = new_home / "out" / "model.safetensors"
    file.with_name("digests.json").unlink()  # its checksums are outdated now
    weights = load_file(file)
    assert weights.pop("objective.bias").item() == -3
    assert weights.pop("objective.log_scale").item() == pytest.approx(np.log(10))
    save_file(weights, file)
    torch.testing.assert_close(load(new_home / "out").scores(sets, texts), whole.scores(sets, texts))
    weights.pop(next(iter(weights)))
    save_file(weights, file)
    with pytest.raises(InputError, match="another architecture"):
        load(new_home / "out")


def test_exported_answers_match_run_answers(new_home):
    run = make_questions(new_home)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    probability_QA = adapter.scorer(adapter.model(), "test")(slice(0, 6), slice(None))
    questions = adapter.corpus.questions("test")[:6]
    rows = adapter.store.rows([q.image_id for q in questions])
    sets = [np.array(adapter.store[row]) for row in rows]
    model = exported_without_data(run, new_home, ("questions", "features"))
    found = model.answers(50 * sets, 50 * [q.question for q in questions])  # more than a batch of texts
    best = [adapter.vocabulary.answers[n] for n in probability_QA.argmax(1)]
    assert [answer for answer, _ in found] == 50 * best
    np.testing.assert_allclose([share for _, share in found], 50 * [*probability_QA.amax(1)], rtol=1e-5)
    with pytest.raises(InputError, match="an image for each question"):
        model.answers(sets, ["what?"])
    with pytest.raises(InputError, match="cannot encode images and texts apart"):
        model.encode_text(["what?"])


def test_evaluation_of_exported_model_writes_results_file(new_home, monkeypatch):
    for folder in ("out", "here"):
        (new_home / folder).mkdir()
    export_untrained(make_questions(new_home, unanswered=4), new_home / "out")
    monkeypatch.chdir(new_home / "here")
    code, said, errors = called("evaluate", new_home / "out", "--split", "test-dev")
    assert code == 0, errors
    file = new_home / "here" / "vqa_test-dev_results.json"
    assert f"vqa_test-dev_results.json: {file}\n" in said
    assert len(json.loads(file.read_text())) == 12


def test_readme_code_runs_without_mlflow_ray_or_data(new_home):
    exported_without_data(make_corpus(new_home), new_home, ("corpus", "features", "mlartifacts"))
    readme = (new_home / "out" / "model" / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 5
    check = "import sys\nassert not {'mlflow', 'ray'} & set(sys.modules)"
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    code, said, errors = end(begin("-c", f"{lines}\n{check}", folder=new_home / "out", env=env))
    assert code == 0, errors
    assert re.fullmatch(r"tensor\(\[\[-?\d\.\d+\]\](, device='cuda:0')?\)\n", said)


@pytest.fixture(scope="module")
def loaded(home):
    return exported_without_data(make_corpus(home, train=8, val=4, test=4), home, ())


@pytest.mark.parametrize(
    ("given", "texts", "message"),
    [
        ([np.zeros((3, 9))], ["a dog"], r"number 0 .*\(3, 9\); expected \(elements, 10\)"),
        ([np.full((3, 10), np.nan)], ["a dog"], "NaN"),
        (["a.png"], ["a dog"], "reads features, not image files"),
        ([np.zeros((3, 10))], "a dog", "give a list"),
    ],
)
def test_scores_refuse_invalid_input(loaded, given, texts, message):
    with pytest.raises(InputError, match=message):
        loaded.scores(given, texts)


def test_export_and_load_errors_name_the_cause(new_home):
    run = make_corpus(new_home)
    start = {"uri": tracking_uri(new_home), "home": new_home, "name": "made", "params": to_json(run)}
    unfinished = Tracker.start("polypool", tags={"kind": "train"}, **start).run_id
    with pytest.raises(InputError, match=f"has no model: it ended before .*train resume {unfinished}"):
        export(unfinished, new_home / "out")
    with pytest.raises(InputError, match=f"(?s)no run '0000'.*{unfinished}"):
        export("0000", new_home / "out")
    run_id = track_untrained(run)
    with pytest.raises(InputError, match="exists already"):
        export(run_id, new_home / "corpus")
    assert not (new_home / "out").exists()
    export(run_id, new_home / "out")
    files = {path.name for path in (new_home / "out").iterdir()}
    assert files == {"README.md", "assets.json", "digests.json", "model.safetensors", "run.json"}
    (new_home / "out" / "assets.json").write_text("null")
    with pytest.raises(
        InputError, match=r"out: assets\.json is damaged: .*SHA-256.*`polypool export` the run anew"
    ):
        load(new_home / "out")
    (new_home / "out" / "digests.json").unlink()
    (new_home / "out" / "assets.json").unlink()
    with pytest.raises(InputError, match=r"assets\.json: no such file"):
        load(new_home / "out")
    with pytest.raises(InputError, match="no such folder"):
        load(new_home / "nowhere")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), train=16, val=10, test=12)


def record(home, run, **tags) -> Tracker:
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    return Tracker.start("polypool", tags=tags_of(run) | tags, **given)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("comparison", "it is the summary of a comparison or a sweep; give one of the runs that it compares"),
        ("", "it was not made by polypool, as it has no tag `kind`; give a run that was trained"),
        ("other", "it is of kind 'other' and was not trained here; give a run that was"),
    ],
)
def test_load_refuses_runs_not_made_by_training(run, home, kind, message):
    made = record(home, run, kind=kind)
    made.text("compare.md", "a table")
    with pytest.raises(InputError) as error:
        load(made.run_id)
    assert str(error.value) == f"run {made.run_id} has no model: {message}"


def test_flipped_bit_in_model_file_is_detected(run, home):
    run_id = track_untrained(run)
    for file in ("run.json", "model.safetensors"):
        path = home / "mlartifacts" / run_id / "artifacts" / "model" / file
        data = path.read_bytes()
        flip(path, len(data) // 2)
        with pytest.raises(InputError, match=f"damaged: .*`polypool train rerun {run_id}`|digests.json"):
            load(run_id)
        path.write_bytes(data)


def test_non_finite_weights_are_refused(run, home, tmp_path):
    trained = load(track_untrained(run))
    with torch.no_grad():
        next(trained.model.parameters()).view(-1)[0] = torch.nan
    save_weights(trained.model, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="has values that are NaN"):
        load_weights(trained.model, tmp_path / "model.safetensors")


def test_run_and_exported_folder_give_equal_results(run, home, monkeypatch):
    run_id = track_untrained(replace(run, data=replace(run.data, text_augment="")))
    export(run_id, home / "same")
    monkeypatch.chdir(home)
    trained, folder, path = load(run_id), load("same"), load(home / "same")
    assert trained.tracker.run_id == run_id
    assert folder.tracker is None
    adapter = trained.adapter
    pairs, ids = adapter.data("test"), [item.id for item in adapter.corpus.items("test")]
    sets = [np.array(adapter.store[int(row)]) for row in adapter.store.rows(ids)]
    sim_VT = adapter.scorer(trained.model, "test")(slice(None), slice(None))
    for model in (trained, folder, path):
        torch.testing.assert_close(model.scores(sets, pairs.texts), sim_VT)
        hits = model.search(pairs.texts[5], k=3)
        assert [hit.id for hit in hits] == [ids[n] for n in sim_VT[:, 5].argsort(descending=True)[:3]]
    assert trained.open_search() is trained.open_search()
    assert trained.open_search("val") is not trained.open_search()
    assert len(trained.search(pairs.texts[5], split="val")) == 10
    expected = adapter.evaluate(trained.model, "val", "whole").metrics
    assert folder.evaluate(split="val").metrics == expected
    assert folder.evaluate().metrics != expected


def test_unsupported_model_methods_are_refused(run, home, tmp_path):
    pairs = load(track_untrained(replace(run, aggregator="score_attention(heads=2)")))
    with pytest.raises(InputError, match=r"a PairEncoder .* looks at every pair; `scores` compares them"):
        pairs.encode_text(["a dog"])
    answering = load(track_untrained(make_questions(tmp_path)))
    with pytest.raises(InputError, match="answers questions; ask one with `answers`"):
        answering.search("a dog")
    with pytest.raises(InputError, match="cannot answer questions: its adapter has no choices, prob"):
        pairs.answers([np.ones((2, 10))], ["what is it?"])


def test_docstring_examples_of_corpus_and_run_train(home, monkeypatch):
    names: dict[str, object] = {}
    monkeypatch.chdir(home)
    for documented in (write_corpus, Run):
        lines = inspect.getdoc(documented).partition("::\n")[2].splitlines()
        code = takewhile(lambda line: not line or line.startswith("    "), lines)
        exec(textwrap.dedent("\n".join(code)), names)
    assert load(start.start(replace(names["run"], figures=False))).search("picture 3", k=2)
