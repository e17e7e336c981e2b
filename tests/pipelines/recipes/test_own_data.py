"""Generic recipes on any corpus and features, as `train` and `sweep` read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from corpora import make_corpus, make_questions
from searchable import with_texts
from tiny_models import save_bert
from toy import trainer_of
from verbs import called

import polypool as pp
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.recipes.load import derive, read_run_file
from polypool.pipelines.training.record import Described
from polypool.pipelines.training.sweep import make_plan
from polypool.pipelines.training.train import prepare
from polypool.tasks.run import AUTO, Data, Run

SMALL = ("--optim.epochs", "1", "--no-figures")


def given(made: Run, *names: str) -> list[str]:
    """Return `--corpus` and further short flags for the data of a run."""
    return [word for name in ("corpus", *names) for word in (f"--{name}", getattr(made.data, name))]


def without_statistics(made: Run) -> Run:
    """Return a run on the same features without statistics, as `ingest` writes them."""
    store, folder = FeatureStore.open(Path(made.data.features)), f"{made.data.features}_ingested"
    with StoreWriter(folder, dim=store.dim, dtype="float32", source={}) as writer:
        for row, id in enumerate(store.ids.to_pylist()):
            writer.add(id, store[row])
        writer.close()
    return derive(made, data={"features": folder})


@pytest.mark.parametrize(
    ("recipe", "statistics"), [("image_text", False), ("video_text", True), ("vqa", False)]
)
def test_generic_recipe_trains_on_any_corpus(recipe, statistics, tmp_path):
    made = (make_questions if recipe == "vqa" else make_corpus)(tmp_path, train=8, val=4, test=5, dim=7)
    if not statistics:
        made = without_statistics(made)
    run = read_run(recipe, [*given(made, "features"), *SMALL])
    trainer = trainer_of(run, tmp_path, adapter=prepare(run))
    trainer.train()
    assert trainer.step >= 1  # fewer samples than a batch
    assert trainer.model.visual.encoder.standardise == statistics
    assert trainer.model.visual.encoder.fc.weight.shape == (256, 7)
    assert (
        Described.of(run).name == f"gpo · {recipe} · {Path(made.data.corpus).name} · {run.features} · seed 0"
    )
    assert trainer.log.rows[-1][1][f"{run.protocol}/{trainer.adapter.primary.name}"] >= 0


def test_no_test_flag_needs_no_test_split(tmp_path):
    made = make_corpus(tmp_path, train=8, val=4, test=0)
    run = read_run("image_text", [*given(made, "features"), *SMALL, "--no-test"])
    trainer_of(run, tmp_path, adapter=prepare(run)).train()
    with pytest.raises(InputError, match="in the split 'test'"):
        prepare(replace(run, test=True))


def test_default_text_encoder_depends_on_text_store(tmp_path):
    made = with_texts(
        make_corpus(tmp_path, train=8), tmp_path / "t", f"bert(name={save_bert(tmp_path / 'b')!r})"
    )
    words = read_run("image_text", given(made, "features"))
    stored = read_run("image_text", [*given(made, "features", "texts"), "--visual", "regions(width=32)"])
    assert (words.text.partition("(")[0], "width=256" in words.text) == ("bigru", True)
    assert prepare(stored).model().text.encoder.fc.weight.shape == (32, 8)
    assert prepare(replace(stored, visual="regions", text=AUTO)).run.text.endswith("width=1024)")
    assert read_run("image_text", [*given(made, "texts"), "--text", "stored_text"]).text == "stored_text"


def test_flags_api_file_and_sweep_give_equal_runs(tmp_path, monkeypatch):
    made = make_corpus(tmp_path, train=8)
    places = {"corpus": made.data.corpus, "features": made.data.features}
    run = read_run("image_text", [*given(made, "features"), "--aggregator", "max"])
    file = tmp_path / "run.yaml"
    file.write_text(f"base: image_text\naggregator: max\ndata: {places}\n")
    (trial,) = make_plan(["image_text"], ["max"], flags=given(made, "features")).trials
    long = ["--data.corpus", made.data.corpus, "--data.features", made.data.features, "--aggregator", "max"]
    assert run == pp.recipe("image_text", data=places, aggregator="max") == read_run_file(file) == trial.run
    assert run == read_run("image_text", long)
    assert (run.data.dataset, trial.name) == ("corpus", "image_text corpus max seed 0")
    assert read_run("image_text", [*long, "--data.dataset", "mine"]).label == "image_text mine"


@pytest.mark.parametrize("recipe", ["image_text", "video_text", "vqa"])
def test_missing_corpus_message_names_the_flag(recipe):
    code, _, said = called("train", recipe, "--features", "data/mine/cells")
    assert (code, said.startswith(f"error: {recipe} trains on your own data")) == (2, True), said
    for make in (lambda: pp.train(recipe), lambda: pp.train(recipe, data={"dataset": "mine"})):
        with pytest.raises(InputError, match="add --corpus DIR"):
            make()


def test_missing_features_message_names_the_flag(tmp_path):
    run = read_run("image_text", given(make_corpus(tmp_path, train=8)))
    with pytest.raises(InputError, match=r"name a store by --features \(polypool extract --corpus"):
        prepare(run)


@pytest.mark.parametrize(
    ("corpus", "name"),
    [
        ("data/mine", "mine"),
        ("data/mine/", "mine"),
        ("/a/data/../mine", "mine"),
        ("s3://bucket/data/mine/", "mine"),
        (".", "home"),
        ("data/..", "home"),
        ("", AUTO),
    ],
)
def test_dataset_name_defaults_to_corpus_folder(corpus, name, tmp_path, monkeypatch):
    (tmp_path / "home" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home")
    assert Data(corpus=corpus).dataset == name
    assert Data(corpus=corpus, dataset="own").dataset == "own"


def test_run_label_joins_recipe_and_dataset():
    run = pp.recipe("coco_mini")
    assert run.label == "coco_mini"
    assert replace(run, data=replace(run.data, dataset="mine")).label == "image_text coco_mini mine"
    assert replace(run, recipe="").label == "image_text coco_mini"
    assert pp.recipe("image_text", task="my_task(a=1)", data={"dataset": "x"}).label == "my_task image_text x"
    assert pp.recipe("mini_dinov2_joint").label == "mini_dinov2_joint"
