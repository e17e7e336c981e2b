from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from places import ROOT
from programs import begin, end
from query_results import answers, renamed, retrieval
from records import SIX, begun, blocks_of, read, run, scores, vqa
from verbs import exit_code

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.text_tables import as_text
from polypool.infra.tracking import PARENT, RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import compare as module
from polypool.pipelines.comparison import comparison as comparing
from polypool.pipelines.comparison.choice import Choice
from polypool.pipelines.comparison.comparison import Comparison, baseline_row, compare
from polypool.pipelines.comparison.tables import methods
from polypool.pipelines.comparison.tables import scores as table
from polypool.tasks.scoring.records import queries_json

NONE = "\u2013"  # an en dash


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Comparison]:
    """Compare the runs of an experiment."""

    def of(*runs: RunRecord, **options: str) -> Comparison:
        described = lambda run, name: SimpleNamespace(read_bytes=lambda: read(run, name))  # noqa: E731
        monkeypatch.setattr(comparing, "Artifacts", lambda uri: SimpleNamespace(path=described))
        monkeypatch.setattr(comparing, "find_runs", lambda uri, experiment, finished: list(runs))
        return compare("sqlite:///x", "polypool", significance=False, **options)

    return of


def test_rows_show_mean_and_deviation_best_first(compared):
    runs = [
        *(run("mean", seed, 54.0 + 6 * seed) for seed in range(3)),
        run("gpo", 0, 66.0),
        run("max", 0, 30.0),
    ]
    (group,) = compared(*runs).groups
    assert [row.label for row in group.rows] == ["gpo", "mean", "max"]
    assert (group.rows[1].mean("rsum"), group.rows[1].deviation("rsum")) == (60.0, 6.0)
    assert table(group).best == {(0, 2)}
    *_, header, rule, gpo, mean, _ = as_text(table(group)).splitlines()
    names = ["aggregator", "runs", "rsum", *(name.replace("/", " ") for name in SIX), "train s"]
    assert header.split() == " ".join(names).split()
    assert gpo.split() == ["gpo", "1", "66.0", "±", NONE, *["11.0", "±", NONE] * 6, "80"]
    assert mean.split() == ["mean", "3", "60.0", "±", "6.0", *["10.0", "±", "1.0"] * 6, "80"]
    assert len({len(line) for line in (header, rule, gpo, mean)}) == 1


def test_protocols_tasks_and_data_sets_get_separate_tables(compared):
    of = {"coco-5k": 300.0, "coco-1k-5fold": 400.0, "dev": 1.0, "val-1k": 2.0}
    both = {name: value for protocol, rsum in of.items() for name, value in scores(protocol, rsum).items()}
    runs = [
        run("gpo", dataset="coco", protocol="coco-5k", metrics=both),
        run("max", dataset="coco", protocol="coco-5k"),
        run("gpo"),
        run("gpo", dataset="other"),
        run("gpo", task="vqa", protocol="vqa2", metrics={"vqa2/accuracy": 61.0, "vqa2/number": 40.0}),
    ]
    found = compared(*runs)
    assert [group.title for group in found.groups] == [
        "image_text · coco · coco-1k-5fold",
        "image_text · coco · coco-5k",
        "image_text · coco_mini · whole",
        "image_text · other · whole",
        "vqa · coco_mini · vqa2",
    ]
    assert found.notes == (
        "image_text · coco has a table each for the protocols coco-1k-5fold, coco-5k, whose numbers cannot be compared",
    )
    vqa = found.groups[-1]
    assert (vqa.metric.name, vqa.columns) == ("accuracy", ("accuracy", "number"))
    assert compared(*runs, metric="i2t/medr").groups[2].columns[:2] == ("i2t/medr", "rsum")
    (only,) = compared(*runs, protocol="val-1k").groups
    assert (only.title, only.rows[0].mean("rsum")) == ("image_text · coco · val-1k", 2.0)
    brief = compared(*runs[:2]).text()
    assert brief.startswith("image_text · coco · coco-5k\n"), "the protocol that runs chose must be shown"


def test_labels_include_recipe_text_aggregator_and_kind(compared):
    runs = [run("gpo", text_aggregator="mean"), run("gpo + gpo", kind="ensemble"), run("gpo", model="hgr")]
    for others, expected in (
        (runs, {"gpo", "gpo, text mean", "ensemble: gpo + gpo", "gpo in hgr"}),
        ([run("gpo", recipe="bert")], {"gpo, mini", "gpo, bert"}),
    ):
        assert {row.label for row in compared(run("gpo"), *others).groups[0].rows} == expected


