"""Every recipe against what the papers and their authors' codes print, by calling what training calls.

The values are in `published_settings.toml`, and nothing of them is read from the project.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from infra.data import Order
from infra.registry import AGGREGATORS, AUGMENTATIONS, ENCODERS, OBJECTIVES, RECIPES, Spec
from infra.spec import changed
from pipelines.recipe import Ensemble
from pipelines.training.optim import lr_scale, make_optimizer, ready_gradients, set_lr
from tasks.augmentations.sets import draw_for
from tasks.models.build import Parts, retrieval_model
from tasks.questions.model import vqa_model
from tasks.run import Optim, Run

FILE = tomllib.loads((Path(__file__).parent / "published_settings.toml").read_text())
WATCHED = 3  # epochs, every step of them; of later ones the first step and the last
NAMES = RECIPES.names()
RUNS = [n for n in NAMES if isinstance(RECIPES.get(n)(), Run) and n not in FILE["untrained"]]
Setting = Mapping[str, Any]


def settings() -> Iterator[tuple[str, Setting]]:
    """Yield each recipe that the file names, with its setting."""
    by_name: dict[str, Setting] = {}
    for own in FILE["setting"]:
        by_name[own["name"]] = (by_name[own["like"]] if "like" in own else {}) | own
        yield from ((recipe, by_name[own["name"]]) for recipe in own["recipes"])


SETTINGS = dict(settings())


def test_every_recipe_stands_in_the_file_once_with_its_source():
    named = [recipe for recipe, _ in settings()] + [*FILE["ensembles"], *FILE["untrained"]]
    missing, gone = sorted({*NAMES} - {*named}), sorted({*named} - {*NAMES})
    assert not missing, (
        f"write down in published_settings.toml how these were trained, and where it is printed: {missing}"
    )
    assert not gone, f"published_settings.toml has recipes that there are not: {gone}"
    assert len(named) == len({*named})
    assert all(own["source"] for own in FILE["setting"])


@pytest.mark.parametrize("name", [*FILE["untrained"]])
def test_what_is_not_trained_has_no_epoch(name):
    assert FILE["untrained"][name]
    assert RECIPES.get(name)().optim.epochs == 0


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(RECIPES.get(name)(), Ensemble)])
def test_an_ensemble_has_its_members(name):
    ensemble: Ensemble = RECIPES.get(name)()
    assert list(ensemble.members) == FILE["ensembles"][name]


# ------------------------------------------------------------------------------------------------------ the model


class Made(NamedTuple):
    model: nn.Module
    shapes: dict[str, list[int]]


def made(run: Run) -> Made:
    """Return the recipe's own model, whose parameters have their names and one number each; and their shapes."""
    from transformers import BertConfig, CLIPTextConfig, CLIPVisionConfig, ViTConfig

    of_clip = "clip" in Spec.parse(run.visual).params.get("name", "")
    kinds = {
        "bert": {"config": BertConfig().to_dict()},
        "clip_text": {"config": CLIPTextConfig().to_dict(), "specials": {"end": 1, "pad": 1}},
        "patches": {"config": (CLIPVisionConfig() if of_clip else ViTConfig()).to_dict()},
        "stored": {"dim": 512},
        "cnn": {},
    }
    features = {"dim": 2048, "statistics": {"mean": [0.0] * 2048, "std": [1.0] * 2048}}
    visual = kinds.get(Spec.parse(run.visual).name, features)
    text = kinds.get(Spec.parse(run.text).name, {"words": ["a", "dog"]})
    parts = Parts(
        run,
        visual=lambda: ENCODERS.build(run.visual, visual),
        text=lambda: ENCODERS.build(run.text, text),
    )
    with torch.device("meta"):
        model = vqa_model(run, parts, answers=3129) if run.protocol == "vqa" else retrieval_model(run, parts)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = nn.Parameter(torch.zeros(1))
    return Made(model, shapes)


