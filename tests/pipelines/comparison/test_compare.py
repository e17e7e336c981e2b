from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image
from records import SIX, run, scores

from polypool.infra.errors import InputError
from polypool.infra.text_tables import as_markdown, as_text
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import compare as module
from polypool.pipelines.comparison import comparison as comparing
from polypool.pipelines.comparison.charts import drawing
from polypool.pipelines.comparison.charts.drawing import draw_bars
from polypool.pipelines.comparison.comparison import Comparison, compare
from polypool.pipelines.comparison.groups import Group, Row
from polypool.pipelines.comparison.tables.score_tables import scores as table
from polypool.pipelines.figures.style import save
from polypool.tasks.adapter import Metric
from polypool.tasks.scoring.described import RSUM

NONE = "\u2013"  # an en dash


def compared(monkeypatch: pytest.MonkeyPatch, *runs: RunRecord, **options: str) -> Comparison:
    monkeypatch.setattr(comparing, "find_runs", lambda uri, experiment, finished: list(runs))
    return compare("sqlite:///x", "polypool", significance=False, **options)


def test_rows_hold_mean_and_sample_deviation_and_the_best_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [run("mean", seed, 54.0 + 6 * seed) for seed in range(3)] + [
        run("gpo", 0, 66.0),
        run("max", 0, 30.0),
    ]
    (group,) = compared(monkeypatch, *runs).groups
    assert [row.label for row in group.rows] == ["gpo", "mean", "max"]
    assert (group.rows[1].mean("rsum"), group.rows[1].deviation("rsum")) == (60.0, 6.0)
    title, legend, _, header, rule, gpo, mean, _ = as_text(table(group)).splitlines()
    assert title == "image_text · coco_mini · whole"
    assert legend == "sorted by rsum; mean ± sample standard deviation over runs; chance rsum 3.2"
    names = ["aggregator", "runs", "rsum", *(name.replace("/", " ") for name in SIX), "train s"]
    assert header.split() == " ".join(names).split()
    assert gpo.split() == ["gpo", "1", "66.0", "±", NONE, *["11.0", "±", NONE] * 6, "80"]
    assert mean.split() == ["mean", "3", "60.0", "±", "6.0", *["10.0", "±", "1.0"] * 6, "80"]
    assert len({len(line) for line in (header, rule, gpo, mean)}) == 1


def test_other_protocols_tasks_and_data_never_share_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (
        scores("coco-5k", 300.0) | scores("coco-1k-5fold", 400.0) | scores("dev", 1.0) | scores("val-1k", 2.0)
    )
    runs = [
        run("gpo", dataset="coco", protocol="coco-5k", metrics=both),
        run("max", dataset="coco", protocol="coco-5k"),
        run("gpo"),
        run("gpo", dataset="other"),
        run("gpo", task="vqa", protocol="vqa2", metrics={"vqa2/accuracy": 61.0, "vqa2/number": 40.0}),
    ]
    titles = [group.title for group in compared(monkeypatch, *runs).groups]
    assert titles == [
        "image_text · coco · coco-1k-5fold",
        "image_text · coco · coco-5k",
        "image_text · coco_mini · whole",
        "image_text · other · whole",
        "vqa · vqa2 · vqa2".replace("vqa2 ·", "coco_mini ·"),
    ]
    assert compared(monkeypatch, *runs).notes == (
        "image_text · coco has a table each for the protocols coco-1k-5fold, coco-5k, whose numbers cannot be compared",
    )
    vqa = compared(monkeypatch, *runs).groups[-1]
    assert (vqa.metric.name, vqa.columns) == ("accuracy", ("accuracy", "number"))
    (only,) = compared(monkeypatch, *runs, protocol="val-1k").groups
    assert (only.title, only.rows[0].mean("rsum")) == ("image_text · coco · val-1k", 2.0)