def test_notes_list_excluded_and_duplicate_runs(compared):
    found = compared(
        run("gpo", 0, 50.0, ended=1.0),
        run("gpo", 0, 60.0, ended=3.0),
        run("gpo", 0, 70.0, ended=2.0),
        run("gpo", 1, 62.0),
        run("max", 0, status="FAILED"),
        run("max", 1, status="RUNNING"),
        run("mean", 0, metrics={"train/loss": 1.0}),
        run("all", kind="comparison"),
        replace(run("lse", metrics={"dev/rsum": 1.0}), params={"test": "False"}),
    )
    (row,) = found.groups[0].rows
    assert (row.label, row.seeds, len(row.runs)) == ("gpo", ("0", "1"), 2)
    assert found.groups[0].rows[0].values["rsum"] == (60.0, 62.0)
    assert found.notes == (
        "2 runs left out, not finished: max seed 0 (failed), max seed 1 (running)",
        "1 run left out, without scores to show: mean seed 0 (finished)",
        "gpo (whole) seed 0 finished 3 times; the latest is shown, run id-gpo-0-3",
    )
    assert all(note in found.text(details=True) and f"- {note}" in found.markdown() for note in found.notes)


def test_untested_runs_are_compared_once_scored(compared):
    grid = replace(run(kind="sweep"), run_id="grid", params={"seeds": "2"})
    tuning = replace(run(kind="sweep"), run_id="tuning", params={"seeds": "2", "budget": "3"})
    tested = replace(run("gpo", 0, 60.0), params={"seed": "0", "test": "True"})
    later, of_grid, trial = (
        replace(run("gpo", seed, 50.0 + seed, **tags), params={"seed": str(seed), "test": "False"})
        for seed, tags in ((1, {}), (2, {PARENT: "grid"}), (1000, {PARENT: "tuning"}))
    )
    (row,) = compared(tested, later, of_grid, trial, grid, tuning).groups[0].rows
    assert (row.label, row.seeds, row.values["rsum"]) == ("gpo", ("0", "1", "2"), (60.0, 51.0, 52.0))


MANY = [run(name, seed) for name in ("gpo", "kmax(k=2)", "mean") for seed in (0, 1)]


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ([run(kind="comparison")], {}, "has no runs to compare; train some"),
        (
            [run(status="FAILED")],
            {},
            r"nothing to compare yet; 1 run left out, not finished: gpo seed 0 \(failed\)",
        ),
        ([run()], {"protocol": "whale"}, r"unknown protocol 'whale'\. Did you mean 'whole'"),
        ([run()], {"metric": "i2t/medrank"}, r"unknown metric 'i2t/medrank'. Did you mean 'i2t/medr'\?"),
        (
            MANY,
            {"choice": Choice(aggregators=("kmax",))},
            r"unknown aggregator of the experiment 'kmax'.*kmax\(k=2\)",
        ),
        (MANY, {"choice": Choice(recipes=("mini2",))}, "unknown recipe of the experiment 'mini2'"),
        (MANY, {"choice": Choice(data=("coco",))}, "unknown dataset of .* Did you mean 'coco_mini'"),
        ([run(features="cells")], {"choice": Choice(features=("cls",))}, "unknown features of .*: cells"),
        (MANY, {"baseline": "men"}, r"unknown row for --baseline 'men'\. Did you mean 'mean'"),
        (
            [run("gpo"), run("gpo", recipe="bert")],
            {"baseline": "gpo"},
            "whole: --baseline 'gpo' means 2 rows; write the whole name of one: gpo, bert; gpo, mini",
        ),
    ],
)
def test_missing_runs_and_unknown_names_are_refused(compared, runs, options, message):
    with pytest.raises(InputError, match=message):
        compared(*runs, **options)


def test_choice_filters_by_data_and_features(compared):
    def of(aggregator: str, *, place: str = "", **tags: str) -> RunRecord:
        made = run(aggregator, **tags)
        return replace(made, params={**made.params, "data.features": place, "visual": "cnn(width=8)"})

    runs = [
        of("gpo", dataset="mine", features="cells"),
        of("max", dataset="mine", place="/far/data/mine/regions"),  # as in archives without the tag
        of("mean", dataset="other", place="/far/data/other/cells"),
        of("esa", dataset="mine"),
    ]

    def labels(**choice: str) -> set[str]:
        chosen = Choice(**{name: (value,) for name, value in choice.items()})
        return {row.aggregator for group in compared(*runs, choice=chosen).groups for row in group.rows}

    assert labels(data="mine") == {"gpo", "max", "esa"}
    assert labels(features="cells") == {"gpo", "mean"}
    assert labels(features="cells", data="mine") == {"gpo"}
    assert labels(features="/far/data/mine/regions") == labels(features="regions") == {"max"}
    assert labels(features="cnn") == {"esa"}


