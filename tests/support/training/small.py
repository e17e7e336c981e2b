"""Small versions of the recipes' parts, and the files that recipes name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from polypool.encoders.visual.cnn import NETWORKS
from polypool.encoders.visual.resnet import ResNet
from polypool.infra.registry import AGGREGATORS, CROSS_ENCODERS, ENCODERS, MODELS, RECIPES, Spec
from polypool.pipelines.recipes.load import Ensemble
from polypool.tasks.run import Run, specs

CNNS = {
    "original_updown_backbone.pth": "resnet101_caffe",
    "ig_resnext101_32x8-c38310e5.pth": "resnext101_32x8d",
    "resnet152-b121ed2d.pth": "resnet152",
}
"""Networks by weight file."""
SMALL = {"width": 16, "embedding": 8, "min_count": 1, "size": 32, "heads": 2, "head_width": 4}
PARTS = {"visual": ENCODERS, "text": ENCODERS, "model": MODELS, "cross": CROSS_ENCODERS}
PARTS |= {"aggregator": AGGREGATORS, "text_aggregator": AGGREGATORS}


@contextmanager
def shallow_networks() -> Iterator[None]:
    """Reduce the published CNNs to one block per stage."""
    with pytest.MonkeyPatch.context() as patch:
        for name, parameters in NETWORKS.items():
            patch.setitem(NETWORKS, name, parameters | {"depths": (1, 1, 1, 1)})
        yield


def write_weights(folder: Path) -> None:
    """Write random weights of the published CNNs, at their current depth, to the files that recipes name."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in CNNS.items():
        torch.save(ResNet(**NETWORKS[name]).state_dict(), folder / file)


def write_named(home: Path) -> None:
    """Write the files that recipes name: word vectors, role graphs and weights."""
    write_weights(home / "data/weights")
    recipes = [RECIPES.get(name)() for name in RECIPES.names()]
    named = {spec for run in recipes if not isinstance(run, Ensemble) for _, spec in specs(run)}
    for name in {path for spec in named for path in re.findall(r"'(data/[^']+)'", spec)}:
        (path := home / name).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text(f"dog{' 0.5' * SMALL['embedding']}\n")
        elif path.suffix == ".json":
            path.write_text(json.dumps({"a dog and a cat": [{"1": {"role": "V", "spans": [1]}}, []]}))


def small_parts(run: Run, models: Mapping[str, str], sizes: Mapping[str, int] = SMALL) -> dict[str, str]:
    """Return a run's parts with the given sizes; `models` has folders by name of a published model or encoder."""
    return {part: _small(part, getattr(run, part), models, sizes) for part in PARTS}


def _small(part: str, text: str, models: Mapping[str, str], small: Mapping[str, int]) -> str:
    if not text:
        return text
    spec, registry = Spec.parse(text), PARTS[part]
    known = inspect.signature(registry.get(spec.name)).parameters.values()
    sizes = [p.name for p in known if p.kind == p.KEYWORD_ONLY and not isinstance(p.default, bool)]
    given = {name: small[name] for name in sizes if name in small}
    if isinstance(spec.params.get("positions"), tuple):
        given["positions"] = (1, 1)  # the grid of 32 pixels
    if registry is AGGREGATORS and "width" not in spec.params:
        given.pop("width", None)  # an aggregator takes the width of its elements
    defaults = {p.name: p.default for p in known} | spec.params
    if "width" in given and defaults["width"] is None:
        given.pop("width")  # the width comes from the model
    if spec.name in models:
        given["name"] = models.get(spec.params.get("name", ""), models[spec.name])
    return str(Spec(spec.name, spec.params | given))
