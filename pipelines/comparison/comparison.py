"""The comparison of an experiment's runs, or of a sweep: groups of rows as tables, as text, in files and in MLflow."""

from __future__ import annotations

import math
import re
import shlex
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from polypool.infra.errors import AbsentError, InputError, unknown
from polypool.infra.files import make_folder
from polypool.infra.paths import home
from polypool.infra.text_tables import WIDTH, Table, as_latex, as_markdown, as_text
from polypool.infra.tracking import (
    NOTE,
    NOTE_LENGTH,
    PARENT,
    Artifacts,
    RunRecord,
    Tracker,
    command_line,
    ending,
    find_runs,
    tracking_uri,
)
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.archives import ARCHIVE, read_archive
from polypool.pipelines.comparison.choice import ALL, Choice
from polypool.pipelines.comparison.cross_task import CrossTaskTable, tables_of
from polypool.pipelines.comparison.grouping import SUMMARIES, arranged, protocols_shown
from polypool.pipelines.comparison.queries import Read, read_queries, with_differences
from polypool.pipelines.comparison.results import results
from polypool.pipelines.comparison.rows import Group

if TYPE_CHECKING:
    from polypool.pipelines.training.sweep import Plan

_NOTES = 3  # shown under the main table
_REST = "All tables are in the artifact `compare.md`."


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Groups of comparable runs.

    Attributes:
        experiment: of the runs.
        groups: one per task, data set and protocol.
        notes: on runs that are left out, missing or inconsistent.
        baseline: label or aggregator of the rows that others are compared with; empty for none.
        pairs: whether all pairs of rows are tested.
        detect: a difference of the primary metric to print the required number of seeds for; 0 for none.
    """

    experiment: str
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    baseline: str = ""
    pairs: bool = False
    detect: float = 0.0

    @cached_property
    def task_tables(self) -> tuple[CrossTaskTable, ...]:
        """The tables of `tables_of`."""
        return tuple(tables_of(self.groups))

    @property
    def cross_tasks(self) -> tuple[CrossTaskTable, ...]:
        """Task x aggregator, for each tuning with several tasks or data sets; untuned rows come first."""
        return tuple(table for table in self.task_tables if len(table.columns) > 1)

    @property
    def best_run(self) -> RunRecord | None:
        """The best run of the best row of the first group with trained runs, or None.

        Archived runs have no checkpoints and do not count.
        """
        for group in self.groups:
            name = f"{group.protocol}/{group.metric.name}"
            for row in group.rows:
                trained = [
                    run for run in row.runs if run.tags.get("kind") == "train" and ARCHIVE not in run.tags
                ]
                if scored := [run for run in trained if name in run.metrics]:
                    return max(scored, key=lambda run: group.metric.sign * run.metrics[name])
        return None

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """All tables in their order."""
        found: list[Table | None] = []
        for group in self.groups:
            found += [
                tables.scores(group),
                tables.published(group),
                tables.methods(
                    f"{group.title}: ours and other methods",
                    group.protocol,
                    group.metric.name,
                    {row.label: group.mean(row) for row in group.known},
                ),
                tables.differences(group),
                tables.all_pairs(group),
                tables.detectable(group),
            ]
        found += [
            tables.across(table) for table in self.task_tables if len(table.columns) > 1 or table.baseline
        ]
        return tuple(table for table in found if table is not None)

    @cached_property
    def results(self) -> pd.DataFrame:
        """The results of all groups."""
        return results(self.groups, compared_by=command_line())

    @property
    def decisive(self) -> pd.DataFrame:
        """The results of the metrics that order the rows."""
        return self.results[self.results["decides"]].reset_index(drop=True)

    @property
    def log_experiment(self) -> str:
        """The experiment that `log` writes to, separate from the compared runs."""
        return f"{self.experiment}-comparisons"

    @property
    def seeds_needed(self) -> list[str]:
        """The number of seeds that `detect` needs, a sentence for each group."""
        found = [tables.seeds_needed(group, self.detect) for group in self.groups if self.detect]
        return [note for note in found if note]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The seeds needed, and the notes."""
        return (*self.seeds_needed, *self.notes)

    def text(self, *, details: bool = False) -> str:
        """Return the main table with its finding and the requested tests, for a terminal; or all tables and notes."""
        if details:
            notes = "\n".join(line for note in self.remarks for line in textwrap.wrap(note, WIDTH))
            return "\n\n".join(filter(None, [*map(as_text, self.tables), notes]))
        first = next((group for group in self.groups if group.rows[0].own_protocol), self.groups[0])
        of_first = [table for table in self.task_tables if table.columns[0].group is first]
        main = [*self.cross_tasks, *of_first, *self.task_tables][0]
        across = len(main.columns) > 1 or main.baseline
        brief = tables.brief_across(main) if across else tables.brief_scores(main.columns[0].group)
        shown = [*filter(None, (brief, *map(tables.all_pairs, self.groups)))]
        lines = [line for note in self.seeds_needed for line in textwrap.wrap(note, WIDTH)]
        tuned = [f" · {group.tuned}" for group in self.groups if group.tuned]
        for note in self.notes[:_NOTES]:
            for words in tuned:  # long, and the same in all notes
                note = note.replace(words, "")
            lines.append(textwrap.shorten(note, WIDTH, placeholder=" ..."))
        more = {"table": len(self.tables) - len(shown), "note": len(self.notes) - _NOTES}
        if left := [f"{n} more {what}{'s' * (n > 1)}" for what, n in more.items() if n > 0]:
            lines.append(f"{' and '.join(left)}: polypool compare --details")
        return "\n\n".join([*map(as_text, shown), "\n".join(lines)])

    def markdown(self) -> str:
        """Return the tables and notes as Markdown."""
        notes = "\n".join(f"- {note}" for note in self.remarks)
        parts = [f"# Experiment `{self.experiment}`", *map(as_markdown, self.tables), notes]
        return "\n\n".join(filter(None, parts)) + "\n"

    def latex(self) -> str:
        """Return the tables as LaTeX, with the notes as comments."""
        head = ["% needs \\usepackage{booktabs}", *(f"% {note}" for note in self.remarks)]
        return "\n".join(head) + "\n\n" + "\n\n".join(map(as_latex, self.tables)) + "\n"

    def judged(self, read: Read) -> Comparison:
        """Return the comparison with tests, and with notes on rows whose queries `read` cannot return."""
        judged = [
            with_differences(group, read, baseline=baseline_row(group, self.baseline), pairs=self.pairs)
            for group in self.groups
        ]
        groups, notes = zip(*judged, strict=True)
        return replace(self, groups=groups, notes=(*self.notes, *chain(*notes)))

    def log(self, uri: str) -> Tracker:
        """Log tables and figures in a run of kind `comparison` of a tracking store, and return it."""
        from polypool.pipelines.comparison.charts import draw_all  # Matplotlib

        with tempfile.TemporaryDirectory() as drawn_in:
            tracker = Tracker.start(
                self.log_experiment,
                uri=uri,
                home=home(),
                name=f"comparison of {self.experiment}",
                tags={"kind": "comparison", "compared": self.experiment, NOTE: description(self.tables)},
                params={"groups": "; ".join(group.title for group in self.groups)},
            )
            with ending(tracker.finish):
                for path in draw_all(self.groups, self.task_tables, Path(drawn_in)):
                    tracker.artifact(path)
                tracker.text("compare.md", self.markdown())
                tracker.text("compare.tex", self.latex())
        return tracker