def test_compare_command_writes_tables_and_logs_run(tmp_path, home, capsys):
    uri, markdown, latex = tracking_uri(home), tmp_path / "out" / "t.md", tmp_path / "out" / "t.tex"
    for at, aggregator in enumerate(("gpo", "mean")):
        image, metrics = retrieval(40, seed=1, shift=at)
        answer, accuracy = answers(seed=at)
        of_images = {f"whole/{name}": value for name, value in metrics.items()}
        for made, protocol, queries in (
            (run(aggregator, metrics=of_images), "whole", renamed(image, np.arange(40).astype(str))),
            (vqa(aggregator, 0, accuracy), "vqa", answer),
        ):
            tracker = begun(made, home)
            tracker.log({**made.metrics, "weights/aggregators": 10.0}, step=1)
            if (aggregator, protocol) != ("mean", "vqa"):
                np.savez_compressed(tmp_path / f"{protocol}.npz", **queries.arrays)
                tracker.artifact(tmp_path / f"{protocol}.npz", "per_query")
                tracker.text(f"per_query/{protocol}.json", queries_json(queries.metrics))
            tracker.finish()
    assert exit_code(module.main) == 0
    first = capsys.readouterr().out
    with pytest.raises(AbsentError):
        find_runs(uri, "polypool-comparisons")
    assert (
        exit_code(module.main, "--markdown", markdown, "--latex", latex, "--pairs", "--details", "--log") == 0
    )
    shown = capsys.readouterr().out
    assert "task x aggregator" in shown
    assert "mean (vqa) is not compared by its queries" in shown
    assert "has no artifact per_query/vqa.npz" in " ".join(shown.split())
    assert latex.read_text().count("\\toprule") == shown.count("\n─")
    (logged,) = find_runs(uri, "polypool-comparisons")
    assert f"in run {logged.run_id} of 'polypool-comparisons'" in shown
    assert {**logged.tags, "kind": "comparison", "compared": "polypool"} == logged.tags
    summary = Tracker.attach(uri, logged.run_id, running=False)
    assert summary.download("compare.md").read_text() == markdown.read_text()
    for picture in ("compare.png", "heat_map.png"):
        assert summary.download(picture).stat().st_size > 5_000
    assert loaded() == ["['mlflow']"]
    assert exit_code(module.main) == 0
    assert capsys.readouterr().out == first, "logged comparisons must not be compared"
    assert exit_code(module.main, "--experiment", "polypol") == 2
    assert "Did you mean 'polypool'?" in capsys.readouterr().err


def loaded() -> list[str]:
    """Return the slow packages that `compare` and `runs`, run in one process, have imported."""
    code = """
import sys
from polypool.pipelines.commands import compare, runs
for verb, words in ((compare, ["compare"]), (runs, ["runs"])):
    sys.argv = words
    verb.main()
print([name for name in ("matplotlib", "mlflow", "ray", "torch") if name in sys.modules])
"""
    status, out, err = end(begin("-c", code, env={**os.environ, "PYTHONPATH": str(ROOT)}))
    assert status == 0, err
    return out.splitlines()[-1:]


def test_baseline_is_found_by_row_or_aggregator_name():
    (group,) = blocks_of(run("gpo", text_aggregator="mean"), run("gpo"), run("max", text_aggregator="mean"))
    names = {"gpo": "gpo", "gpo, text mean": "gpo, text mean", "max": "max, text mean", "mean": "", "": ""}
    assert {name: baseline_row(group, name) for name in names} == names


def test_best_run_must_be_trained(compared):
    runs = [run("gpo", rsum=60.0), run("gpo", 1, rsum=70.0), run("mean", rsum=10.0)]
    assert compared(*runs).best_run == runs[1]
    transfer = replace(run("max"), tags={**run("max").tags, "kind": "transfer"})
    assert compared(transfer).best_run is None


def test_methods_table_adds_published_results():
    shown = methods("t", "f8k-1k", "rsum", {"gpo": 235.0})
    assert [row[:2] for row in shown.rows][1:3] == [("UVSE, the released code", "247.4"), ("gpo", "235.0")]
    assert shown.header == ("method", "rsum", "source")
    assert methods("t", "whole", "rsum", {"gpo": 235.0}) is None
