"""Checks of a new run before it starts: all that needs neither weights nor Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from polypool.encoders.encoder import recompute
from polypool.infra.compute.unfilled import Unfilled
from polypool.infra.errors import InputError
from polypool.infra.files import read_json
from polypool.infra.paths import home
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.training.checkpoints.best import ASSETS, weights_of
from polypool.pipelines.training.checkpoints.format import fill_weights
from polypool.pipelines.training.loop.optim import make_optimizer
from polypool.tasks.abilities import Chunked
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.automatic import refuse_incomplete
from polypool.tasks.run import Run, modules


def prepare(run: Run, **arguments: Any) -> TaskAdapter:
    """Return the adapter of a new run after all checks.

    Args:
        run: its complete description, from a trusted source: the modules that it names become trusted.
        arguments: passed on to the adapter, such as `assets` that are known already.

    Raises:
        InputError: an unknown part or protocol, unsuitable data, a setting that the task does not use, or a prefix of
            `lr_factors` or `freeze` that no parameter has.
    """
    if run.jointly:
        raise InputError(
            f"this {run.task} was trained together with others, by {run.jointly!r}; train that joint run, "
            f"{run.recipe}, or a recipe of its task by itself (`polypool train --list`)"
        )
    refuse_incomplete(run)
    trust_modules(*modules(run))
    adapter: TaskAdapter = TASKS.build(run.task, run, **arguments)
    refuse_unused(run, adapter.unused)
    adapter.check_training()
    with Unfilled():
        model = adapter.model(pretrained=False)
        _check_chunks(adapter, model, chunk=run.optim.chunk)
        make_optimizer(model, run.optim)
        if run.optim.recompute:
            recompute(model)
        if run.init:
            _print_init(run, adapter, model)
    return adapter


def _print_init(run: Run, adapter: TaskAdapter, model: nn.Module) -> None:
    """Print which weights a new run takes from another one, and which start anew.

    Raises:
        InputError: there is no such run, or no weight of it fits.
    """
    weights = weights_of(run.init, tracking_uri(home()))
    taken, left = fill_weights(model, weights)
    anew = f"; anew begin {', '.join(left)}" if left else ""
    print(f"init: {len(taken)} of {len(taken) + len(left)} weights are those of run {run.init}{anew}")
    assets = read_json(weights.with_name(ASSETS), what="the assets of a model")
    if other := [name for name, value in adapter.assets.items() if name in assets and assets[name] != value]:
        which = ", ".join(name.replace("_", " ") for name in other)
        print(
            f"note: that run was made from other data, words or features ({which}), so that rows of its embeddings may "
            "stand for others here"
        )


def refuse_unused(run: Run, names: Sequence[str]) -> None:
    """Refuse a run that changes settings which its task does not use, such as `data.sample`.

    Raises:
        InputError: one of them has another value than its default.
    """
    for name in names:
        part, _, inside = name.rpartition(".")
        of = getattr(run, part) if part else run
        (default,) = (field.default for field in dataclasses.fields(of) if field.name == inside)
        if (value := getattr(of, inside)) != default:
            flag = name.replace("_", "-")
            raise InputError(
                f"the task {run.task!r} does not use --{flag} {value!r}; leave it out, which means {default!r}"
            )


def _check_chunks(adapter: TaskAdapter, model: nn.Module, *, chunk: int) -> None:
    """Refuse chunks for a task without them, or where they change the gradient.

    Args:
        adapter: of the task.
        model: that will be trained; it is left in training mode.
        chunk: samples that pass at once; 0 for all of them.

    Raises:
        InputError: the task has no `passes`, or the model normalises by statistics of the batch.
    """
    if not chunk:
        return
    if not isinstance(adapter, Chunked):
        raise InputError(
            f"--optim.chunk {chunk}: {type(adapter).__name__} has no `passes` that cut its batches into chunks (see "
            "polypool.tasks.abilities.Chunked); leave it out"
        )
    model.train()
    names = [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        raise InputError(
            f"--optim.chunk {chunk}: {', '.join(names)} normalise by statistics of the batch, and would by those of a "
            "chunk; leave it out, or choose parts without batch normalisation, such as --visual grid"
        )
