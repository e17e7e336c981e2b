"""`polypool evaluate RUN [RUN ...]`: Score trained runs under a named protocol.

Several runs form an ensemble: the mean of their score matrices, as in the papers. Several protocols, each given by a
separate --protocol, are shown side by side.

--rescore changes scores before ranking, by dual softmax (dsl) or by a bank of training queries (qbnorm); see
tasks/scoring/rescoring.py. --vectors compares only the first vectors of each set, for models trained for that (--model
matryoshka).

For questions without answers, such as VQA's test-dev, it writes the predicted answers to a file for the evaluation
server and prints its path.

--corpus and --features score the runs on other data, with the vocabulary and feature statistics of training. The scores
are logged in a separate run of kind `transfer`, and `compare` shows them in a separate table. A corpus or features that
changed since training are refused; --other-data scores them likewise.

--embeddings instead analyses the embeddings of one run: alignment and uniformity; for sets also their variance, and the
scores with single elements kept or removed; for distributions their uncertainty. The numbers are logged in the run as
metrics `analysis/...`. For an exported folder, scores and diagnostics are only printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.process.command import Repeated, command
from polypool.infra.process.output import print_next
from polypool.infra.text_tables import ABSENT, WIDTH, aligned, as_text
from polypool.tasks.inputs.other_data import OtherData
from polypool.tasks.scoring.protocols import VECTORS, Rescore, warnings_of

if TYPE_CHECKING:
    from polypool.pipelines.models.trained import TrainedModel
    from polypool.tasks.adapter import Evaluation

OWN = OtherData()


def evaluate(
    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="(required)")
    ] = (),
    *,
    protocol: Repeated = (),
    split: str = "test",
    rescore: Rescore | None = None,
    vectors: int | None = None,
    embeddings: bool = False,
    elements: bool = True,
    task: str = "",
    data: OtherData = OWN,
    other_data: bool = False,
    trust: Repeated = (),
) -> None:
    """Score runs.

    Args:
        runs: a run, by its id or a prefix of it, its name, or `latest`, or the folder or URL of an export; several for
            an ensemble.
        protocol: named protocol, repeatable (default: the run's). The first one selects the examples.
        split: split to score.
        rescore: change scores before ranking; the protocol is then named PROTOCOL-dsl or PROTOCOL-qbnorm, and compared
            separately.
        vectors: compare the first K vectors of each set; the protocol is then named PROTOCOL-vectorsK.
        embeddings: analyse the embeddings of one run instead.
        elements: with --embeddings: score sets with single elements kept or removed; about 2K + 1 evaluations for sets
            of K.
        task: task adapter with other parameters, such as "image_text(cxc='data/cxc')" (default: each run's).
        data: other data than in training.
        other_data: score a run on its corpus and features even if they changed since training; the scores are logged in
            a separate run, as with --corpus.
        trust: trusted module whose code the runs may name as module:Name; repeatable.
    """
    if vectors is not None and vectors < 1:
        raise InputError(f"--vectors must be at least 1, such as 4, not {vectors}")
    how = (f"{VECTORS}{vectors}" if vectors else "") + (f"-{rescore}" if rescore else "")
    if embeddings and (len(runs) > 1 or len(protocol) > 1 or how or data.given or other_data):
        raise InputError(
            "--embeddings takes one run and at most one --protocol, without --rescore, --vectors, --corpus, "
            "--features, --texts, --other-data"
        )
    from polypool.pipelines.comparison.tables import methods
    from polypool.pipelines.models.run_evaluation import evaluate_and_log
    from polypool.pipelines.models.trained import load

    models = [
        load(run, task=task, data=data, other_data=other_data, trust=trust)
        for run in dict.fromkeys(runs or ("",))
    ]
    if embeddings:
        analyse(models[0], split=split, protocol="".join(protocol), elements=elements)
        return
    protocols = [f"{name}{how}" for name in dict.fromkeys(protocol or (models[0].run.protocol,))]
    run_id, evaluations = evaluate_and_log(models, protocols=protocols, split=split)
    moved = next((trained.run.data.dataset for trained in models if trained.trained_on), "")
    scored = f"{moved}, {split}" if moved else split
    print(f"{', '.join(map(name, models))}: {scored} under {', '.join(protocols)} ({recorded_in(run_id)})")
    print(*metric_table(evaluations), sep="\n")
    files = {file: content for each in evaluations for file, content in each.files.items()}
    for file, content in files.items():
        print(f"{file}: {written(run_id, file, content)}")
    for warning in warnings_of(protocols):
        print(f"note: {warning}")
    for each in evaluations:
        metric = each.primary.name
        ours = {", ".join(map(name, models)): each.metrics[metric]} if metric in each.metrics else {}
        if table := methods(f"{each.protocol}: other methods", each.protocol, metric, ours):
            print("", as_text(table), sep="\n")
    print_next(("compare the runs", ("compare", "--experiment", models[0].run.experiment)))


def analyse(trained: TrainedModel, *, split: str, protocol: str, elements: bool) -> None:
    """Print embedding diagnostics of a run."""
    from polypool.pipelines.models import run_evaluation

    run_id = trained.tracker.run_id if trained.tracker else ""
    found = run_evaluation.analyse(trained, split=split, protocol=protocol, elements=elements)
    print(f"{name(trained)}: embeddings of {split} ({recorded_in(run_id)})\n")
    print(*side_table(found.geometry, digits=4), sep="\n")
    if found.note:
        print(f"\n{found.note}")
    if found.elements:
        print(f"\n{found.metric} under {found.protocol}, with elements of\n")
        print(*side_table(found.elements, digits=1), sep="\n")


def written(run_id: str, file: str, data: bytes) -> Path:
    """Return a readable path of an evaluation file: of a run's record; without a run, written to the current folder."""
    from polypool.infra.paths import here, home
    from polypool.infra.tracking import Tracker, tracking_uri
    from polypool.pipelines.training.record import EVALUATION

    if not run_id:
        (here() / file).write_bytes(data)
        return here() / file
    return Tracker.attach(tracking_uri(home()), run_id, running=False).download(f"{EVALUATION}/{file}")


def recorded_in(run_id: str) -> str:
    return f"run {run_id}" if run_id else "not recorded, as an exported model has no run here"


def name(trained: TrainedModel) -> str:
    run, of = trained.run, trained.trained_on
    return f"{run.recipe if of else run.label} {run.aggregator} seed {run.seed}" + (f" of {of}" if of else "")


def metric_table(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the lines of a table: a row per metric, a column per evaluation, with a heading if there are several."""
    from polypool.pipelines.training.record import printed

    columns = [
        each.metrics
        | ({} if math.isnan(each.primary.chance) else {f"chance {each.primary.name}": each.primary.chance})
        for each in evaluations
    ]
    sizes = [max(9, len(each.protocol)) if len(evaluations) > 1 else 9 for each in evaluations]
    names = list(dict.fromkeys(name for column in columns for name in column))
    first = max(16, *map(len, names))
    rows = [
        (name, *(printed(column[name]) if name in column else ABSENT for column in columns)) for name in names
    ]
    if len(evaluations) > 1:
        rows.insert(0, ("", *(each.protocol for each in evaluations)))
    return [
        f"  {name:<{first}} " + "  ".join(f"{x:>{size}}" for x, size in zip(values, sizes, strict=True))
        for name, *values in rows
    ]


def side_table(numbers: Mapping[str, float], *, digits: int) -> list[str]:
    """Return the lines of a table of numbers named `row/side`."""
    named = [name.split("/") for name in numbers]
    sides = [side for side in ("visual", "text", "joint") if any(side == column for _, column in named)]
    rows = []
    for row in dict.fromkeys(row for row, _ in named):
        values = [numbers.get(f"{row}/{side}") for side in sides]
        texts = (ABSENT if value is None else f"{value:.{digits}f}" for value in values)
        rows.append((row.replace("_", " "), *texts))
    return aligned(["", *sides], rows, width=WIDTH)


@command
def main() -> None:
    tyro.cli(evaluate, prog="polypool evaluate", description=__doc__)