def test_rows_are_told_apart_by_recipe_text_aggregator_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        run("gpo"),
        run("gpo", text_aggregator="mean"),
        run("gpo + gpo", kind="ensemble"),
        run("gpo", model="hgr"),
    ]
    labels = {row.label for row in compared(monkeypatch, *runs).groups[0].rows}
    assert labels == {"gpo", "gpo, text mean", "ensemble: gpo + gpo", "gpo in hgr"}
    labels = {
        row.label for row in compared(monkeypatch, run("gpo"), run("gpo", recipe="bert")).groups[0].rows
    }
    assert labels == {"gpo, mini", "gpo, bert"}


def test_what_is_left_out_or_odd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(
        monkeypatch,
        run("gpo", 0, 50.0, ended=1.0),
        run("gpo", 0, 60.0, ended=3.0),
        run("gpo", 0, 70.0, ended=2.0),
        run("gpo", 1, 62.0),
        run("max", 0, status="FAILED"),
        run("max", 1, status="RUNNING"),
        run("mean", 0, metrics={"train/loss": 1.0}),
        run("all", kind="comparison"),
    )
    (row,) = found.groups[0].rows
    assert (row.label, row.seeds, len(row.runs)) == ("gpo", ("0", "1"), 2)
    assert found.groups[0].rows[0].values["rsum"] == (60.0, 62.0)
    assert found.notes == (
        "2 runs left out, not finished: max seed 0 (failed), max seed 1 (running)",
        "1 run left out, without scores to show: mean seed 0 (finished)",
        "gpo (whole) seed 0 finished 3 times; the latest is shown, run id-gpo-0-3",
    )
    assert all(note in found.text() and f"- {note}" in found.markdown() for note in found.notes)


def test_the_metric_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run("gpo", rsum=60.0), run("max", rsum=50.0)]
    (group,) = compared(monkeypatch, *runs, metric="i2t/medr").groups
    assert [row.label for row in group.rows] == ["gpo", "max"], "a low median rank is a good one"
    assert group.columns[:2] == ("i2t/medr", "rsum")
    with pytest.raises(InputError, match=r"unknown metric 'i2t/medrank'. Did you mean 'i2t/medr'\?"):
        compared(monkeypatch, *runs, metric="i2t/medrank")


def test_nothing_to_compare_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="has no runs to compare; train some"):
        compared(monkeypatch, run(kind="comparison"))
    with pytest.raises(
        InputError, match=r"nothing to compare yet; 1 run left out, not finished: gpo seed 0 \(failed\)"
    ):
        compared(monkeypatch, run(status="FAILED"))
    with pytest.raises(InputError, match=r"unknown protocol 'whale'\. Did you mean 'whole'"):
        compared(monkeypatch, run(), protocol="whale")


def test_long_names_keep_the_table_within_120_columns_and_markdown_whole() -> None:
    label = "adpool(per_channel=True, relu=False, width=1024), text kmax(k=5) | x"
    values = dict.fromkeys(("rsum", *SIX, "train s"), (300.0, 310.5))
    rows = (Row(label=label, seeds=("0", "1"), values=values), Row(label="max", seeds=("0",), values={}))
    described = (RSUM, *(Metric(name=name, best=100.0, unit="%") for name in SIX))
    group = Group(
        task="image_text", dataset="coco", protocol="coco-5k", metric=RSUM, metrics=described, rows=rows
    )
    lines = as_text(table(group)).splitlines()
    assert max(map(len, lines)) <= 120
    assert "width=1024)" in " ".join(lines)
    markdown = as_markdown(table(group)).splitlines()
    assert label.replace("|", "\\|") in markdown[-2]
    assert {line.replace("\\|", "").count("|") for line in markdown[-4:]} == {11}
    assert markdown[-1] == "| `max` | 1 |" + f" {NONE} |" * 8


