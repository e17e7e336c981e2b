"""`python -m pipelines.compare --experiment NAME`: one table and figure from the runs of an experiment.

Runs under different protocols, tasks or data sets never share a block.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from infra.errors import InputError, command, unknown
from infra.files import atomic, make_folder
from infra.paths import home
from infra.tracking import RunRecord, Tracker, find_runs, tracking_uri, ui_command
from pipelines.charts import draw
from pipelines.tables import METRICS, SECONDS, Block, Row, as_markdown, as_text, ordered
from tasks.protocols import PROTOCOLS

Cell = tuple[str, str, str]
"""Task, data set and protocol."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to compare."""

    experiment: str = "polypool"
    """MLflow experiment."""
    metric: str = ""
    """What orders the rows and is drawn, such as `i2t/R1`; `rsum` for retrieval where none is given."""
    protocol: str = ""
    """The only protocol shown; where none is given, every one that a test split was scored under."""
    markdown: Path | None = None
    """File for the tables as Markdown."""
    log: bool = True
    """Keep the tables and the figure in MLflow, in a run of their own."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Blocks of comparable runs, and notes on what they leave out."""

    experiment: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Return the tables and notes for a terminal."""
        return "\n\n".join([*map(as_text, self.blocks), *(["\n".join(self.notes)] if self.notes else [])])

    def markdown(self) -> str:
        """Return the tables and notes as Markdown."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        parts = [
            f"# Experiment `{self.experiment}`",
            *map(as_markdown, self.blocks),
            *([notes] if notes else []),
        ]
        return "\n\n".join(parts) + "\n"

    def log(self, uri: str, *, folder: Path) -> str:
        """Keep tables and figure in MLflow, in a run of kind `comparison`, and return its id."""
        tracker = Tracker.start(
            self.experiment,
            uri=uri,
            home=folder,
            name="comparison",
            tags={"kind": "comparison"},
            params={"blocks": [block.title for block in self.blocks]},
        )
        with tempfile.TemporaryDirectory() as made:
            draw(self.blocks, Path(made) / "compare.png")
            tracker.artifact(Path(made) / "compare.png")
        tracker.text("compare.md", self.markdown())
        tracker.finish()
        return tracker.run_id


def compare(uri: str, experiment: str, *, metric: str = "", protocol: str = "") -> Comparison:
    """Read the runs of an experiment and arrange them.

    Args:
        uri: the tracking store.
        experiment: its name.
        metric: what orders the rows; a block without it, or all where empty, take their main one.
        protocol: the only one shown; where empty, every one that a test split was scored under.

    Raises:
        InputError: no such experiment, metric or protocol, or nothing in it that can be compared.
    """
    runs = [run for run in find_runs(uri, experiment, finished=False) if run.tags.get("kind") != "comparison"]
    if not runs:
        raise InputError(
            f"experiment {experiment!r} of {uri} has no runs to compare; train some: "
            f"python -m pipelines.train RECIPE --experiment {experiment}"
        )
    finished = sorted(
        (run for run in runs if run.status == "FINISHED"), key=lambda run: run.ended, reverse=True
    )
    notes = [*_left_out("not finished", [run for run in runs if run.status != "FINISHED"])]
    notes += _left_out("without scores to show", [run for run in finished if not _protocols(run, protocol)])
    cells: dict[Cell, list[RunRecord]] = defaultdict(list)
    for run in finished:
        for name in _protocols(run, protocol):
            cells[run.tags.get("task", ""), run.tags.get("dataset", ""), name].append(run)
    if not cells and protocol:
        scored = {name.partition("/")[0] for run in finished for name in run.metrics} & {*PROTOCOLS}
        raise unknown("protocol", protocol, scored, f" Those are what the runs of {experiment!r} have.")
    if not cells:
        raise InputError(f"experiment {experiment!r} of {uri} has nothing to compare yet; {'; '.join(notes)}")
    blocks = [_block(cell, cells[cell], metric, notes) for cell in sorted(cells)]
    if metric and all(block.metric != metric for block in blocks):
        had = {name for block in blocks for row in block.rows for name in row.values}
        raise unknown("metric", metric, had)
    return Comparison(experiment=experiment, blocks=tuple(blocks), notes=tuple(notes))


