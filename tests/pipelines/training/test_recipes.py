"""Recipes with small parts, which cover every part: training, GPU readiness, evaluation, figures."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from gpu_paths import META, gpu_paths_on_cpu, on_meta, without_device_reads
from PIL import Image
from searchable import with_texts
from small import shallow_networks, small_parts, write_named
from tiny_models import save_bert, save_clip, save_vit
from toy import trainer_of

from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import RECIPES, TASKS, Spec
from polypool.infra.spec import changed
from polypool.pipelines.recipes.load import Ensemble, derive, named_run
from polypool.tasks.run import Run, from_json, specs, to_json

RUNS = [name for name in RECIPES.names() if isinstance(RECIPES.get(name)(), Run)]
ENSEMBLES = [name for name in RECIPES.names() if name not in RUNS]
JOINT = [name for name in RUNS if RECIPES.get(name)().members]
EXAMPLES, ATTENTION = "whole_test_examples.html", "test_attention.html"
PICTURES = {
    "coco_2ad_region_bigru": {"negatives.png", EXAMPLES},
    "coco_dive_region_bigru": {"variance.png", EXAMPLES, ATTENTION},
    "vqa2_scoreattn_k5": {"variance.png", "vqa_test_examples.html", ATTENTION},
}
"""Figures of some recipes, in addition to `pooling.png`."""


def parts_of(run: Run) -> set[object]:
    """Return what selects a run's code: names of its parts, encoders and form of data."""
    named = {name: Spec.parse(spec).name for name, spec in specs(run) if spec}
    encoders = tuple(named.get(name) for name in ("task", "visual", "text", "model", "cross", "adapt"))
    form = bool(run.data.features), bool(run.data.texts), run.data.sample
    return {*named.items(), encoders, form, (run.optim.recompute, run.optim.ema > 0, bool(run.optim.freeze))}


def covering() -> list[str]:
    """Return recipes that cover every part: each has one that earlier recipes lack."""
    found, seen = [], set[object]()
    for name in RUNS:
        parts = set() if name in JOINT else parts_of(RECIPES.get(name)())
        if parts - seen or name in PICTURES:
            found.append(name)
            seen |= parts
    return found


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
    clip = save_clip(folder / "clip", width=10, layers=12)  # same width as the corpus's features
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
    if not run.data.corpus:  # the recipe names no corpus
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


def gradient(adapter, model, batch) -> dict[str, torch.Tensor]:
    """Return the loss and the weight gradients of one step."""
    torch.manual_seed(0)
    with drawn(Draws(seed=0, step=1, first=0, samples=8)):
        loss = adapter.loss(model.train(), batch, epoch=5.0)["loss"]
    names, weights = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return {"loss": loss} | {name: x for name, x in zip(names, found, strict=True) if x is not None}


def assert_fit_for_a_gpu(adapter) -> None:
    """Check that a step reads no values from the device, and that its GPU code path matches the CPU's."""
    model, batch = adapter.model(), adapter.data("train").batch(np.arange(8), seed=0, epoch=0)
    expected = gradient(adapter, copy.deepcopy(model), batch)
    with gpu_paths_on_cpu():
        found = gradient(adapter, copy.deepcopy(model), batch)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    model, batch = model.to(META), on_meta(batch)
    with without_device_reads():
        assert gradient(adapter, model, batch).keys() == expected.keys()


@pytest.mark.parametrize("name", JOINT)
def test_joint_recipe_trains_each_task(name, corpus, questions, models, tmp_path):
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


@pytest.mark.parametrize("name", covering())
def test_recipe_trains_evaluates_and_draws_figures(name, corpus, questions, models, tmp_path):
    recipe = named_run(name)
    run = shrunk(recipe, questions if recipe.task_name == "vqa" else corpus, models)
    run = replace(run, figures=name in PICTURES)
    adapter = TASKS.build(run.task, run)
    assert_fit_for_a_gpu(adapter)
    trainer = trainer_of(run, tmp_path, adapter=adapter)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    losses = trainer.log.history("train/loss")
    assert (trainer.step, len(losses)) == (2, 2)
    assert all(math.isfinite(loss) for _, loss in losses)
    assert trainer.log.rows[-1][1][f"{run.protocol}/{adapter.primary.name}"] >= 0
    assert any(not torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    if run.figures:
        drawn_files = {path.name for path in (tmp_path / "figures").iterdir()}
        assert drawn_files == {"pooling.png", *PICTURES[name]}


def test_recipes_have_docstrings_and_round_trip_as_json():
    for name in RUNS:
        run = RECIPES.get(name)()
        assert run.recipe == name
        assert RECIPES.get(name).__doc__
        assert from_json(json.loads(json.dumps(to_json(run)))) == run, name


@pytest.mark.parametrize("name", ENSEMBLES)
def test_ensemble_members_share_one_corpus(name):
    ensemble: Ensemble = RECIPES.get(name)()
    members = [RECIPES.get(member)() for member in ensemble.members]
    assert len(members) > 1
    assert {m.data.corpus for m in members} == {f"data/{name.partition('_')[0]}"}
    assert len(set(ensemble.seeded())) == len(members)
