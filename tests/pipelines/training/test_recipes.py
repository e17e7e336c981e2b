"""Every recipe, with its own parts made small: built, trained two steps, evaluated."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from asking import META, as_on_a_gpu, nothing_asked, on_meta
from corpora import make_corpus, make_questions
from PIL import Image
from searchable import with_texts
from small import shallow_networks, small_parts, write_named
from tiny_models import save_bert, save_clip, save_vit
from toy import trainer_of

from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import RECIPES, TASKS
from polypool.infra.spec import changed
from polypool.pipelines.recipes.load import Ensemble, derive, named_run
from polypool.tasks.run import Run, from_json, to_json

RUNS = [name for name in RECIPES.names() if isinstance(RECIPES.get(name)(), Run)]
ENSEMBLES = [name for name in RECIPES.names() if name not in RUNS]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, models) -> Run:
    folder = tmp_path_factory.mktemp("recipes")
    run = make_corpus(folder, train=16, val=4, test=6, images=folder / "images")
    rng = np.random.default_rng(0)
    for i in range(26):
        pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    return with_texts(run, folder / "texts", f"bert(name={models['bert']!r})")


@pytest.fixture(scope="module")
def questions(tmp_path_factory, models) -> Run:
    folder = tmp_path_factory.mktemp("recipes")
    run = make_questions(folder, train=16, val=4, test=6)
    return with_texts(run, folder / "texts", f"bert(name={models['bert']!r})")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    clip = save_clip(folder / "clip", width=10, layers=12)  # as wide as the corpus's features
    bert, vit = save_bert(folder / "bert"), save_vit(folder / "vit")
    return {"bert": bert, "patches": vit, "clip_text": clip, "openai/clip-vit-base-patch32": clip}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, shallow_networks():
        patch.setenv("POLYPOOL_HOME", str(folder))
        write_named(folder)
        yield folder


def shrunk(run: Run, corpus: Run, models: dict[str, str]) -> Run:
    if not run.data.corpus:  # a recipe for any data
        run = derive(run, data={"corpus": corpus.data.corpus, "features": corpus.data.features})
    asks, by_image = run.task_name == "vqa", run.data.sample == "image"
    stores = {name: getattr(run.data, name) and getattr(corpus.data, name) for name in ("features", "texts")}
    batch = 24 if asks else 8 if by_image else 16
    return derive(
        run,
        **small_parts(run, models),
        task=changed(run.task, min_count=1) if asks else run.task,
        data={"corpus": corpus.data.corpus, "captions": 2} | stores,
        protocol="vqa" if asks else "whole",
        optim={"epochs": 1, "batch": batch, "warmup_steps": 1},
        log_every=1,
        figures=False,
    )


def kind(recipe: Run) -> str:
    """Return what decides which code a recipe runs: all but names, paths and sizes of steps."""
    run = to_json(recipe)
    for key in ("recipe", "published", "source", "protocol", "experiment"):
        run.pop(key)
    data, optim = run["data"], run["optim"]
    data |= {
        "dataset": "",
        "corpus": "",
        "extractor": "",
        "features": bool(data["features"]),
        "texts": bool(data["texts"]),
    }
    optim |= dict.fromkeys(("epochs", "batch", "lr", "weight_decay", "milestones", "decay", "warmup_steps"))
    return re.sub(r"\bk=(?!1\b)\d+", "k=2", json.dumps(run, sort_keys=True))  # as many vectors as one likes


def gradient(adapter, model, batch) -> dict[str, torch.Tensor]:
    """Return the loss of a step, and the gradients of the weights."""
    torch.manual_seed(0)
    with drawn(Draws(seed=0, step=1, first=0, samples=8)):
        loss = adapter.loss(model.train(), batch, epoch=5.0)["loss"]
    names, weights = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return {"loss": loss} | {name: x for name, x in zip(names, found, strict=True) if x is not None}


def assert_fit_for_a_gpu(adapter) -> None:
    """Take the gradient of a step without any value of the device, and compare these ways with a CPU's."""
    model, batch = adapter.model(), adapter.data("train").batch(np.arange(8), seed=0, epoch=0)
    expected = gradient(adapter, copy.deepcopy(model), batch)
    with as_on_a_gpu():
        found = gradient(adapter, copy.deepcopy(model), batch)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    model, batch = model.to(META), on_meta(batch)
    with nothing_asked():
        assert gradient(adapter, model, batch).keys() == expected.keys()