@functools.cache
def recipe(name: str) -> tuple[Run, Setting, Made]:
    run: Run = RECIPES.get(name)()
    return run, SETTINGS[name], made(run)


def longest(values: Mapping[str, float], name: str, *, default: float) -> float:
    """Return the value of the longest beginning of a name."""
    fitting = [beginning for beginning in values if name.startswith(beginning)]
    return values[max(fitting, key=len)] if fitting else default


# -------------------------------------------------------------------------------------------- rates and frozen parts


def epoch_steps(run: Run, setting: Setting) -> int:
    """Return the steps of an epoch as the loop counts them."""
    order = Order(
        size=FILE["samples"][run.data.dataset][setting["sample"]],
        batch=run.optim.batch,
        drop_last=run.optim.drop_last,
        seed=0,
    )
    return order.epoch_steps


def watched(epochs: int, steps: int) -> list[int]:
    later = [step for epoch in range(WATCHED, epochs) for step in (epoch * steps, (epoch + 1) * steps - 1)]
    return [*range(min(WATCHED, epochs) * steps), *later]


def rates(optimizer: torch.optim.Optimizer, optim: Optim, steps: int) -> np.ndarray:
    """Return every group's rate at the watched steps, `(S, G)`, as the loop sets them."""
    found = []
    for step in watched(optim.epochs, steps):
        set_lr(optimizer, optim, lr_scale(optim, step=step, epoch_steps=steps))
        found.append([group["lr"] for group in optimizer.param_groups])
    return np.array(found)


@functools.cache
def without_gradient(frozen_epochs: float, clip: float, epochs: int, steps: int) -> np.ndarray:
    """Return at which of the watched steps `(S,)` the loop leaves a group as it is."""
    one, optim = nn.Parameter(torch.zeros(1)), Optim(clip=clip)
    optimizer = torch.optim.AdamW([{"params": [one], "frozen_epochs": frozen_epochs}])
    gradient, found = torch.ones(1), []
    for step in watched(epochs, steps):
        one.grad = gradient
        ready_gradients(optimizer, optim, step=step, epoch_steps=steps)
        found.append(one.grad is None)
    return np.array(found)


def published_scale(setting: Setting, step: int, steps: int) -> float:
    """Return the factor on all rates that the file says."""
    epoch, warmup, falls = step // steps, setting.get("warmup", {}), setting["falls"]
    scale = 1.0
    if warmup.get("epoch") == epoch:
        scale = (step - epoch * steps + 1) / steps
    if "steps" in warmup:
        scale = min(1.0, (step + 1) / warmup["steps"])
    if falls == "cosine":
        return scale * (1 + math.cos(math.pi * step / (setting["epochs"] * steps))) / 2
    return scale * math.prod(falls["by"] for end in falls.get("after", ()) if epoch >= end)


@pytest.mark.parametrize("name", RUNS)
def test_every_parameter_learns_at_its_rate_and_is_frozen_for_its_time(name):
    run, setting, (model, _) = recipe(name)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    optimizer = make_optimizer(model, run.optim)
    names = {parameter: name for name, parameter in model.named_parameters()}
    steps = epoch_steps(run, setting)
    rates_SG = rates(optimizer, run.optim, steps)
    at_S = watched(setting["epochs"], steps)
    scale_S = np.array([published_scale(setting, step, steps) for step in at_S])
    left = set(names.values())
    for group, rate_S in zip(optimizer.param_groups, rates_SG.T, strict=True):
        frozen_S = without_gradient(group["frozen_epochs"], run.optim.clip, run.optim.epochs, steps)
        for parameter in group["params"]:
            own = names[parameter]
            left.remove(own)
            base = longest(setting["rates"], own, default=math.nan)
            np.testing.assert_allclose(rate_S, base * scale_S, rtol=1e-12, err_msg=own)
            until = longest(setting.get("frozen", {}), own, default=0) * steps
            assert (frozen_S == (np.array(at_S) < until)).all(), own
    assert left == {own for own in names.values() if longest(setting["rates"], own, default=math.nan) == 0}
    assert not any(p.requires_grad for p, own in names.items() if own in left)


