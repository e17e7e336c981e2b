"""Published settings of every recipe, and the recipe's model without weights.

The settings are in `published_settings.toml`; none is read from the project's code.
"""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from places import ROOT
from torch import nn

from polypool.infra.registry import ENCODERS, RECIPES, Spec
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.questions.vqa_model import vqa_model
from polypool.tasks.run import Run

FILE = tomllib.loads((ROOT / "tests/pipelines/recipes/published_settings.toml").read_text())
NAMES = [name for name in RECIPES.names() if name not in ("image_text", "video_text", "vqa")]
"""Names of the recipes for a specific data set."""
RUNS = [
    n
    for n in NAMES
    if isinstance(RECIPES.get(n)(), Run) and n not in FILE["untrained"] and n not in FILE["joint"]
]
Setting = Mapping[str, Any]


def settings() -> Iterator[tuple[str, Setting]]:
    """Yield each recipe that the file names, with its setting."""
    by_name: dict[str, Setting] = {}
    for own in FILE["setting"]:
        by_name[own["name"]] = (by_name[own["like"]] if "like" in own else {}) | own
        yield from ((recipe, by_name[own["name"]]) for recipe in own["recipes"])


SETTINGS = dict(settings())


class Made(NamedTuple):
    model: nn.Module
    shapes: dict[str, list[int]]


PARTS = ("task", "visual", "text", "model", "cross", "aggregator", "text_aggregator", "similarity", "fusion")
_MADE: dict[tuple[object, ...], Made] = {}
"""Models by their parts: recipes for several data sets share one."""


def made(run: Run) -> Made:
    """Return the recipe's model, with each parameter replaced by a single number, and the parameters' shapes."""
    parts = (*(getattr(run, part) for part in PARTS), run.objective, run.regularisers, run.protocol == "vqa")
    if parts not in _MADE:
        _MADE[parts] = _made(run)
    return _MADE[parts]


def _made(run: Run) -> Made:
    from transformers import BertConfig, CLIPTextConfig, CLIPVisionConfig, ViTConfig

    of_clip = "clip" in Spec.parse(run.visual).params.get("name", "")
    kinds = {
        "bert": {"config": BertConfig().to_dict()},
        "clip_text": {"config": CLIPTextConfig().to_dict(), "specials": {"end": 1, "pad": 1}},
        "patches": {"config": (CLIPVisionConfig() if of_clip else ViTConfig()).to_dict()},
        "stored": {"dim": 512},
        "stored_text": {"dim": 384},
        "cnn": {},
    }
    features = {"dim": 2048, "statistics": {"mean": [0.0] * 2048, "std": [1.0] * 2048}}
    visual = kinds.get(Spec.parse(run.visual).name, features)
    kinds |= dict.fromkeys(("stacked_regions", "pooled_regions"), features)
    text = kinds.get(Spec.parse(run.text).name, {"words": ["a", "dog"]})
    build = ENCODERS.build
    parts = Parts(run, visual=lambda: build(run.visual, visual), text=lambda: build(run.text, text))
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
