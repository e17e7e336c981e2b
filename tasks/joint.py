"""Joint training of several tasks: batches drawn by weight, shared modules, and separate evaluation of every task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.tracking import Source
from polypool.tasks.abilities import Chunked, CollapseCheck, CountsWords, PartialLoss
from polypool.tasks.adapter import Evaluation, Member, Metric, TaskAdapter
from polypool.tasks.inputs.joint_batches import MEMBER, JointData
from polypool.tasks.run import Run, member_runs


class JointModel(nn.Module):
    """One model per task; shared modules are trained by all tasks.

    Args:
        members: a model for each task, by its name.
        share: paths of modules, such as `text` or `visual.aggregator`. All models with a module at a path use the first
            one's; other models are not affected.

    Raises:
        InputError: fewer than two models have such a module, or the modules differ.
    """

    def __init__(self, members: Mapping[str, nn.Module], share: Sequence[str]) -> None:
        super().__init__()
        for path in share:
            _share(members, path)
        self.members = nn.ModuleDict(members)

    def forward(self, batch: Batch, *, member: str, **optional: Any) -> Any:
        return self.members[member](batch, **optional)


def _share(members: Mapping[str, nn.Module], path: str) -> None:
    parent, _, last = path.rpartition(".")
    having = {name: model for name, model in members.items() if path in dict(model.named_modules())}
    if len(having) < 2:
        parts = ", ".join(sorted(_common(members))) or "none: no two models have a module in common"
        raise InputError(
            f"{path!r} cannot be shared: only {' and '.join(having) or 'no task'} has it; remove it from `share`, or "
            f"choose among {parts}"
        )
    (first, model), *others = having.items()
    shared = model.get_submodule(path)
    for name, other in others:
        if differing := _difference(shared, other.get_submodule(path)):
            raise InputError(
                f"{path!r} cannot be shared: it differs between {first} and {name}: {differing}; give both the same "
                "settings, or remove it from `share`"
            )
        setattr(other.get_submodule(parent), last, shared)


def _common(members: Mapping[str, nn.Module]) -> set[str]:
    """Return the paths, at most two levels deep, of modules that two or more models have."""
    paths = [{p for p, _ in model.named_modules() if p and p.count(".") < 2} for model in members.values()]
    return {path for own in paths for path in own if sum(path in of for of in paths) > 1}


def _difference(one: nn.Module, other: nn.Module) -> str:
    """Return the difference of two modules as text; empty if they match."""
    if type(one) is not type(other):
        return f"one is {type(one).__name__}, the other {type(other).__name__}"
    shapes = [{name: tuple(x.shape) for name, x in each.state_dict().items()} for each in (one, other)]
    for name in sorted({*shapes[0]} | {*shapes[1]}):
        first, second = (of.get(name, "missing") for of in shapes)
        if first != second:
            return f"{name} is {first} and {second}"
    return ""


PROTOCOL = "joint"
# The mean over tasks of their primary metrics, each scaled to 0 for chance and 100 for the best possible value.
MEAN = Metric(name="mean", best=100.0, chance=0.0, unit="%")
# The setting of a run that determines the module at a path.
_OF_ENCODER = {"text": "text", "text.encoder": "text", "visual": "visual", "visual.encoder": "visual"}


@TASKS.register("joint")
class Joint(TaskAdapter, Chunked, CollapseCheck):
    """The tasks of `run.members`, each with separate data, head, objective and protocol.

    A batch is from one task, drawn by weight. The joint run's settings apply to all tasks (see
    `tasks.run.member_runs`), and each step updates only weights that its task uses. The epoch with the best mean of the
    tasks' primary metrics, each normalised between chance and the best possible value, is kept.

    Args:
        run: its complete description, with a run for each task.
        assets: of a checkpoint, by task; computed from the tasks' data if None.
        share: comma-separated paths of modules shared by all models that have them. A shared text encoder has the words
            of all its tasks.
        weights: sampling weight of each task, by name.

    Raises:
        InputError: fewer than two tasks, a task without a weight or a weight without a task, a weight that is not above
            0, a protocol other than `joint`, or encoders that cannot be shared.
    """

    primary = MEAN
    dev_protocol = PROTOCOL
    unused = (
        *("text", "adapt", "model", "cross", "similarity", "fusion", "objective", "regularisers"),
        *("data.features", "data.extractor", "data.texts", "data.missing", "data.captions"),
        *("data.visual_augment", "data.max_frames", "data.max_words", "data.sample", "data.text_augment"),
        "data.vocabulary",
    )
    uses_all_weights = False

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        share: str = "text, visual.aggregator",
        **weights: float,
    ) -> None:
        self.runs = runs = member_runs(run)
        if len(runs) < 2 or {*weights} != {*runs}:
            raise InputError(
                f"joint trains two tasks or more, each with a weight: the run has {', '.join(runs) or 'none'}, and the "
                f"task's spec weights of {', '.join(weights) or 'none'}; a recipe such as mini_dinov2_joint shows both"
            )
        if wrong := [f"{name}={weight:g}" for name, weight in weights.items() if not weight > 0]:
            raise InputError(f"weights are above 0, not {', '.join(wrong)}; remove the task instead")
        _check_protocol(run.protocol)
        self.run, self.weights = run, weights
        self.share = [path for path in (part.strip() for part in share.split(",")) if path]
        self._check_shared(runs)
        self.adapters: dict[str, TaskAdapter] = {
            name: TASKS.build(of.task, of, assets=None if assets is None else assets[name])
            for name, of in runs.items()
        }
        if assets is None:
            self._share_words()
        self.assets = {name: adapter.assets for name, adapter in self.adapters.items()}

    def _check_shared(self, runs: Mapping[str, Run]) -> None:
        """Check that the tasks' settings describe shared encoders equally."""
        for path in self.share:
            setting = _OF_ENCODER.get(path)
            specs = {getattr(of, setting) for of in runs.values()} if setting else set()
            if len(specs) > 1:
                raise InputError(
                    f"{path!r} cannot be shared: the tasks have {', '.join(sorted(specs))}; give all the same "
                    f"--{setting}, or remove it from `share`"
                )

    def _share_words(self) -> None:
        """Build the assets of a shared text encoder from the words of all tasks that support it."""
        if not {"text", "text.encoder"} & {*self.share}:
            return
        counting = {name: of for name, of in self.adapters.items() if isinstance(of, CountsWords)}
        texts = [*chain.from_iterable(adapter.counted_texts() for adapter in counting.values())]
        for name, adapter in counting.items():
            run = self.runs[name]
            self.adapters[name] = TASKS.build(run.task, run, assets=adapter.assets_for(texts))

    def describe(self) -> Mapping[str, str]:
        return {
            f"{name}.{key}": value
            for name, adapter in self.adapters.items()
            for key, value in adapter.describe().items()
        }

    def sources(self) -> list[Source]:
        found = {(of.name, of.digest): of for adapter in self.adapters.values() for of in adapter.sources()}
        return [*found.values()]

    def data(self, split: str) -> JointData:
        return JointData({name: of.data(split) for name, of in self.adapters.items()}, self.weights)

    def check_training(self) -> None:
        for name, adapter in self.adapters.items():
            try:
                adapter.check_training()
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
            if self.run.optim.chunk and not isinstance(adapter, Chunked):
                raise InputError(
                    f"--optim.chunk {self.run.optim.chunk}: {name} has no `passes` that cut its batches into chunks "
                    "(see polypool.tasks.abilities.Chunked); leave it out"
                )

    def model(self, *, pretrained: bool = True) -> JointModel:
        models = {name: of.model(pretrained=pretrained) for name, of in self.adapters.items()}
        return JointModel(models, self.share)

    def loss(self, model: JointModel, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        name, own = self._drawn(batch)
        return _named(name, self.adapters[name].loss(partial(model, member=name), own, epoch=epoch))

    def _drawn(self, batch: Batch) -> tuple[str, Batch]:
        name = [*self.adapters][int(batch[MEMBER][0])]
        return name, {key: part for key, part in batch.items() if key != MEMBER}

    def passes(self, model: JointModel, batch: Batch, *, epoch: float, chunk: int) -> Iterator[PartialLoss]:
        name, own = self._drawn(batch)
        adapter = self.adapters[name]
        assert isinstance(adapter, Chunked), "check_training rejects others"
        for each in adapter.passes(model.members[name], own, epoch=epoch, chunk=chunk):
            yield PartialLoss(loss=each.loss, terms=_named(name, each.terms) if each.terms else {})

    def collapse(self, model: JointModel, means: Mapping[str, float], *, first: Mapping[str, float]) -> str:
        """Return the collapse of the first collapsed task among those trained in these steps."""
        for name, adapter in self.adapters.items():
            own, begun = (_of_task(name, values) for values in (means, first))
            if own and isinstance(adapter, CollapseCheck):
                found = adapter.collapse(model.members[name], own, first=begun)
                if found:
                    return f"{name}: {found}"
        return ""

    def check_protocol(self, protocol: str, split: str) -> None:
        _check_protocol(protocol)
        for name, adapter in self.adapters.items():
            adapter.check_protocol(self._protocol(name, split), split)

    def _protocol(self, name: str, split: str) -> str:
        return self.adapters[name].dev_protocol if split == "val" else self.runs[name].protocol

    @torch.no_grad()
    def evaluate(self, model: JointModel, split: str, protocol: str) -> Evaluation:
        """Score a split of every task under the task's protocol.

        Raises:
            InputError: raised by a task, or a task whose primary metric has no known chance level or best value.
        """
        _check_protocol(protocol)
        members = {
            name: adapter.evaluate(model.members[name], split, self._protocol(name, split))
            for name, adapter in self.adapters.items()
        }
        shares = []
        for name, evaluation in members.items():
            metric = evaluation.primary
            share = metric.chance_normalised(evaluation.metrics.get(metric.name, float("nan")))
            if not -float("inf") < share < float("inf"):
                raise InputError(
                    f"{name}: {metric.name} cannot be normalised for the mean over tasks: best value {metric.best}, "
                    f"chance level {metric.chance}; both must be known, and the split needs answers"
                )
            shares.append(share)
        named = {
            f"{name}/{metric.name}": of.metrics[metric.name]
            for name, of in members.items()
            for metric in (of.primary, *of.others)
            if metric.in_tables and metric.name in of.metrics
        }
        return Evaluation(
            protocol=PROTOCOL,
            metrics={MEAN.name: sum(shares) / len(shares)} | named,
            primary=MEAN,
            others=tuple(
                replace(of.primary, name=f"{name}/{of.primary.name}") for name, of in members.items()
            ),
            members=members,
        )

    def members(self, model: JointModel) -> dict[str, Member]:
        return {
            name: Member(run=run, adapter=self.adapters[name], model=model.members[name])
            for name, run in self.runs.items()
        }


def _named(name: str, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a task's terms under the names of a joint run's log."""
    return {"loss": terms["loss"]} | {f"{name}/{key}": value for key, value in terms.items()}


def _of_task(name: str, logged: Mapping[str, float]) -> dict[str, float]:
    """Return a task's terms from a joint run's log, under the task's names."""
    return {
        key.removeprefix(f"{name}/"): value for key, value in logged.items() if key.startswith(f"{name}/")
    }


def _check_protocol(protocol: str) -> None:
    if protocol != PROTOCOL:
        raise InputError(
            f"joint runs are scored under the protocol {PROTOCOL!r}, each task under its own protocol, not under "
            f"{protocol!r}"
        )