@pytest.mark.parametrize("name", RUNS)
def test_batches_epochs_and_the_optimiser(name):
    run, setting, (model, _) = recipe(name)
    assert (run.optim.batch, run.optim.epochs) == (setting["batch"], setting["epochs"])
    assert run.optim.drop_last == (setting["last"] == "dropped")
    if setting["sample"] != "question":
        assert run.data.sample == setting["sample"]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    optimizer = make_optimizer(model, run.optim)
    assert isinstance(optimizer, torch.optim.AdamW)  # Adam, where nothing decays
    assert setting["optimizer"] in ("AdamW", "Adam", "AMSGrad")
    assert setting["optimizer"] == "AdamW" or setting["decay"] == 0
    for group in optimizer.param_groups:
        assert group["weight_decay"] == setting["decay"]
        assert group["amsgrad"] == (setting["optimizer"] == "AMSGrad")
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize("name", RUNS)
def test_the_gradient_is_clipped_as_one(name):
    run, setting, _ = recipe(name)
    pair = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [p], "factor": 1.0, "frozen_epochs": 0.0} for p in pair])
    pair[0].grad, pair[1].grad = torch.tensor([30.0]), torch.tensor([40.0])
    ready_gradients(optimizer, run.optim, step=0, epoch_steps=1)
    norm = math.hypot(*(float(parameter.grad) for parameter in pair))
    assert norm == pytest.approx(setting["clip"] or 50.0, rel=1e-4)
    assert float(pair[1].grad / pair[0].grad) == pytest.approx(4 / 3)


# ------------------------------------------------------------------------------------------ negatives, augmentation


def hinges(sim_NN: Tensor, margin: float, which: str, reduction: str) -> Tensor:
    """The triplet loss of N pairs on the diagonal, by loops."""
    total, size = 0.0, len(sim_NN)
    for scores_NN in (sim_NN, sim_NN.T):
        costs = [
            [max(0.0, margin + float(scores_NN[i, j] - scores_NN[i, i])) for j in range(size) if j != i]
            for i in range(size)
        ]
        per_pair = [sum(row) if which == "all" else max(row) for row in costs]
        total += sum(per_pair) / (1 if reduction == "sum" else size * (size - 1 if which == "all" else 1))
    return total


@pytest.mark.parametrize("name", RUNS)
def test_each_epoch_has_its_negatives(name):
    run, setting, _ = recipe(name)
    if setting["objective"] != "triplet":
        assert run.objective == setting["objective"]
        return
    objective = OBJECTIVES.build(run.objective)
    sim_NN = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.eye(6, dtype=torch.bool)
    for epoch, which in enumerate(setting["negatives"]):
        wanted = hinges(sim_NN, setting["margin"], which, setting["reduction"])
        for time in (epoch, epoch + 0.5, epoch + 0.9999):
            loss = objective(sim_NN, torch.arange(6), pairs, epoch=time)["loss"]
            assert float(loss) == pytest.approx(wanted, rel=1e-12), time


@pytest.mark.parametrize("name", RUNS)
def test_sets_lose_as_many_elements_in_training(name):
    run, setting, _ = recipe(name)
    wanted, spec = setting["dropped"], run.data.visual_augment
    assert bool(wanted) == bool(spec)
    if wanted:
        share, whole = dropped(spec, wanted["of"])
        assert share == pytest.approx(wanted["share"], abs=0.003)
        assert whole == pytest.approx(wanted["whole"], abs=0.02)


@functools.cache
def dropped(spec: str, size: int) -> tuple[float, float]:
    """Return the share of elements that an augmentation drops, and the share of sets of `size` that it leaves whole."""
    stay = AUGMENTATIONS.build(spec)(np.full(8000, size), np.arange(8000), draw_for(0, 0, 0))
    kept = np.array([set_N.mean() for set_N in stay])
    return 1 - kept.mean(), (kept == 1).mean()


