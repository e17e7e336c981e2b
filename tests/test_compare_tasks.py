"""Comparing over tasks: the grid, ranks, differences, costs, LaTeX, figures, and what is missing."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from records import run, scores
from test_bootstrap import answers, retrieval

from infra.errors import InputError
from infra.registry import AGGREGATORS
from infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from pipelines import compare as module
from pipelines.compare import Comparison, compare, with_bootstrap
from pipelines.comparison import sheets
from pipelines.comparison.arrange import arranged
from pipelines.comparison.blocks import Block
from pipelines.comparison.centre import headline
from pipelines.comparison.cost_figure import spread
from pipelines.comparison.costs import costs_of, weights_of
from pipelines.comparison.critical import cliques, critical_difference, why_not
from pipelines.comparison.grid import Grid, grid_of
from pipelines.comparison.keep import draw_all, note, score_table
from pipelines.comparison.sheet import Sheet, as_latex, as_markdown, as_text

VQA = {"task": "vqa", "dataset": "daquar", "recipe": "daquar", "protocol": "vqa"}
VIDEO = {"task": "video_text", "dataset": "msrvtt", "recipe": "msrvtt", "protocol": "distinct"}


def vqa(aggregator: str, seed: int, accuracy: float, **more) -> RunRecord:
    metrics = {"vqa/accuracy": accuracy, "vqa/chance_accuracy": 20.0, "time/train_seconds": 9.0}
    return run(aggregator, seed, metrics=metrics, **{**VQA, **more})


def blocks_of(*runs: RunRecord) -> tuple[Block, ...]:
    return arranged(runs, experiment="x")[0]


def grid(*runs: RunRecord) -> Grid:
    return grid_of(blocks_of(*runs))


@pytest.fixture
def three() -> list[RunRecord]:
    """Three aggregators on three tasks, over two seeds; chance is an RSUM of 3.2 and an accuracy of 20."""
    table = {"mean": (60.0, 90.0, 40.0), "max": (50.0, 96.0, 40.0), "gpo": (70.0, 120.0, 30.0)}
    runs = []
    for aggregator, (image, video, answer) in table.items():
        for seed in (0, 1):
            off = 2 * seed - 1
            runs += [
                run(aggregator, seed, image + off),
                run(aggregator, seed, video + off, **VIDEO),
                vqa(aggregator, seed, answer + off),
            ]
    return runs


def test_centred_scores_and_ranks_are_those_of_the_formulas(three: list[RunRecord]) -> None:
    found = grid(*three)
    assert [column.title for column in found.columns] == [
        ("image_text", "coco_mini", "whole", "rsum"),
        ("video_text", "msrvtt", "distinct", "rsum"),
        ("vqa", "daquar", "vqa", "accuracy"),
    ]
    mean = {
        name: np.mean([100 * (a - 3.2) / 596.8, 100 * (b - 3.2) / 596.8, 100 * (c - 20) / 80])
        for name, (a, b, c) in {"mean": (60, 90, 40), "max": (50, 96, 40), "gpo": (70, 120, 30)}.items()
    }
    assert {name: found.mean(name) for name in mean} == pytest.approx(mean)
    assert found.aggregators == tuple(sorted(mean, key=lambda name: -mean[name]))
    assert found.mean_ranks == pytest.approx(
        {"mean": (2 + 3 + 1.5) / 3, "max": (3 + 2 + 1.5) / 3, "gpo": 5 / 3}
    )
    text = as_text(sheets.across(found)).splitlines()
    row = next(line for line in text if line.startswith("gpo"))
    assert row.split() == [
        "gpo",
        *["70.0", "±", "1.4", "120.0", "±", "1.4", "30.0", "±", "1.4"],
        f"{mean['gpo']:.1f}",
        "1.7",
    ]
    assert "numbers of different protocols are never in one column" in "\n".join(text)


def test_one_task_has_no_grid_and_protocols_have_a_column_each() -> None:
    both = scores("coco-5k", 300.0) | scores("coco-1k-5fold", 400.0)
    coco = [run(name, dataset="coco", protocol="coco-5k", metrics=both) for name in ("mean", "max", "gpo")]
    assert grid(*coco) is None
    found = grid(*coco, *(vqa(name, 0, 30.0) for name in ("mean", "max", "gpo")))
    assert [column.title[2] for column in found.columns] == ["coco-1k-5fold", "coco-5k", "vqa"]
    assert [column.block.protocol for column in found.counting] == ["coco-5k", "vqa"]
    assert (
        "image_text · coco · coco-1k-5fold is in no mean and no rank: its runs chose another"
        in found.notes[0]
    )
    assert found.mean("mean") == pytest.approx((100 * (300 - 3.2) / 596.8 + 12.5) / 2)


def test_recipes_and_models_have_columns_of_their_own() -> None:
    found = grid(
        run("gpo"),
        run("gpo", recipe="bert"),
        run("gpo", recipe="bert", model="hgr"),
        vqa("gpo", 0, 30.0),
        run("gpo + gpo", kind="ensemble"),
    )
    assert [column.title for column in found.columns] == [
        ("image_text", "coco_mini", "whole", "bert", "rsum"),
        ("image_text", "coco_mini", "whole", "bert", "in hgr", "rsum"),
        ("image_text", "coco_mini", "whole", "mini", "rsum"),
        ("vqa", "daquar", "vqa", "accuracy"),
    ]
    assert found.aggregators == ("gpo",)


def test_aggregators_that_a_task_lacks_and_small_columns_count_in_no_mean() -> None:
    names = ("mean", "max", "gpo", "lip", "gem")
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 40.0 + at) for at, name in enumerate(names[:4])]
    runs += [run(name, **VIDEO) for name in names[:2]]
    found = grid(*runs)
    assert [column.block.task for column in found.counting] == ["image_text", "vqa"]
    assert found.complete == ("gpo", "lip", "max", "mean")
    assert math.isnan(found.mean("gem"))
    assert found.notes == (
        "video_text · msrvtt · distinct is in no mean and no rank: it has fewer than half of the aggregators of the "
        "largest column",
        "without mean and rank, since a column lacks them: gem",
    )
    unknown = grid(
        run("gpo"), vqa("gpo", 0, 30.0), run("gpo", task="sorting", protocol="s", metrics={"s/tau": 0.4})
    )
    assert "chance or the best possible value of tau is not known" in unknown.notes[0]
    apart = grid(run("gpo"), vqa("max", 0, 30.0))
    assert apart.notes == ("no means and no ranks: no aggregator is in every column that counts",)
    assert "centred" not in as_text(sheets.across(apart))


def test_missing_seeds_are_said() -> None:
    _, notes = arranged([run("gpo", 0), run("gpo", 1), run("max", 0), run("mean", 2)], experiment="x")
    assert notes == (
        "image_text · coco_mini · whole: seeds are missing, so rows are means over different ones: gpo 2; max 1, 2; "
        "mean 0, 1",
    )


class Kept:
    """Per-query results by run id, as `read_arrays` returns them."""

    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, np.ndarray]] = {}

    def __call__(self, run: RunRecord, protocol: str) -> dict[str, np.ndarray]:
        if run.run_id not in self.arrays:
            raise InputError(f"run {run.run_id} has no artifact per_query/{protocol}.npz")
        return self.arrays[run.run_id]

    def record(self, aggregator: str, seed: int, shift: float, *, draw: int = 0) -> RunRecord:
        arrays, metrics = retrieval(60, seed=draw + seed, shift=shift)
        arrays["image_id"] = np.arange(60).astype(str)
        made = run(aggregator, seed, metrics={f"whole/{name}": value for name, value in metrics.items()})
        self.arrays[made.run_id] = arrays
        return made


def test_real_differences_are_told_from_others_and_missing_files_are_said() -> None:
    kept = Kept()
    runs = [kept.record("gpo", seed, 0.0) for seed in (0, 1)]
    runs += [
        kept.record("max", seed, 0.1, draw=50) for seed in (0, 1)
    ]  # other luck, not the same a little worse
    runs += [kept.record("mean", seed, 1.5) for seed in (0, 1)]
    runs += [kept.record("lip", seed, 0.8) for seed in (0, 1)]
    del kept.arrays[runs[-1].run_id]
    blocks, _ = arranged(runs, experiment="x")
    found = with_bootstrap(Comparison(experiment="x", blocks=blocks, notes=("first",)), kept)
    (block,) = found.blocks
    assert block.bootstrap.labels == ("gpo", "max", "mean")
    assert not block.bootstrap.difference("gpo", "max").real
    assert block.bootstrap.difference("gpo", "mean").real
    assert block.bootstrap.difference("gpo", "mean").value == pytest.approx(
        block.rows[0].mean("rsum") - next(row for row in block.rows if row.label == "mean").mean("rsum"),
        abs=1e-3,
    )
    gone = f"run {runs[-1].run_id} has no artifact per_query/whole.npz"
    assert found.notes == ("first", f"lip (whole) is left out of the bootstrap: {gone}")
    lines = {line.split()[0]: line for line in as_text(sheets.scores(block)).splitlines()[5:] if line.strip()}
    assert [("*" in lines[name]) for name in ("gpo", "max", "lip", "mean")] == [False, True, False, False]
    assert "*: no real difference from gpo" in as_text(sheets.scores(block))
    table = as_text(sheets.differences(block, costs=False)).splitlines()
    assert [line.split()[-1] for line in table[-4:]] == ["\u2013", "no", "\u2013", "yes"]
    pairs = sheets.all_pairs(block)
    assert [cells[0] for cells in pairs.rows] == ["gpo against max", "gpo against mean", "max against mean"]
    assert "gpo against max" in replace(found, pairs=True).text()
    assert "gpo against max" not in found.text()


def test_rows_scored_on_other_queries_or_with_other_values_are_left_out() -> None:
    kept = Kept()
    runs = [kept.record(name, 0, 0.1 * at) for at, name in enumerate(("gpo", "max", "mean"))]
    kept.arrays[runs[1].run_id]["image_id"] = np.arange(1, 61).astype(str)
    kept.arrays[runs[2].run_id]["i2t_rank"] = np.zeros(60)
    blocks, _ = arranged(runs, experiment="x")
    found = with_bootstrap(Comparison(experiment="x", blocks=blocks, notes=()), kept)
    assert found.blocks[0].bootstrap is None
    assert "max (whole) is left out of the bootstrap: it was scored on other queries" in found.notes[0]
    assert "mean (whole) is left out of the bootstrap: its queries give rsum" in found.notes[1]


def test_costs_are_logged_ones_or_follow_from_the_specs() -> None:
    def given(metrics=(), params=(), **tags) -> RunRecord:
        made = run("gpo", metrics={"whole/rsum": 60.0, **dict(metrics)}, **tags)
        return replace(made, params={**made.params, **dict(params)})

    specs = {"visual": "regions(width=64)", "text": "bigru"}
    own = [sum(p.numel() for p in AGGREGATORS.build("lip", width).parameters()) for width in (64, 1024)]
    made = replace(given(params=specs), tags={**given().tags, "aggregator": "lip", "text_aggregator": "lip"})
    assert weights_of(made) == sum(own)
    assert weights_of(given({"weights/aggregators": 5.0}, specs)) == 5.0
    assert math.isnan(weights_of(given(params={**specs, "visual": "nowhere"})))
    assert math.isnan(weights_of(given(params=specs, model="hgr")))
    (block,) = blocks_of(
        given({"train/samples_per_second": 500.0, "time/embed_ms": 2.0}, {"optim.batch": "128"})
    )
    costs = costs_of(block.rows[0])
    assert (costs.step_ms, costs.embed_ms) == (256.0, 2.0)
    (block,) = blocks_of(
        given({"train/samples_per_second": 500.0, "time/step_ms": 3.0}, {"optim.batch": "128"})
    )
    assert costs_of(block.rows[0]).step_ms == 3.0
    (line,) = sheets.differences(block).rows
    assert line == ("gpo", "3.0")


def test_the_critical_difference_is_that_of_the_paper() -> None:
    # Demsar 2006, section 3.2.2: four classifiers on 14 data sets; 1.25 by its table 5(a), q = 2.569
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    ranks = np.array([1.0, 1.5, 2.4, 4.0, 5.0])  # the last two are exactly the difference apart, and differ
    assert cliques(ranks, 1.0) == [(0, 1), (1, 2)]
    assert cliques(ranks, 0.1) == []
    assert cliques(ranks, 9.0) == [(0, 4)]


def test_too_few_tasks_or_aggregators_have_no_critical_difference(
    three: list[RunRecord], tmp_path: Path
) -> None:
    assert why_not(grid(*three)) == ""
    assert "two tasks" in why_not(None)
    two = grid(*(made for made in three if made.tags["aggregator"] != "gpo"))
    assert "three aggregators" in why_not(two)
    found = Comparison(experiment="x", blocks=tuple(column.block for column in two.columns), notes=())
    assert found.remarks == (why_not(two),)
    files = [path.name for path in draw_all(found.blocks, two, tmp_path)]
    assert files == ["compare.png", "costs.png", "heat_map.png"]


@pytest.mark.parametrize("count", [3, 20])
def test_figures_are_drawn_for_few_and_many_long_names(count: int, tmp_path: Path) -> None:
    names = ["gpo", *(f"slots(k={k}, iterations=4, heads=2, head_width=96)" for k in range(1, count))]
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 30.0 + at % 7) for at, name in enumerate(names)]
    blocks = blocks_of(*runs)
    files = draw_all(blocks, grid_of(blocks), tmp_path)
    assert [path.stem for path in files] == ["compare", "costs", "heat_map", "critical_difference"]
    for path in files:
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(maxcolors=1 << 20)) > 10
            edge = np.asarray(image.convert("L"))
            assert min(edge[0].min(), edge[-1].min(), edge[:, 0].min(), edge[:, -1].min()) == 255, (
                "nothing is cut"
            )


def test_labels_that_are_spread_do_not_overlap() -> None:
    wanted, sizes = np.array([0.1, 0.1, 0.15, 3.0, 3.9, 3.95]), np.array([0.2, 0.4, 0.2, 0.2, 0.2, 0.2])
    places = spread(wanted, sizes, 4.0)
    assert np.all(np.diff(places) >= (sizes[1:] + sizes[:-1]) / 2 - 1e-9)
    assert places[0] - sizes[0] / 2 >= -1e-9
    assert places[-1] + sizes[-1] / 2 <= 4 + 1e-9
    assert places[3] == pytest.approx(3.0)


def test_latex_is_escaped_and_balanced(three: list[RunRecord]) -> None:
    blocks = blocks_of(*three, run("kmax(k=5), a_b & c%"))
    text = Comparison(experiment="x", blocks=blocks, notes=("50 % of it",)).latex()
    assert text.startswith("% needs \\usepackage{booktabs}\n% 50 % of it\n")
    assert text.count("\\begin{table}") == text.count("\\end{table}") == text.count("\\bottomrule") == 4
    assert r"\texttt{kmax(k=5), a\_b \& c\%}" in text
    assert r"\textbf{70.0 $\pm$ 1.4}" in text
    body = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert all("±" not in line and "\u2013" not in line for line in body)
    sheet = Sheet(title="t_1", header=("a", "b"), rows=(("x", "-1.0* [-2.0, +3.0]"),))
    assert r"$-$1.0$^{*}$ [$-$2.0, +3.0]" in as_latex(sheet)


def test_wide_tables_go_on_below_and_stay_within_120_columns() -> None:
    header = ("aggregator", *(f"task_{k}\ndata set {k}" for k in range(12)))
    sheet = Sheet(
        title="wide", header=header, rows=((("slots(k=4, heads=2), " * 3), *["100.0 ± 10.0"] * 12),), label=32
    )
    text = as_text(sheet)
    assert max(map(len, text.splitlines())) <= 120
    assert [text.count(f"task_{k}") for k in (0, 5, 9)] == [1, 1, 1]
    assert text.count("aggregator") > 1
    assert as_markdown(sheet).splitlines()[2].count("|") == 14


def test_published_numbers_stand_under_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run("gpo")
    (block,) = blocks_of(replace(made, params={**made.params, "published": "A paper, table 4: RSUM 174.7"}))
    assert "published, mini: A paper, table 4: RSUM 174.7" in as_text(sheets.scores(block))
    assert sheets.scores(blocks_of(run("max"))[0]).notes == ()


def test_headlines_line_up_across_tasks() -> None:
    assert headline({"rsum": 303.2, "chance_rsum": 6.4}, "rsum") == {
        "test/score": 303.2,
        "test/chance": 6.4,
        "test/centred": pytest.approx(50.0),
    }
    assert headline({"tau": 0.5}, "tau") == {"test/score": 0.5}
    assert headline({"questions": 5.0}, "accuracy") == {}


def test_the_table_of_scores_has_a_line_for_each_row(three: list[RunRecord]) -> None:
    table = score_table(blocks_of(*three))
    assert {len(column) for column in table.values()} == {9}
    assert table["aggregator"][:3] == ["gpo", "mean", "max"]
    assert table["centred"][0] == pytest.approx(100 * 66.8 / 596.8, abs=1e-3)
    assert table["difference"] == [None] * 9
    long = Sheet(title="t", header=("a", "b"), rows=tuple(("x" * 50, "1") for _ in range(60)))
    assert note([long, long]).endswith("All tables are in the artifact `compare.md`.")
    assert len(note([long, long])) < 5000


def test_the_verb_compares_tasks_with_their_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = tracking_uri(tmp_path)
    for at, aggregator in enumerate(("gpo", "mean")):
        image, metrics = retrieval(40, seed=1, shift=at)
        image["image_id"] = np.arange(40).astype(str)
        answer, accuracy = answers(seed=at)
        for made, protocol, arrays in (
            (run(aggregator, metrics={f"whole/{n}": v for n, v in metrics.items()}), "whole", image),
            (vqa(aggregator, 0, accuracy), "vqa", answer),
        ):
            start = {
                "uri": uri,
                "home": tmp_path,
                "name": made.name,
                "tags": made.tags,
                "params": made.params,
            }
            tracker = Tracker.start("polypool", **start)
            tracker.log(made.metrics, step=1)
            if (aggregator, protocol) != ("mean", "vqa"):
                np.savez_compressed(tmp_path / f"{protocol}.npz", **arrays)
                tracker.artifact(tmp_path / f"{protocol}.npz", "per_query")
            tracker.finish()
    monkeypatch.setattr(sys, "argv", ["compare", "--latex", str(tmp_path / "out" / "t.tex"), "--pairs"])
    module.main()
    shown = capsys.readouterr().out
    assert max(map(len, shown.partition("written to")[0].splitlines())) <= 120
    assert "over 40 images with their captions" in shown
    assert "task x aggregator" in shown
    assert "mean (vqa) is left out of the bootstrap" in shown
    assert "has no artifact per_query/vqa.npz" in " ".join(shown.split())
    assert "image_text · coco_mini · whole: all pairs" in shown
    assert (tmp_path / "out" / "t.tex").read_text().count("\\toprule") == shown.count("\n---")
    (kept,) = [found for found in find_runs(uri, "polypool") if found.tags["kind"] == "comparison"]
    summary = Tracker.attach(uri, kept.run_id, running=False)
    assert "task x aggregator" in kept.tags["mlflow.note.content"]
    assert summary.download("heat_map.png").stat().st_size > 5_000
    assert summary.read_json("task_by_aggregator.json")["columns"][0] == "aggregator"
    assert len(summary.read_json("scores.json")["data"]) == 4
    assert compare(uri, "polypool").grid is not None
