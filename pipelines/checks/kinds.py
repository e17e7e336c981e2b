"""Which promises a name is held to: those of its kind."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aggregators.base import Aggregator
from aggregators.contract import aggregator_checks
from encoders.backbones.base import Backbone
from encoders.base import Encoder
from infra.checks import Check
from infra.errors import InputError
from infra.registry import AGGREGATORS, KINDS, Spec
from pipelines.checks.backbones import backbone_checks
from pipelines.checks.encoders import encoder_checks
from pipelines.checks.miners import miner_checks
from pipelines.checks.optimisers import optimiser_checks
from pipelines.checks.readers import reader_checks
from pipelines.checks.scores import objective_checks, regulariser_checks, similarity_checks
from pipelines.recipe import Ensemble
from tasks.base import TaskAdapter
from tasks.datasets.reader import Reader
from tasks.models.base import RetrievalModel
from tasks.objectives.base import Objective
from tasks.objectives.miners.base import Miner
from tasks.regularisers.base import Regulariser
from tasks.run import Run, from_json, to_json
from tasks.similarities.base import Similarity

_WIDTH = 8  # of the made-up sets that an aggregator pools
_CLASSES = {
    Aggregator: "aggregator",
    Encoder: "encoder",
    Similarity: "similarity",
    Objective: "objective",
    Miner: "miner",
    Regulariser: "regulariser",
    RetrievalModel: "model",
    TaskAdapter: "task",
    torch.optim.Optimizer: "optimiser",
    Reader: "reader",
    Backbone: "backbone",
}


def kind_of_class(name: str, part: Any) -> str:
    """Return the kind of a class, by the base that it derives from.

    Raises:
        InputError: it derives from none that is known.
    """
    if inspect.isclass(part):
        for base, kind in _CLASSES.items():
            if base in part.__mro__:
                return kind
    raise InputError(
        f"{name} derives from no known base, so its kind has to be said: --kind {' or '.join(KINDS)}"
    )


def part_checks(spec: str, kind: str) -> list[Check]:
    """Return the promises of a part that is no task."""
    known: dict[str, Callable[[str], list[Check]]] = {
        "aggregator": _aggregator_checks,
        "encoder": encoder_checks,
        "similarity": similarity_checks,
        "objective": objective_checks,
        "miner": miner_checks,
        "regulariser": regulariser_checks,
        "optimiser": optimiser_checks,
        "reader": reader_checks,
        "backbone": backbone_checks,
        "recipe": _recipe_checks,
    }
    return known.get(kind, lambda spec: _loading_checks(spec, kind))(spec)


def _aggregator_checks(spec: str) -> list[Check]:
    torch.manual_seed(0)
    return aggregator_checks(AGGREGATORS.build(spec, _WIDTH), _WIDTH)


def _recipe_checks(spec: str) -> list[Check]:
    def returned() -> str:
        recipe = KINDS["recipe"].get(spec)()
        assert isinstance(recipe, Run | Ensemble), (
            f"it returned {type(recipe).__name__}, expected a Run or an Ensemble"
        )
        if isinstance(recipe, Ensemble):
            for member in recipe.members:
                KINDS["recipe"].get(member)
            return f"an ensemble of {', '.join(recipe.members)}"
        again = from_json(json.loads(json.dumps(to_json(recipe))))
        assert again == recipe, (
            "it comes back from JSON as something else; use numbers, strings and tuples of them"
        )
        for kind, part in (
            ("task", recipe.task),
            ("encoder", recipe.visual),
            ("encoder", recipe.text),
            ("aggregator", recipe.aggregator),
            ("model", recipe.model),
            ("optimiser", recipe.optim.optimiser),
        ):
            if part:
                KINDS[kind].get(Spec.parse(part).name)
        return f"{recipe.task} on {recipe.data.corpus}; `check {recipe.task} --recipe {spec}` tries it with its data"

    return [Check(what="it returns a whole run of known parts", run=returned, advice="see pipelines/recipes")]


def _loading_checks(spec: str, kind: str) -> list[Check]:
    """Return what can be said of parts that only mean something within a run."""
    parsed = Spec.parse(spec)

    def loaded() -> str:
        part = KINDS[kind].get(parsed.name)
        assert callable(part), f"it is {type(part).__name__}, expected a class or a function"
        takes = {p.name for p in inspect.signature(part).parameters.values() if p.kind == p.KEYWORD_ONLY}
        wrong = [name for name in parsed.params if name not in takes]
        assert not wrong, f"it has no parameter {', '.join(wrong)}, only {', '.join(sorted(takes)) or 'none'}"
        module = isinstance(part, type) and issubclass(part, nn.Module)
        return (
            f"a {'module' if module else 'part'} that a run uses; check the task with a recipe that names it"
        )

    return [
        Check(
            what=f"it can be loaded as a {kind}", run=loaded, advice="take parameters by keyword", vital=True
        )
    ]
