"""The run that stands for a whole sweep in MLflow: its plan, how each trial ended, and the best by validation.

The runs that the sweep begins are its children, which the UI folds under it. A run that was there before keeps the
parent that it had, if any, and is noted here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.tracking import RunRecord, Tracker
from infra.tracking.tracker import NOTE, PARENT
from pipelines.sweeping.execution import Place, Result, carry_out
from pipelines.sweeping.matching import records_of
from pipelines.sweeping.plan import Plan
from pipelines.sweeping.trials import Trials
from tasks.base import Metric
from tasks.run import WITHOUT_EFFECT, to_json

KIND = "sweep"
"""The tag `kind` of such a run, which is no result and no training."""
PLAN = "sweep_plan"
"""Its tag that names the plan: equal for the same trials, however often and by whichever command they are asked for."""
TRIALS = "trials.json"
"""Its artifact that lists all trials."""
_LONGEST = 5000  # characters of a description, which older stores cut


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial when the sweep ended.

    Attributes:
        name: what people call it.
        how: it ended, such as `trained` or `failed`.
        run_id: its run; empty where there is none.
        metric: what chooses its best epoch.
        best: that metric's best value on `val`; None where no epoch was scored.
        parent: the run that its run belongs to, empty for none.
    """

    name: str
    how: str
    run_id: str
    metric: str
    best: float | None
    parent: str


def plan_id(plan: Plan) -> str:
    """Return what names a plan."""
    trials = sorted(
        json.dumps({name: x for name, x in to_json(match.trial.run).items() if name not in WITHOUT_EFFECT})
        for match in plan.matches
    )
    return hashlib.sha256(json.dumps([trials, plan.early_stop]).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The run of a sweep that is at work."""

    tracker: Tracker
    trials: Trials
    plan: Plan
    place: Place

    @classmethod
    def open(
        cls,
        plan: Plan,
        trials: Trials,
        place: Place,
        records: Sequence[RunRecord],
        *,
        params: Mapping[str, Any],
    ) -> Parent | None:
        """Return the run of a plan: that of an earlier start of it, or a new one.

        Args:
            plan: what is to be done.
            trials: all trials.
            place: where they are recorded.
            records: of the experiment, latest first.
            params: what the sweep was asked for.

        Returns:
            None where nothing is to be trained, and no start of this plan is to be brought to its end.

        Raises:
            InputError: the store does not answer.
        """
        named = plan_id(plan)
        same = [of for of in records if of.tags.get("kind") == KIND and of.tags.get(PLAN) == named]
        if same and (plan.to_do or same[0].status != "FINISHED"):
            tracker = Tracker.attach(place.uri, same[0].run_id)
        elif plan.to_do:
            tracker = cls._begin(plan, named, place, params)
        else:
            return None
        return cls(tracker=tracker, trials=trials, plan=plan, place=place)

    @staticmethod
    def _begin(plan: Plan, named: str, place: Place, params: Mapping[str, Any]) -> Tracker:
        runs = [match.trial.run for match in plan.matches]
        shared = {
            "task": [run.task.partition("(")[0] for run in runs],
            "dataset": [run.data.dataset for run in runs],
            "recipe": [run.recipe for run in runs],
        }
        recipes = ", ".join(dict.fromkeys(shared["recipe"]))
        return Tracker.start(
            place.experiment,
            uri=place.uri,
            home=place.home,
            name=f"sweep of {recipes}, {len(runs)} trials",
            tags={name: ", ".join(dict.fromkeys(of)) for name, of in shared.items()}
            | {"kind": KIND, PLAN: named, NOTE: plan.summary()},
            params=params | {"trials": len(runs)},
        )

    def conclude(self, result: Result) -> None:
        """Note how every trial ended and which is best, and end as failed where one did.

        Raises:
            InputError: the store does not answer.
        """
        records = {record.run_id: record for record in records_of(self.place.uri, self.place.experiment)}
        ended = self._ended(result, records)
        self.tracker.table(TRIALS, {name: [vars(of)[name] for of in ended] for name in vars(ended[0])})
        best = self._best(ended)
        self.tracker.log({f"best/{recipe}/{of.metric}": of.best for recipe, of in best.items()}, step=0)
        self.tracker.tags(
            {f"best.{recipe}": of.run_id for recipe, of in best.items()}
            | {NOTE: words(ended, best, own=self.tracker.run_id)}
        )
        if result.failed:
            self.tracker.finish("FAILED")

    def _ended(self, result: Result, records: Mapping[str, RunRecord]) -> list[Ended]:
        how = {match.trial: (f"{match.state} before", match.run_id) for match in self.plan.matches}
        how |= {match.trial: ("trained", match.run_id) for match in result.trained}
        how |= {match.trial: (f"stopped {when}", match.run_id) for match, when in result.stopped}
        how |= {match.trial: ("failed", match.run_id) for match, _ in result.failed}
        ended = []
        for trial, (state, run_id) in how.items():
            metric, record = self.trials.metrics[trial.run.recipe].name, records.get(run_id)
            ended.append(
                Ended(
                    name=trial.name,
                    how=state,
                    run_id=run_id,
                    metric=metric,
                    best=record.metrics.get(f"dev/best_{metric}") if record else None,
                    parent=record.tags.get(PARENT, "") if record else "",
                )
            )
        return ended

    def _best(self, ended: Sequence[Ended]) -> dict[str, Ended]:
        """Return the best trial of each recipe, of those that were trained to the end."""
        best: dict[str, Ended] = {}
        for match, of in zip(self.plan.matches, ended, strict=True):
            recipe, done = match.trial.run.recipe, of.how in ("trained", "finished before")
            than = best[recipe].best if recipe in best else None
            if done and of.best is not None and self.trials.metrics[recipe].better(of.best, than):
                best[recipe] = of
        return best


def carried_out(
    plan: Plan,
    place: Place,
    parent: Parent | None,
    *,
    concurrent: int = 0,
    metrics: dict[str, Metric] | None = None,
) -> Result:
    """Carry a plan out, as `pipelines.sweeping.execution.carry_out` does, under the run that stands for it, if any."""
    if parent is None:
        return carry_out(plan, place, concurrent=concurrent, metrics=metrics)
    with parent.tracker.ending():
        result = carry_out(plan, place, concurrent=concurrent, metrics=metrics, parent=parent.tracker.run_id)
    parent.conclude(result)
    return result


def words(ended: Sequence[Ended], best: Mapping[str, Ended], *, own: str) -> str:
    """Return the description of a sweep: the best trials, and all of them as long as there is room.

    Args:
        ended: all trials.
        best: those of each recipe.
        own: the id of the sweep's run.
    """
    lines = [
        f"Best of {recipe} on `val`: {of.name}, {of.metric} {of.best:.4g}, run {of.run_id}."
        for recipe, of in best.items()
    ]
    lines += ["", "| trial | on `val` | | run |", "|---|---:|---|---|"]
    for number, of in enumerate(ended):
        score = "\u2013" if of.best is None else f"{of.metric} {of.best:.4g}"
        where = f"{of.run_id}{'' if of.parent == own or not of.run_id else ' (not begun here)'}"
        row = f"| {of.name} | {score} | {of.how} | {where} |"
        if sum(map(len, lines)) + len(lines) + len(row) > _LONGEST:
            return "\n".join([*lines, "", f"and {len(ended) - number} more, which `{TRIALS}` lists."])
        lines.append(row)
    return "\n".join(lines)
