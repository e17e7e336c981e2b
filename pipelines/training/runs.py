"""Start a run, or go on with one: tracked from the first moment, trained on Ray workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infra.errors import InputError
from infra.paths import home
from infra.ray.session import Resources, ray_session
from infra.registry import TASKS
from infra.tracking import Tracker, tracking_uri
from infra.trust import trust_modules
from pipelines.training.optim import parameter_groups
from pipelines.training.ray_train import fit
from tasks.base import TaskAdapter
from tasks.run import Run, from_json, modules, to_json, to_params


def tags(run: Run) -> dict[str, str]:
    """Return the tags by which runs are found and compared."""
    return {
        "kind": "train",
        "task": run.task.partition("(")[0],
        "dataset": run.data.dataset,
        "recipe": run.recipe,
        "aggregator": run.aggregator,
        "text_aggregator": run.text_aggregator or run.aggregator,
        "model": run.model.partition("(")[0],
        "seed": str(run.seed),
        "protocol": run.protocol,
        **({"trust": ",".join(named)} if (named := modules(run)) else {}),
    }


def prepare(run: Run, **arguments: Any) -> TaskAdapter:
    """Return the adapter of a new run, of which everything has been tried that needs neither weights nor Ray.

    Args:
        run: its complete description, made by a program or read back; either way, somebody trusts what it names.
        arguments: passed on to the adapter, such as `assets` that are known already.

    Raises:
        InputError: a part or a protocol that there is not, data that does not fit, a setting that the task does not
            use, a prefix of `lr_factors` or `freeze` that no parameter has.
    """
    trust_modules(*modules(run))
    adapter: TaskAdapter = TASKS.build(run.task, run, **arguments)
    refuse_unused(run, adapter.unused)
    adapter.check_training()
    with torch.device("meta"):
        parameter_groups(adapter.model(pretrained=False), run.optim)
    return adapter


def refuse_unused(run: Run, names: Sequence[str]) -> None:
    """Refuse a run that changes what its task does not use.

    Args:
        run: the run.
        names: of settings, such as `data.sample`.

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


def start(run: Run, *, more_tags: Mapping[str, str] | None = None, callbacks: Sequence[Any] = ()) -> str:
    """Train a new run, with some tags beside the usual ones, and return its id; callbacks are those of `fit`."""
    uri = tracking_uri(home())
    adapter = prepare(run)
    name = f"{run.recipe} {run.aggregator} seed {run.seed}"
    tracker = Tracker.start(
        run.experiment,
        uri=uri,
        home=home(),
        name=name,
        tags=tags(run) | (more_tags or {}),
        params=to_params(run),
    )
    tracker.json("run.json", to_json(run))
    tracker.tags({f"data.{name}": value for name, value in adapter.describe().items()})
    return launch(run, tracker, callbacks=callbacks)


def resume(run_id: str, *, trust: Sequence[str] = (), callbacks: Sequence[Any] = ()) -> str:
    """Go on with an interrupted run and return its id.

    Args:
        run_id: of the run.
        trust: modules whose code the run may name.
        callbacks: those of `fit`.

    Raises:
        InputError: no such run, its settings are gone or damaged, or they name a module that is not trusted.
    """
    trust_modules(*trust)
    tracker = Tracker.attach(tracking_uri(home()), run_id)
    run = from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
    return launch(run, tracker, callbacks=callbacks)


def launch(run: Run, tracker: Tracker, *, callbacks: Sequence[Any] = ()) -> str:
    """Train on Ray workers under a tracked run, whose status says how that ended."""
    status = "FAILED"
    try:
        with ray_session():
            resources = Resources.plan(run.workers, cpus=run.cpus)
            fit(run, tracker=tracker, home=home(), resources=resources, callbacks=callbacks)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
    return tracker.run_id
