"""The checks of each kind of part; those of a task are in `adapters.py` and `abilities.py`."""

from __future__ import annotations

import copy
import inspect
import io
import json
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor, nn

from polypool.aggregators.contract import aggregator_checks
from polypool.encoders.adaptations import Adaptation
from polypool.encoders.backbones import Backbone, Described, build_backbone
from polypool.infra.checks import Check
from polypool.infra.errors import PLUG_IN_ERRORS, InputError
from polypool.infra.registry import ADAPTATIONS, AGGREGATORS, KINDS, READERS, Spec
from polypool.pipelines.data.ingestion import reader_verb
from polypool.pipelines.recipes.load import Ensemble
from polypool.tasks.run import Run, from_json, to_json
from polypool.testing.base import PartChecks, check
from polypool.testing.encoders import CAPTIONS, EncoderChecks
from polypool.testing.losses import (
    MinerChecks,
    ObjectiveChecks,
    RegulariserChecks,
    SimilarityChecks,
)
from polypool.testing.optimisers import OptimiserChecks

_WIDTH = 8  # of the random sets that an aggregator pools
_IMAGES = ((48, 64), (64, 48), (90, 60))  # which a backbone sees, as height and width
_FRAMES = 20


class AggregatorChecks(PartChecks):
    """The contract of aggregators."""

    registry = AGGREGATORS

    def checks(self) -> list[Check]:
        built = Check(
            what="it is built",
            run=lambda: AGGREGATORS.build(self.spec, _WIDTH) and None,
            advice="take the width first and every parameter by keyword, with a default, and have a forward",
            vital=True,
        )
        torch.manual_seed(0)
        try:
            part = AGGREGATORS.build(self.spec, _WIDTH)
        except PLUG_IN_ERRORS:  # which the check tells
            return [built]
        return [built, *aggregator_checks(part, _WIDTH)]


class BackboneChecks(PartChecks):
    """Checks of one backbone."""

    @cached_property
    def part(self) -> Backbone:
        return build_backbone(self.spec)

    @check(
        "it is built", "derive from Backbone, and take every parameter by keyword, with a default", vital=True
    )
    def _is_built(self) -> str:
        return f"reads {self.part.reads}s, dim {self.part.dim}"

    @check(
        "it describes what its features depend on",
        "return from describe what JSON can hold, with the registered name as `backbone` and parameters "
        "by their names, so that a store can be made again",
    )
    def _describes(self) -> None:
        described = self.part.describe()
        assert json.loads(json.dumps(described)) == described, (
            "it comes back from JSON as something else, as tuples do"
        )
        name = Spec.parse(self.spec).name
        assert described.get("backbone") == name, (
            f"backbone is {described.get('backbone')!r}, expected {name!r}"
        )

    @cached_property
    def _inputs(self) -> list[Any]:
        if self.part.reads == "text":
            return list(CAPTIONS[:3])
        rng = np.random.default_rng(0)
        return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _IMAGES]

    def _of(self, inputs: list[Any]) -> list[dict[str, np.ndarray]]:
        """Return vectors and columns of each input, by name; a video is `_FRAMES` of an image."""
        backbone: Any = self.part
        video = backbone.reads == "video"
        made = [backbone(iter([image] * _FRAMES)) for image in inputs] if video else backbone(inputs)
        assert len(made) == len(inputs), f"{len(made)} things came out of {len(inputs)}"
        refused = [each for each in made if isinstance(each, str)]
        assert not refused, f"it refuses an input: {refused}"
        return [
            {"vectors": x.x_ND, **x.columns} if isinstance(x, Described) else {"vectors": x} for x in made
        ]

    @check(
        "sets of the declared width, with the declared columns",
        "return float32 (N, dim) for each input; where `columns` names any, a Described whose columns "
        "are (N, C)",
        vital=True,
    )
    def _sets(self) -> str:
        widths = {"vectors": self.part.dim, **dict(self.part.columns)}
        for arrays in self._of(self._inputs):
            size = len(arrays["vectors"])
            assert size, "a set is empty"
            found = {name: x.shape for name, x in arrays.items()}
            expected = {name: (size, width) for name, width in widths.items()}
            assert found == expected, f"vectors and columns of shapes {found}, expected {expected}"
            for name, x in arrays.items():
                assert x.dtype == np.float32, f"{name} are {x.dtype}, expected float32"
                assert np.isfinite(x).all(), f"{name} are not finite"
        return ", ".join(f"{name} {width}" for name, width in widths.items())

    @check("batch mates change nothing", "describe each input from itself alone")
    def _batch_mates(self) -> None:
        for number, arrays in enumerate(self._of(self._inputs)):
            (alone,) = self._of(self._inputs[number : number + 1])
            for name, x in arrays.items():
                assert x.shape == alone[name].shape, f"{len(x)} {name} in a batch, {len(alone[name])} alone"
                off = np.abs(x - alone[name]).max() / max(1.0, np.abs(alone[name]).max())
                assert off < 1e-3, f"{name} differ by {off:.2g} of their largest"