def baseline_row(group: Group, name: str) -> str:
    """Return the label of the row that `--baseline` names, by its label or its aggregator; empty for none.

    Raises:
        InputError: it names several rows.
    """
    if any(row.label == name for row in group.rows):
        return name
    trained = [row for row in group.rows if row.aggregator]
    found = [
        row.label
        for row in trained
        if name in (row.variant, row.aggregator, row.runs[0].tags.get("aggregator"))
    ]
    if len(found) > 1:
        raise InputError(
            f"{group.title}: --baseline {name!r} means {len(found)} rows; write the whole name of one: "
            f"{'; '.join(found)}"
        )
    return found[0] if found else ""


def description(tables: Sequence[Table]) -> str:
    """Return the description of a comparison's run in the UI: as many of the last tables as fit."""
    parts: list[str] = []
    for table in reversed(tables):
        part = as_markdown(table, level=3)
        if sum(len(text) + 2 for text in (*parts, part, _REST)) > NOTE_LENGTH:
            return "\n\n".join([*parts, _REST])
        parts.append(part)
    return "\n\n".join(parts)


def refuse_detect(difference: float) -> None:
    """Raise InputError for a value of `--detect` that is negative, infinite or NaN."""
    if not 0 <= difference < math.inf:
        raise InputError(
            f"--detect must be a difference of the primary metric above 0, such as 1.0, not {difference:g}"
        )


def runs_of(uri: str, experiment: str) -> list[RunRecord]:
    """Return the runs of an experiment that may be compared, finished or not, latest first.

    Raises:
        AbsentError: the experiment is unknown or has no such runs.
        InputError: the store does not answer.
    """
    runs, found = [], find_runs(uri, experiment, finished=False)
    tuned_sweeps = {run.run_id for run in found if run.tags.get("kind") == "sweep" and "budget" in run.params}
    for run in found:
        # a run without a test score is compared once `evaluate` scores it, a tuning trial never
        trial = run.tags.get(PARENT) in tuned_sweeps
        hidden = run.params.get("test") == "False" and (trial or not protocols_shown(run))
        if run.tags.get("kind") not in SUMMARIES and not hidden:
            runs.append(run)
    if not runs:
        raise AbsentError(
            f"experiment {experiment!r} of {uri} has no runs to compare; train some: "
            f"polypool train RECIPE --experiment {shlex.quote(experiment)}"
        )
    return runs


