"""A whole sweep and its MLflow run: the plan, how each trial ended, and the best by validation.

The runs that a sweep starts are its children. A run that existed before keeps its parent, if any.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polypool.infra.text_tables import ABSENT
from polypool.infra.tracking import NOTE, NOTE_LENGTH, PARENT, RunRecord, Tracker
from polypool.pipelines.training.record import at_work
from polypool.pipelines.training.sweep.execution import Outcome, alone, carry_out
from polypool.pipelines.training.sweep.plan import Plan
from polypool.pipelines.training.sweep.trials import Trials, records_of
from polypool.tasks.run import WITHOUT_EFFECT, to_json

KIND = "sweep"
"""The tag `kind` of such a run."""
PLAN = "sweep_plan"
"""Its tag with the hash of the plan, which is equal for the same trials in any order."""
TRIALS = "trials.json"
"""Its artifact with a row for each trial."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial at the end of a sweep.

    Attributes:
        name: of the trial.
        how: it ended, such as `trained` or `failed`.
        run_id: its run; empty where there is none.
        metric: chooses its best epoch.
        best: value of that metric on `val`; None where no epoch was scored.
        parent: the run that its run belongs to; empty for none.
    """

    name: str
    how: str
    run_id: str
    metric: str
    best: float | None
    parent: str

    @property
    def whole(self) -> bool:
        """Whether it was trained to the end, now or before."""
        return self.how in ("trained", "finished before")


def sweep(
    trials: Trials,
    *,
    uri: str,
    home: Path,
    experiment: str,
    early_stop: bool = False,
    concurrent: int = 0,
    params: Mapping[str, Any],
) -> tuple[Plan, list[Outcome]]:
    """Train what is missing of a grid, recorded as a run of its own.

    Args:
        trials: the grid.
        uri: the tracking store.
        home: the project's.
        experiment: of the runs.
        early_stop: whether to stop poor trials early.
        concurrent: trials at once; 0 for as many as fit.
        params: options of the sweep, for its run.

    Raises:
        InputError: another sweep of the experiment is at work, or the store does not answer.
    """
    with alone(home, experiment):
        records = records_of(uri, experiment)
        plan = Plan.of(trials, records, uri=uri, home=home, experiment=experiment, early_stop=early_stop)
        print("".join(f"{line}\n" for line in plan.notes()), end="")
        parent = open_parent(plan, records, params=params, to_do=bool(plan.to_do))
        if parent is None:
            return plan, carry_out(plan, concurrent=concurrent)
        with at_work(parent):
            outcomes = carry_out(plan, concurrent=concurrent, parent=parent.run_id)
        conclude(parent, plan, outcomes)
    return plan, outcomes


def plan_id(plan: Plan, *, params: Mapping[str, Any]) -> str:
    """Return the hash of a plan's trials, and of what a tuned sweep does with them."""
    trials = sorted(
        json.dumps({name: x for name, x in to_json(match.trial.run).items() if name not in WITHOUT_EFFECT})
        for match in plan.matches
    )
    tuned = [str(params[name]) for name in ("budget", "sample", "seeds") if params.get("choose")]
    return hashlib.sha256(json.dumps([trials, plan.early_stop, *tuned]).encode()).hexdigest()


def open_parent(
    plan: Plan, records: Sequence[RunRecord], *, params: Mapping[str, Any], to_do: bool
) -> Tracker | None:
    """Return the run of a plan: that of an earlier start, or a new one.

    Args:
        plan: of the sweep.
        records: of the experiment, latest first.
        params: options of the sweep.
        to_do: whether anything is to be trained.

    Returns:
        None where nothing is to be trained, and no earlier start of this plan is unfinished.

    Raises:
        InputError: the store does not answer.
    """
    named = plan_id(plan, params=params)
    same = [of for of in records if of.tags.get("kind") == KIND and of.tags.get(PLAN) == named]
    if same and (to_do or same[0].status != "FINISHED"):
        return Tracker.attach(plan.uri, same[0].run_id)
    if not to_do:
        return None
    runs = [match.trial.run for match in plan.matches]
    shared = {
        "task": [run.task_name for run in runs],
        "dataset": [run.data.dataset for run in runs],
        "recipe": [run.recipe for run in runs],
    }
    tags = {name: ", ".join(dict.fromkeys(of)) for name, of in shared.items()}
    return Tracker.start(
        plan.experiment,
        uri=plan.uri,
        home=plan.home,
        name=f"{'tuned ' * bool(params.get('choose'))}sweep of {tags['recipe']}, {len(runs)} trials",
        tags=tags | {"kind": KIND, PLAN: named, NOTE: plan.summary()},
        params={**params, "trials": len(runs)},
    )