@pytest.mark.parametrize("name", RUNS)
def test_captions_lose_as_many_words_in_training(name):
    run, setting, _ = recipe(name)
    wanted, spec = setting["words_augmented"], run.data.text_augment
    assert bool(wanted) == bool(spec)
    if wanted:
        assert word_fates(spec) == pytest.approx(wanted, abs=0.002)


@functools.cache
def word_fates(spec: str) -> dict[str, float]:
    """Return the shares of words that an augmentation masks, replaces and deletes."""
    captions, words = 20_000, 10
    caption_P, word_P = (x.ravel() for x in np.indices((captions, words)))
    old_P = np.full(captions * words, 2**30, np.int32)
    new_P, stay_P = AUGMENTATIONS.build(spec)(
        old_P, word_P, caption_P, draw_for(0, 0, 1), mask_subword=-1, vocabulary=2**20
    )
    masked_P, other_P = new_P == -1, (new_P != old_P) & (new_P != -1)
    return {
        "masked": float((masked_P & stay_P).mean()),
        "replaced": float((other_P & stay_P).mean()),
        "deleted": float((~stay_P).mean()),
    }


# --------------------------------------------------------------------------------------------------- words and parts

QUOTED = {
    "treebank": ["``", "can", "not", "''", "5:50", "?"],
    "captions": ['"', "cannot", '"', "5", ":", "50", "?"],
    "questions": ['"cannot"', "5:50"],
}
STARTS: dict[str, Callable[[Tensor], bool]] = {
    "uniform": lambda x_VE: 0.099 < x_VE.abs().max() <= 0.1,
    "scaled": lambda x_VE: 0.99 < x_VE.abs().max() * math.sqrt(300) <= 1.000001,
    "normal": lambda x_VE: abs(x_VE.std() - 1) < 0.01 and x_VE.abs().max() > 3,
    "zero": lambda x_VE: not x_VE.any(),
}


@pytest.mark.parametrize("name", [name for name in RUNS if SETTINGS.get(name, {}).get("words")])
def test_captions_become_words_as_they_did(name):
    run, setting, _ = recipe(name)
    words, spec = setting["words"], Spec.parse(run.text)
    encoder = ENCODERS.get(spec.name)
    assert (list(run.data.vocabulary), run.data.max_words) == (words["counted"], words["longest"])
    often = [" ".join(["dog"] * words["least"] + ["cat"] * (words["least"] - 1))]
    assets = encoder.prepare(often, **spec.params)
    assert assets["words"] == ["dog"]
    tokenizer = encoder.tokenizer(assets)
    assert tokenizer.ends == words["ends"]
    assert tokenizer.split('"cannot" 5:50?') == QUOTED[words["split"]]
    torch.manual_seed(0)
    small = changed(run.text, width=4, glove="")
    weight_VE = ENCODERS.build(small, {"words": [f"w{n}" for n in range(200)]}).embed.weight.detach()
    assert weight_VE.shape[1] == 300
    assert STARTS[words["start"]](weight_VE)


@pytest.mark.parametrize("name", RUNS)
def test_parts_that_papers_are_exact_about(name):
    run, setting, (model, shapes) = recipe(name)
    for module, share in setting.get("dropout", {}).items():
        assert model.get_submodule(module).p == share, module
    for parameter, shape in setting.get("shapes", {}).items():
        assert shapes[parameter] == shape, parameter
    if "logsumexp" in setting:
        pooled = AGGREGATORS.build(run.aggregator, 1)(
            torch.zeros(1, 3, 1), torch.ones(1, 3, dtype=torch.bool)
        )
        assert float(pooled.vectors) == pytest.approx(math.log(3) if setting["logsumexp"] == "sum" else 0.0)