@pytest.fixture(scope="module")
def trained() -> dict[str, list[str]]:
    """The weights' names of the models that were trained, by the kind of recipe."""
    return {}


@pytest.mark.parametrize("name", [name for name in RUNS if RECIPES.get(name)().members])
def test_a_joint_recipe_trains_each_of_its_tasks(name, corpus, questions, models, tmp_path):
    run = named_run(name)
    members = {
        key: shrunk(member, questions if member.task_name == "vqa" else corpus, models)
        for key, member in run.members.items()
    }
    run = derive(run, members=members, optim={"epochs": 1, "batch": 16}, log_every=1, figures=False)
    trainer = trainer_of(run, tmp_path)
    trainer.train()
    log = trainer.log
    logged = {key for _, row in log.rows for key in row}
    assert {f"train/{key}/loss" for key in members} | {"joint/mean"} <= logged
    assert {*log.members} == {*members}


@pytest.mark.parametrize("name", [name for name in RUNS if not RECIPES.get(name)().members])
def test_a_recipe_trains_two_steps_and_is_evaluated(name, trained, corpus, questions, models, tmp_path):
    recipe = named_run(name)
    run = shrunk(recipe, questions if recipe.task_name == "vqa" else corpus, models)
    adapter = TASKS.build(run.task, run)
    if kind(recipe) in trained:  # another data set, or other numbers
        assert [*adapter.model().state_dict()] == trained[kind(recipe)]
        return
    told = TASKS.build(run.task, run, assets=json.loads(json.dumps(adapter.assets)))  # as workers are
    ours, theirs = (each.data("train").batch(np.arange(3), seed=1, epoch=2) for each in (adapter, told))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    assert_fit_for_a_gpu(adapter)
    trainer = trainer_of(run, tmp_path, adapter=adapter)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trained[kind(recipe)] = [*before]
    trainer.train()
    assert trainer.step == 2
    losses = trainer.log.history("train/loss")
    assert len(losses) == 2
    assert all(math.isfinite(loss) for _, loss in losses)
    assert trainer.log.rows[-1][1][f"{run.protocol}/{adapter.primary.name}"] >= 0
    assert any(not torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())


EXAMPLES, ATTENTION = "whole_test_examples.html", "test_attention.html"


@pytest.mark.parametrize(
    ("name", "pictures"),
    {
        "coco_2ad_region_bigru": {"negatives.png", EXAMPLES},
        "coco_dive_region_bigru": {"variance.png", EXAMPLES, ATTENTION},
        "vqa2_scoreattn_k5": {"variance.png", "vqa_test_examples.html", ATTENTION},
    }.items(),
)
def test_a_recipe_leaves_its_pictures(name, pictures, corpus, questions, models, tmp_path):
    recipe = named_run(name)
    run = shrunk(recipe, questions if recipe.task_name == "vqa" else corpus, models)
    trainer_of(replace(run, figures=True), tmp_path).train()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"pooling.png", *pictures}


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_is_complete_and_survives_json(name):
    run = RECIPES.get(name)()
    assert run.recipe == name
    assert RECIPES.get(name).__doc__
    assert from_json(json.loads(json.dumps(to_json(run)))) == run


@pytest.mark.parametrize("name", ENSEMBLES)
def test_an_ensemble_is_made_of_recipes_on_one_corpus(name):
    ensemble: Ensemble = RECIPES.get(name)()
    members = [RECIPES.get(member)() for member in ensemble.members]
    assert len(members) > 1
    assert {m.data.corpus for m in members} == {f"data/{name.partition('_')[0]}"}
    assert len(set(ensemble.seeded())) == len(members)
