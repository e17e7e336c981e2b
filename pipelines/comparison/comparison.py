"""The comparison of an experiment's runs: its groups, and their tables as text, files and a run of their own."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from infra.errors import InputError, unknown
from infra.spec import Spec
from infra.tracking import RunRecord, find_runs
from pipelines.comparison.runs.grouping import arranged
from pipelines.comparison.runs.groups import Group
from pipelines.comparison.runs.per_query import Read, with_differences
from pipelines.comparison.tables import differences, power
from pipelines.comparison.tables import report as tables
from pipelines.comparison.tables.cross_task import CrossTaskTable, cross_task_table, why_not
from pipelines.comparison.tables.render import WIDTH, Table, as_latex, as_markdown, as_text

_SUMMARIES = ("comparison", "sweep")
"""Kinds of runs that stand for others, and have no scores of their own."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Groups of comparable runs, and notes on what they leave out.

    Attributes:
        experiment: where the runs are.
        groups: a task, data set and protocol each.
        notes: what is left out, missing or odd.
        pairs: whether all pairs of aggregators are shown.
        detect: a difference that somebody wishes to show; 0 for none.
    """

    experiment: str
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    pairs: bool = False
    detect: float = 0.0

    @cached_property
    def cross_task(self) -> CrossTaskTable | None:
        """Task x aggregator; None for one task and data set."""
        return cross_task_table(self.groups)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """All tables, in the order in which they are shown."""
        all_tables: list[Table | None] = []
        for group in self.groups:
            all_tables += [tables.scores(group), tables.published(group), differences.differences(group)]
            all_tables += [differences.all_pairs(group)] if self.pairs else []
            all_tables.append(power.shown_by_seeds(group))
        all_tables += [tables.across(self.cross_task)] if self.cross_task is not None else []
        return tuple(table for table in all_tables if table is not None)

    @property
    def kept_in(self) -> str:
        """The experiment that `log` keeps a comparison in, so that the runs' own has trained ones alone."""
        return f"{self.experiment}-comparisons"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes; which picture is missing and why, where there is more than one task; seeds still needed."""
        wished = [power.needed(group, self.detect) for group in self.groups] if self.detect else []
        reason = why_not(self.cross_task) if self.cross_task is not None else ""
        return tuple(note for note in (*self.notes, *wished, reason) if note)

    def text(self) -> str:
        """Return the tables and notes for a terminal."""
        lines = [line for note in self.remarks for line in textwrap.wrap(note, WIDTH)]
        notes = ["\n".join(lines)] if lines else []
        return "\n\n".join([*map(as_text, self.tables), *notes])

    def markdown(self) -> str:
        """Return the tables and notes as Markdown."""
        notes = ["\n".join(f"- {note}" for note in self.remarks)] if self.remarks else []
        return (
            "\n\n".join([f"# Experiment `{self.experiment}`", *map(as_markdown, self.tables), *notes]) + "\n"
        )

    def latex(self) -> str:
        """Return the tables as LaTeX, with the notes as comments."""
        head = ["% needs \\usepackage{booktabs}", *(f"% {note}" for note in self.remarks)]
        return "\n".join(head) + "\n\n" + "\n\n".join(map(as_latex, self.tables)) + "\n"

    def log(self, uri: str, *, folder: Path) -> str:
        """Log tables and figures to MLflow, in a run of kind `comparison`, and return its id."""
        from pipelines.comparison.logging import log_comparison  # Matplotlib, where something is drawn

        return log_comparison(
            self.experiment,
            kept_in=self.kept_in,
            uri=uri,
            home=folder,
            groups=self.groups,
            cross_task=self.cross_task,
            tables=self.tables,
            texts={"compare.md": self.markdown(), "compare.tex": self.latex()},
        )


def refuse_detect(wished: float) -> None:
    """Refuse a wished difference that is none.

    Raises:
        InputError: it is negative or no number.
    """
    if not 0 <= wished < math.inf:
        raise InputError(
            f"--detect must be a difference of the primary metric above 0, such as 1.0, not {wished:g}"
        )


def compare(
    uri: str,
    experiment: str,
    *,
    metric: str = "",
    protocol: str = "",
    recipes: Sequence[str] = (),
    aggregators: Sequence[str] = (),
) -> Comparison:
    """Read the runs of an experiment and arrange them.

    Args:
        uri: the tracking store.
        experiment: its name.
        metric: what orders the rows; a group without it, or all where empty, take their primary one.
        protocol: the only one shown; where empty, every one that a test split was scored under.
        recipes: of the only runs shown; all where empty.
        aggregators: the specs of the only ones shown, of images, videos or both modalities; all where empty.

    Raises:
        InputError: no such experiment, metric, protocol, recipe or aggregator, or nothing in it that can be compared.
    """
    runs = [
        run for run in find_runs(uri, experiment, finished=False) if run.tags.get("kind") not in _SUMMARIES
    ]
    if not runs:
        raise InputError(
            f"experiment {experiment!r} of {uri} has no runs to compare; train some: "
            f"python -m pipelines.train RECIPE --experiment {shlex.quote(experiment)}"
        )
    if recipes:
        runs = _with("recipe", {*recipes}, runs)
    if aggregators:
        runs = _with("aggregator", {str(Spec.parse(spec)) for spec in aggregators}, runs)
    groups, notes = arranged(runs, experiment=experiment, metric=metric, protocol=protocol)
    return Comparison(experiment=experiment, groups=groups, notes=notes)


def _with(tag: str, wanted: Set[str], runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of which a tag is wanted; refuse what none has."""
    had = {run.tags.get(tag, "") for run in runs} - {""}
    if missing := sorted(wanted - had):
        raise unknown(f"{tag} of the experiment", missing[0], had)
    return [run for run in runs if run.tags.get(tag) in wanted]


def judged(comparison: Comparison, read: Read) -> Comparison:
    """Return a comparison that knows which differences are significant; rows without per-query results are noted."""
    compared = [with_differences(group, read) for group in comparison.groups]
    notes = [note for _, of in compared for note in of]
    return replace(
        comparison, groups=tuple(group for group, _ in compared), notes=(*comparison.notes, *notes)
    )