def conclude(tracker: Tracker, plan: Plan, outcomes: Sequence[Outcome], *, first: str = "") -> None:
    """Record how every trial ended and which is best; the sweep fails where a trial did.

    Args:
        tracker: of the sweep's run.
        plan: all trials.
        outcomes: of those that were trained.
        first: Markdown that its description begins with.

    Raises:
        InputError: the store does not answer.
    """
    rows = rows_of(plan, outcomes)
    tracker.table(TRIALS, {name: [vars(row)[name] for row in rows] for name in vars(rows[0])})
    best = best_of(plan, rows)
    scores = {f"best/{recipe}/{row.metric}": row.best for recipe, row in best.items() if row.best is not None}
    tracker.log(scores, step=0)
    named = {f"best.{recipe}": row.run_id for recipe, row in best.items()}
    tracker.tags(named | {NOTE: description(rows, best, own=tracker.run_id, first=first)})
    if any(outcome.how == "failed" for outcome in outcomes):
        tracker.finish("FAILED")


def rows_of(plan: Plan, outcomes: Sequence[Outcome]) -> list[Row]:
    """Return how each trial of a plan ended."""
    records = {record.run_id: record for record in records_of(plan.uri, plan.experiment)}
    ends = {match.trial: (f"{match.state} before", match.run_id) for match in plan.matches}
    for end in outcomes:
        how = f"stopped {end.detail}" if end.how == "stopped" else end.how
        ends[end.match.trial] = how, end.match.run_id
    rows = []
    for trial, (how, run_id) in ends.items():
        metric, record = plan.metrics[trial.run.recipe].name, records.get(run_id)
        best = record.metrics.get(f"dev/best_{metric}") if record else None
        parent = record.tags.get(PARENT, "") if record else ""
        rows.append(Row(name=trial.name, how=how, run_id=run_id, metric=metric, best=best, parent=parent))
    return rows


def best_of(plan: Plan, rows: Sequence[Row]) -> dict[str, Row]:
    """Return the best trial of each recipe among those that were trained to the end and score the test split."""
    best: dict[str, Row] = {}
    for match, row in zip(plan.matches, rows, strict=True):
        recipe, counts = match.trial.run.recipe, row.whole and match.trial.run.test
        than = best[recipe].best if recipe in best else None
        if counts and row.best is not None and plan.metrics[recipe].better(row.best, than):
            best[recipe] = row
    return best


def description(rows: Sequence[Row], best: Mapping[str, Row], *, own: str, first: str = "") -> str:
    """Return a sweep in Markdown: the best trial of each recipe, and as many trials as fit.

    Args:
        rows: all trials.
        best: by recipe.
        own: the id of the sweep's run.
        first: Markdown that it begins with.
    """
    lines = [*first.splitlines(), ""] if first else []
    lines += [
        f"Best of {recipe} on `val`: {row.name}, {row.metric} {row.best:.4g}, run {row.run_id}."
        for recipe, row in best.items()
    ]
    lines += ["", "| trial | on `val` | | run |", "|---|---:|---|---|"]
    for number, row in enumerate(rows):
        score = ABSENT if row.best is None else f"{row.metric} {row.best:.4g}"
        where = f"{row.run_id}{'' if row.parent == own or not row.run_id else ' (not begun here)'}"
        line = f"| {row.name} | {score} | {row.how} | {where} |"
        if sum(map(len, lines)) + len(lines) + len(line) > NOTE_LENGTH:
            return "\n".join([*lines, "", f"and {len(rows) - number} more, which `{TRIALS}` lists."])
        lines.append(line)
    return "\n".join(lines)