class AdaptationChecks(PartChecks):
    """Checks of one adaptation."""

    @cached_property
    def part(self) -> Adaptation:
        return ADAPTATIONS.build(self.spec)

    @cached_property
    def _published(self) -> nn.Module:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
        )
        return BertModel(config, add_pooling_layer=False).eval()

    def _changed(self, *, moved: bool) -> nn.Module:
        """Return the changed model; if `moved`, its added weights are random."""
        model = copy.deepcopy(self._published).requires_grad_(False)
        self.part.change(model)
        if moved:
            for name, weight in model.named_parameters():
                if self.part.is_added(name):
                    nn.init.normal_(weight, std=0.1)
        return model.eval()

    @check("it is built", "take every parameter by keyword, with a default", vital=True)
    def _built(self) -> str:
        return f"of the side {' and '.join(self.part.sides)}"

    @check(
        "it adds weights and freezes all others", "let `change` add weights that `is_added` tells", vital=True
    )
    def _adds(self) -> str:
        names = [
            name for name, weight in self._changed(moved=False).named_parameters() if weight.requires_grad
        ]
        wrong = [name for name in names if not self.part.is_added(name)]
        assert not wrong, f"{wrong[0]} is trained, and no checkpoint holds it"
        return f"{len(names)} weights are trained"

    @check("a new model is the published one", "let what is added change nothing before training")
    def _begins(self) -> None:
        torch.testing.assert_close(_states(self._changed(moved=False)), _states(self._published))

    @check("every added weight gets a gradient", "use each of them in every pass")
    def _gradients(self) -> None:
        model = self._changed(moved=True)
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if weights:
            _states(model).square().sum().backward()
        without = [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()]
        assert not without, f"{without[0]} has none"

    @check("what is merged computes the same, with the published names", "undo in `merge` what `change` does")
    def _merges(self) -> None:
        model = self._changed(moved=True)
        expected = _states(model)
        self.part.merge(model)
        assert model.state_dict().keys() == self._published.state_dict().keys(), "names of weights differ"
        torch.testing.assert_close(_states(model), expected)


def _states(model: nn.Module) -> Tensor:
    return model(input_ids=torch.arange(8).view(2, 4)).last_hidden_state


class ReaderChecks(PartChecks):
    """Checks of one reader, without its files."""

    @check(
        "it is a dataclass that can read",
        "decorate it with @dataclass(frozen=True, kw_only=True), and define read",
        vital=True,
    )
    def _is_record(self) -> str:
        kind = READERS.get(self.spec)
        assert "__dataclass_fields__" in vars(kind), "it is not decorated as a dataclass"
        missing = getattr(kind, "__abstractmethods__", ())
        assert not missing, f"it has no {', '.join(sorted(missing))}"
        return kind.__qualname__

    @check(
        "its fields are options of `ingest`, each with its help",
        "annotate fields with types that a command line has, and describe each in a string below it",
    )
    def _has_options(self) -> str:
        printed = io.StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed), suppress(SystemExit):
                tyro.cli(reader_verb(self.spec), prog=f"ingest {self.spec}", args=["--help"])
        except InputError:
            raise
        except Exception as error:  # tyro has several for annotations that it cannot read
            raise AssertionError(f"its options cannot be read: {error}") from error
        options = [field.name for field in fields(READERS.get(self.spec)) if field.init]
        lacking = [name for name in options if f"--{name.replace('_', '-')}" not in printed.getvalue()]
        assert not lacking, f"no options are made of {', '.join(lacking)}"
        return f"{', '.join(options) or 'none'}; `polypool ingest {self.spec} --help`"


class RecipeChecks(PartChecks):
    """Checks of one recipe."""

    @check("it returns a whole run of known parts", "see pipelines/recipes")
    def _returned(self) -> str:
        recipe = KINDS["recipe"].get(self.spec)()
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
                KINDS[kind].part(part)
        return f"{recipe.task} on {recipe.data.corpus}; `check {recipe.task} --recipe {self.spec}` tries its data"


class LoadingChecks(PartChecks):
    """The check of a part that cannot be tried outside a run."""

    def __init__(self, spec: str, kind: str) -> None:
        super().__init__(spec)
        self.kind = kind

    @check("it can be loaded, with these parameters", "take parameters by keyword", vital=True)
    def _loaded(self) -> str:
        parsed = Spec.parse(self.spec)
        part = KINDS[self.kind].get(parsed.name)
        assert callable(part), f"it is {type(part).__name__}, expected a class or a function"
        takes = {p.name for p in inspect.signature(part).parameters.values() if p.kind == p.KEYWORD_ONLY}
        wrong = [name for name in parsed.params if name not in takes]
        assert not wrong, f"it has no parameter {', '.join(wrong)}, only {', '.join(sorted(takes)) or 'none'}"
        module = isinstance(part, type) and issubclass(part, nn.Module)
        return (
            f"a {'module' if module else 'part'} that a run uses; check the task with a recipe that names it"
        )


_CHECKS: dict[str, type[PartChecks]] = {
    "adaptation": AdaptationChecks,
    "aggregator": AggregatorChecks,
    "backbone": BackboneChecks,
    "encoder": EncoderChecks,
    "miner": MinerChecks,
    "objective": ObjectiveChecks,
    "optimiser": OptimiserChecks,
    "reader": ReaderChecks,
    "recipe": RecipeChecks,
    "regulariser": RegulariserChecks,
    "similarity": SimilarityChecks,
}


def checks_of(spec: str, kind: str) -> list[Check]:
    """Return the checks of a part that is not a task."""
    return _CHECKS[kind](spec).checks() if kind in _CHECKS else LoadingChecks(spec, kind).checks()