def test_the_figure_is_drawn_for_any_number_of_rows_and_runs(tmp_path: Path) -> None:
    rows = [Row(label=f"kmax(k={i})", seeds=("0", "1"), values={"rsum": (50.0 + i, 52.0)}) for i in range(12)]
    rows += [
        Row(label="one", seeds=("0",), values={"rsum": (40.0,)}),
        Row(label="none", seeds=("0",), values={}),
    ]
    groups = [
        Group(task="t", dataset="d", protocol=str(n), metric=RSUM, rows=tuple(rows[-n:])) for n in (1, 2, 14)
    ]
    save(draw_bars(groups), tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width == 1360
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 20)) > 10


def test_aggregators_that_are_asked_for_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run(name, seed) for name in ("gpo", "kmax(k=2)", "mean") for seed in (0, 1)]
    (group,) = compared(monkeypatch, *runs, aggregators=("kmax(k = 2)", "gpo")).groups
    assert {row.label for row in group.rows} == {"gpo", "kmax(k=2)"}
    with pytest.raises(InputError, match=r"unknown aggregator of the experiment 'kmax'.*kmax\(k=2\)"):
        compared(monkeypatch, *runs, aggregators=("kmax",))


def test_recipes_that_are_asked_for_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run("gpo", recipe="mine"), run("gpo", 1), run("max", recipe="mine")]
    (group,) = compared(monkeypatch, *runs, recipes=("mine",)).groups
    assert {row.label: row.seeds for row in group.rows} == {"gpo": ("0",), "max": ("0",)}
    with pytest.raises(InputError, match="unknown recipe of the experiment 'mini2'"):
        compared(monkeypatch, *runs, recipes=("mini2",))


def test_the_verb_prints_and_keeps_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = tracking_uri(tmp_path)
    for aggregator, rsum in (("gpo", 60.0), ("mean", 50.0)):
        made = run(aggregator, rsum=rsum)
        start = {"uri": uri, "home": tmp_path, "name": made.name, "tags": made.tags, "params": made.params}
        tracker = Tracker.start("polypool", **start)
        tracker.log(made.metrics, step=1)
        tracker.finish()

    def verb(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["compare", *arguments])
        module.main()
        return capsys.readouterr().out

    first = verb("--markdown", str(tmp_path / "out" / "table.md"))
    assert f"to see all runs: mlflow ui --backend-store-uri {shlex.quote(uri)}\n" in first
    assert first.endswith("/runs?workflowType=machine_learning&viewStateShareKey=polypool\n")
    (kept,) = find_runs(uri, "polypool-comparisons")
    assert f"kept with figures in run {kept.run_id} of 'polypool-comparisons'" in first
    summary = Tracker.attach(uri, kept.run_id, running=False)
    assert summary.download("compare.md").read_text() == (tmp_path / "out" / "table.md").read_text()
    assert summary.download("compare.png").stat().st_size > 10_000
    assert f"| `gpo` | 1 | 60.0 ± {NONE} |" in (tmp_path / "out" / "table.md").read_text()
    again = verb("--no-log")
    assert again.split("\n\n")[:2] == first.split("\n\n")[:2], "a comparison compares no comparisons"
    assert (len(find_runs(uri, "polypool")), len(find_runs(uri, "polypool-comparisons"))) == (2, 1)
    assert {**kept.tags, "kind": "comparison", "compared": "polypool"} == kept.tags
    with pytest.raises(SystemExit) as stop:
        verb("--experiment", "polypol")
    assert stop.value.code == 2
    assert "Did you mean 'polypool'?" in capsys.readouterr().err


def test_a_figure_that_cannot_be_drawn_fails_the_run_that_was_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(groups: object) -> None:
        raise InputError("no room")

    monkeypatch.setattr(drawing, "draw_bars", draw)
    found = compared(monkeypatch, run("gpo"), run("mean"))
    uri = tracking_uri(tmp_path)
    with pytest.raises(InputError, match="no room"):
        found.log(uri, folder=tmp_path)
    (kept,) = find_runs(uri, "polypool-comparisons", finished=False)
    assert kept.status == "FAILED"