def _protocols(run: RunRecord, only: str) -> set[str]:
    """Return the protocols of a run's scores: the one asked for, or its own and others of test splits."""
    scored = {name.partition("/")[0] for name in run.metrics}
    tests = {name for name, protocol in PROTOCOLS.items() if protocol.split == "test"}
    return scored & ({only} if only else {run.tags.get("protocol", ""), *tests})


def _block(cell: Cell, runs: Sequence[RunRecord], metric: str, notes: list[str]) -> Block:
    """Arrange one cell's runs, latest first, in rows; what is odd about them is added to `notes`."""
    task, dataset, protocol = cell
    recipes = {run.tags.get("recipe", "") for run in runs}
    rows: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        rows[_label(run) + (f", {run.tags.get('recipe', '')}" if len(recipes) > 1 else "")].append(run)
    made = []
    for label, group in rows.items():
        latest = {run.tags.get("seed", ""): run for run in reversed(group)}
        notes += _oddities(f"{label} ({protocol})", group, latest)
        made.append(_row(label, [latest[seed] for seed in sorted(latest)], protocol))
    had = {name for row in made for name in row.values}
    if metric not in had:
        metric = next((name for name in METRICS if name in had), min(had, default="rsum"))
    return Block(task=task, dataset=dataset, protocol=protocol, metric=metric, rows=ordered(made, metric))


def _label(run: RunRecord) -> str:
    """Name what a run compares: its aggregator, the text's where that differs, and the model around them."""
    own, kind = run.tags.get("aggregator", "?"), run.tags.get("kind", "train")
    text, model = run.tags.get("text_aggregator", own), run.tags.get("model", "")
    label = ("" if kind == "train" else f"{kind}: ") + own + ("" if text == own else f", text {text}")
    return label + (f" in {model}" if model else "")


def _row(label: str, runs: Sequence[RunRecord], protocol: str) -> Row:
    names = [name.removeprefix(f"{protocol}/") for name in runs[0].metrics if name.startswith(f"{protocol}/")]
    columns = {name: f"{protocol}/{name}" for name in names} | {SECONDS: "time/train_seconds"}
    values = {
        name: tuple(run.metrics[key] for run in runs)
        for name, key in columns.items()
        if all(key in run.metrics for run in runs)
    }
    return Row(label=label, seeds=tuple(run.tags.get("seed", "") for run in runs), values=values)


def _oddities(row: str, group: Sequence[RunRecord], latest: dict[str, RunRecord]) -> Iterator[str]:
    """Say where a seed ran more than once, and where the runs of a row differ in more than the seed."""
    for seed in sorted(latest):
        times = sum(run.tags.get("seed", "") == seed for run in group)
        if times > 1:
            yield f"{row} seed {seed} finished {times} times; the latest is shown, run {latest[seed].run_id}"
    params = [run.params for run in latest.values() if run.tags.get("kind", "train") == "train"]
    names = {name for given in params for name in given} - {"seed"}
    if differing := sorted(name for name in names if len({given.get(name) for given in params}) > 1):
        yield f"{row}: its runs differ in {', '.join(differing)}"


def _left_out(why: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Count and name runs that are not shown."""
    if runs:
        named = ", ".join(f"{run.name or run.run_id} ({run.status.lower()})" for run in runs[:8])
        more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
        yield f"{len(runs)} run{'s' * (len(runs) > 1)} left out, {why}: {named}{more}"


@command
def main() -> None:
    """Compare, print, and keep the result."""
    options = tyro.cli(Options, prog="python -m pipelines.compare", description=__doc__)
    uri = tracking_uri(home())
    found = compare(uri, options.experiment, metric=options.metric, protocol=options.protocol)
    print(found.text(), end="\n\n")
    if options.markdown:
        make_folder(options.markdown.parent)
        with atomic(options.markdown) as file:
            file.write(found.markdown().encode())
        print(f"written to {options.markdown}")
    if options.log:
        run_id = found.log(uri, folder=home())
        print(f"kept with a figure in run {run_id} of {options.experiment!r}: compare.md, compare.png")
    print(f"to see all runs: {ui_command(uri)}")


if __name__ == "__main__":
    main()