def with_archives(
    uri: str, experiment: str, archives: Sequence[Path], unpacked: Path
) -> tuple[list[RunRecord], list[str]]:
    """Return the runs of an experiment and of archives, each once, and notes on their origin.

    Args:
        uri: the tracking store.
        experiment: its name; with archives, an experiment without runs is noted.
        archives: their files.
        unpacked: folder for files of archived runs, which must stay until they are compared.

    Raises:
        InputError: the experiment has no runs and no archive is given, or an archive cannot be read.
    """
    archived = {path: read_archive(path, unpacked) for path in archives}
    notes = [f"{len(runs)} runs are from {path}" for path, runs in archived.items()]
    own: list[RunRecord] = []
    try:
        own = runs_of(uri, experiment)
    except AbsentError:
        if not archives:
            raise
        notes.append(f"experiment {experiment!r} of {uri} has no runs to compare with them")
    known = {run.run_id for run in own}
    others = {run.run_id: run for run in chain(*archived.values()) if run.run_id not in known}
    return [*own, *others.values()], notes


def compare(
    uri: str,
    experiment: str,
    *,
    archives: Sequence[Path] = (),
    metric: str = "",
    protocol: str = "",
    choice: Choice = ALL,
    significance: bool = True,
    baseline: str = "",
    pairs: bool = False,
    detect: float = 0.0,
) -> Comparison:
    """Read the runs of an experiment and arrange them.

    Args:
        uri: the tracking store.
        experiment: its name.
        archives: files with more runs; the experiment may then be missing, which is noted.
        metric: orders the rows; groups without it, and all groups if it is empty, take their primary metric.
        protocol: the only one shown; if empty, every protocol with scores of a test split.
        choice: filters of runs.
        significance: read the per-query results of all runs, and test differences.
        baseline: label or aggregator of the rows to compare the others with; empty for none.
        pairs: test all pairs of rows, too.
        detect: a difference of the primary metric for which to give the number of seeds; 0 for none.

    Raises:
        InputError: unknown experiment, metric, protocol or baseline, or nothing to compare; see also `Choice.of`.
    """
    artifacts = Artifacts(uri)
    with tempfile.TemporaryDirectory(prefix="polypool-archives-") as unpacked:
        runs, sources = with_archives(uri, experiment, archives, Path(unpacked))
        groups, notes = arranged(
            choice.of(runs),
            experiment=experiment,
            metric=metric,
            protocol=protocol,
            read=lambda run, name: artifacts.path(run, name).read_bytes(),
        )
        if baseline and not any(baseline_row(group, baseline) for group in groups):
            raise unknown(
                "row for --baseline", baseline, {row.label for group in groups for row in group.rows}
            )
        comparison = Comparison(
            experiment=experiment,
            groups=groups,
            notes=(*notes, *sources),
            baseline=baseline,
            pairs=pairs,
            detect=detect,
        )
        if not significance:
            return comparison
        return comparison.judged(
            lambda run, name: read_queries(partial(artifacts.path, run), run.run_id, name)
        )


def compare_sweep(plan: Plan, *, detect: float = 0.0) -> tuple[str, RunRecord | None]:
    """Compare the experiment of a sweep, log the comparison, and return it as text, and its best run or None.

    Args:
        plan: of the sweep.
        detect: as in `Comparison`.
    """
    uri = tracking_uri(home())
    try:
        comparison = compare(uri, plan.experiment, detect=detect)
    except InputError as error:
        return str(error), None
    tracker = comparison.log(uri)
    lines = [
        comparison.text(),
        f"\nlogged with figures in run {tracker.run_id} of {comparison.log_experiment!r}",
    ]
    for path in _heat_maps(plan, uri):
        tracker.artifact(path)
        lines.append(f"heat map of visual and text aggregators, also logged: {path}")
    return "\n".join(lines), comparison.best_run


def _heat_maps(plan: Plan, uri: str) -> list[Path]:
    """Draw a heat map for each recipe with several text aggregators, and return the files."""
    from polypool.pipelines.comparison.charts import draw_pairs  # Matplotlib
    from polypool.pipelines.figures.style import save
    from polypool.pipelines.training.sweep import match_trials

    if not any(trial.run.text_aggregator for trial in plan.trials):
        return []
    records, paths = {record.run_id: record for record in find_runs(uri, plan.experiment)}, []
    trials = match_trials(plan.trials, [*records.values()])
    for recipe, metric in plan.metrics.items():
        scored = [
            (trial.run, records[trial.run_id].metrics if trial.run_id else {})
            for trial in trials
            if trial.run.recipe == recipe
        ]
        if scored and (figure := draw_pairs(scored, metric=metric)):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{plan.experiment}-{recipe}")
            paths.append(make_folder(home() / "runs") / f"{name}-visual_by_text.png")
            save(figure, paths[-1])
    return paths
