"""A tuned sweep and its MLflow run: trials that choose the settings of every aggregator, then runs with these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polypool.infra.text_tables import as_markdown, as_text, duration
from polypool.infra.tracking import RunRecord
from polypool.pipelines.training.record import at_work
from polypool.pipelines.training.sweep.budgets import Choice, Tuning, choice_table, choose
from polypool.pipelines.training.sweep.execution import Outcome, alone, carry_out
from polypool.pipelines.training.sweep.parent import conclude, open_parent, rows_of
from polypool.pipelines.training.sweep.plan import Plan, seconds, total
from polypool.pipelines.training.sweep.trials import records_of

TUNING = "tuning.json"
"""The artifact of the sweep's run with the budget, the space and what was chosen for each aggregator."""


def tuned_sweep(
    tuning: Tuning,
    *,
    uri: str,
    home: Path,
    experiment: str,
    concurrent: int = 0,
    params: Mapping[str, Any],
) -> tuple[Plan, Plan, list[Outcome], list[Choice]]:
    """Train what is missing of the trials that choose, choose, and train what is missing of the runs.

    Args:
        tuning: the trials.
        uri: the tracking store.
        home: the project's.
        experiment: of the runs.
        concurrent: trials at once; 0 for as many as fit.
        params: options of the sweep, for its run.

    Returns:
        All trials and runs, the runs alone, how those that were trained ended, and what was chosen.

    Raises:
        InputError: another sweep of the experiment is at work, or the store does not answer.
    """
    place = {"uri": uri, "home": home, "experiment": experiment}
    with alone(home, experiment):
        records = records_of(uri, experiment)
        first = Plan.of(tuning.trials, records, **place, early_stop=tuning.early_stop)
        print("".join(f"{line}\n" for line in (*tuning.notes, *first.notes())), end="")
        to_do = bool(first.to_do or _final(tuning, first, [], place)[0].to_do)
        parent = open_parent(first, records, params=params, to_do=to_do)
        run_id = parent.run_id if parent else ""
        with at_work(parent) if parent else nullcontext():
            outcomes = carry_out(first, concurrent=concurrent, parent=run_id)
            final, choices = _final(tuning, first, outcomes, place, sweep=run_id)
            shown = choice_table(choices, words=tuning.words)
            print(f"\n{as_text(shown)}\n", flush=True)
            print("".join(f"{line}\n" for line in final.notes()), end="")
            outcomes += carry_out(final, concurrent=concurrent, parent=run_id)
        both = replace(first, matches=(*first.matches, *final.matches))
        if parent:
            record = {
                "budget": tuning.budget,
                "sample": tuning.sample,
                "shared": tuning.space.shared,
                "own": tuning.space.own,
            }
            parent.json(TUNING, {**record, "chosen": [asdict(choice) for choice in choices]})
            conclude(parent, both, outcomes, first=as_markdown(shown))
    return both, final, outcomes, choices


def _final(
    tuning: Tuning,
    first: Plan,
    outcomes: Sequence[Outcome],
    place: Mapping[str, Any],
    *,
    sweep: str = "",
) -> tuple[Plan, list[Choice]]:
    """Return the runs with what the trials chose, and the choices."""
    chosen = choose(first, rows_of(first, outcomes), sizes=tuning.sizes)
    trials = tuning.final([trial for _, trial in chosen if trial], sweep=sweep)
    records = records_of(place["uri"], place["experiment"])
    plan = Plan.of(trials, records, **place, early_stop=False)
    return plan, [choice for choice, _ in chosen]


def preview(
    tuning: Tuning, *, uri: str, home: Path, experiment: str, concurrent: int = 0, words: Sequence[str] = ()
) -> str:
    """Return what `--dry-run` prints: the trials, and the runs with what they choose or have chosen.

    Args:
        tuning: the trials.
        uri: the tracking store.
        home: the project's.
        experiment: of the runs.
        concurrent: trials at once; 0 for as many as this machine has cores for.
        words: of the command line, without `--dry-run`.
    """
    place = {"uri": uri, "home": home, "experiment": experiment}
    records = records_of(uri, experiment)
    first = Plan.of(tuning.trials, records, **place, early_stop=tuning.early_stop)
    lines = [tuning.words, *tuning.notes, "", "trials that choose, scored on val alone:"]
    lines += [first.text(records, concurrent=concurrent, words=words), ""]
    if first.to_do:
        return "\n".join([*lines, *_to_come(tuning, first, records, concurrent=concurrent)])
    final, choices = _final(tuning, first, [], place)
    lines += [as_text(choice_table(choices, words=tuning.words)), ""]
    if final.matches:
        lines += ["runs with what they chose:", final.text(records, concurrent=concurrent, words=words)]
    return "\n".join(lines)


def _to_come(tuning: Tuning, first: Plan, records: Sequence[RunRecord], *, concurrent: int) -> Iterator[str]:
    """Yield the lines of runs whose settings are not chosen yet."""
    runs = {match.trial.rivals: match.trial.run for match in reversed(first.matches)}
    known = first.timed(records)
    times = {name: seconds(run, known) for name, run in reversed(runs.items())}
    yield f"then, with what the first choose, {len(runs) * tuning.seeds} runs:"
    for (recipe, aggregator), time in times.items():
        about = "time unknown" if time is None else f"about {duration(time)}"
        yield f"  {recipe} {aggregator}  seeds 0 to {tuning.seeds - 1}, {about} each"
    whole = total([*times.values()] * tuning.seeds, first.at_once(concurrent))
    yield f"\nestimated time of these, {first.at_once(concurrent)} at once: {duration(whole)}"
