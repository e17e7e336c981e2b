from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from records import blocks_of, run, three_tasks
from verbs import exit_code

from polypool.infra.errors import InputError
from polypool.pipelines.commands import compare, sweep
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.cross_task import cross_task_table
from polypool.pipelines.comparison.documents import draw_figures, rendered, renewed
from polypool.pipelines.comparison.results import groups_of, read_results, results, write_results
from polypool.pipelines.comparison.rows import Group
from polypool.pipelines.comparison.statistics import Difference, Judged

ORIGIN = {
    "git_commit": "1" * 40,
    "command": "polypool sweep --aggregators mean 'kmax(k=5)', x",
    "data.corpus": "c" * 64,
    "data.features": "f" * 64,
}


def judged_groups() -> tuple[Group, ...]:
    """Return three tables of two seeds, the first one with tests, of runs with provenance tags."""
    runs = [replace(made, tags={**made.tags, **ORIGIN}) for made in three_tasks()]
    runs[0] = replace(runs[0], tags={**runs[0].tags, "git_commit": "2" * 40, "git_dirty": "true"})
    first, *others = blocks_of(*runs)
    best, *rest = (row.label for row in first.rows)
    judged = Judged(
        units="1,064 images with their captions",
        labels=(best, *rest),
        intervals={row.label: (40.0, 75.25) for row in first.rows},
        best={
            best: Difference(value=10.0, low=-2.0, high=22.0, p=0.9, over_seeds=True),
            rest[0]: Difference(value=-10.0, low=-22.0, high=2.0, p=0.2, over_seeds=True),
            rest[1]: Difference(value=-20.0, low=-32.0, high=0.0, p=1 / 3000, over_seeds=False),
        },
        baseline=rest[0],
        against={
            best: Difference(value=10.0, low=-3.0, high=23.0, p=0.3, over_seeds=True),
            rest[1]: Difference(value=-10.0, low=-19.0, high=-1.0, p=0.04, over_seeds=False),
        },
    )
    return (replace(first, judged=judged), *others)


def test_records_hold_scores_uncertainty_and_provenance():
    records = results(judged_groups(), compared_by="me")
    of_images = records[records["task"] == "image_text"]
    gpo, mean = (
        of_images[of_images["decides"] & (of_images["row"] == row)].iloc[0] for row in ("gpo", "mean")
    )
    for of, expected in (
        (gpo, {"metric": "rsum", "mean": 70, "deviation": pytest.approx(math.sqrt(2)), "step_cost": 40}),
        (gpo, {"seeds": "0; 1", "values": "69; 71", "low": 40, "high": 75.25, "against": "mean"}),
        (mean, {"against": "gpo", "difference": -10, "difference_low": -22, "difference_high": 2, "p": 0.2}),
        (
            mean,
            {"over_seeds": True, "may_be_best": True, "baseline": "", "commits": f"{'2' * 40}+; {'1' * 40}"},
        ),
        (gpo, {"baseline": "mean", "baseline_difference": 10, "baseline_low": -3, "baseline_p": 0.3}),
        (gpo, {"data": f"corpus={'c' * 64}; features={'f' * 64}", "command": ORIGIN["command"]}),
        (mean, {"run_ids": "id-mean-0-0; id-mean-1-0", "compared_by": "me", "trials": 0}),
    ):
        assert of[[*expected]].to_dict() == expected
    assert {*of_images["metric"]} == {"rsum", *(f"{way}/R{k}" for way in ("i2t", "t2i") for k in (1, 5, 10))}
    assert records[~records["decides"]]["difference"].isna().all()


def test_tables_from_results_equal_tables_from_runs():
    groups = judged_groups()
    again = groups_of(results(groups))
    ours, theirs = again[0].judged, groups[0].judged
    assert (ours.labels, ours.units, ours.intervals) == (theirs.labels, theirs.units, theirs.intervals)
    assert (ours.confidence_set, ours.best["mean"]) == (("gpo", "mean"), theirs.best["mean"])
    assert (ours.baseline, ours.against) == (theirs.baseline, theirs.against)
    runs = [replace(made, params={**made.params, "optim.epochs": "10"}) for made in three_tasks()]
    runs[0] = replace(runs[0], params={**runs[0].params, "optim.epochs": "1"})
    other = blocks_of(*runs)
    assert other[0].usual
    for given, read in ((groups, again), (other, groups_of(results(other)))):
        assert [group.usual for group in read] == [group.usual for group in given]
        assert tables.across(cross_task_table(read)) == tables.across(cross_task_table(given))


@pytest.mark.parametrize("name", ["r.csv", "r.parquet", "below/R.CSV"])
def test_result_files_round_trip_with_several_tables(tmp_path, name):
    records, file = results(judged_groups(), compared_by="polypool compare --out 'a b.csv'"), tmp_path / name
    for table in ("photographs", "clips"):
        write_results(records, Path(f"{file}#{table}"))
    write_results(records[:-1], Path(f"{file}#clips"))  # replaces the table
    for table, expected in (("photographs", records), ("clips", records[:-1])):
        read = read_results(Path(f"{file}#{table}"))
        pd.testing.assert_frame_equal(read, expected.assign(table=table), check_dtype=False)
    for path, message in (
        (file, rf"name one, such as {file.name}#clips: clips, ph"),
        (f"{file}#clip", "'clips'"),
    ):
        with pytest.raises(InputError, match=message):
            read_results(Path(path))
    write_results(records, file)  # without a table name the file is overwritten
    pd.testing.assert_frame_equal(read_results(file), records)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_damaged_results_are_refused_and_kept(tmp_path):
    path = tmp_path / "r.csv"
    write_results(results(judged_groups()), path)
    whole = path.read_text()
    for old, new, message in (
        ("69; 71", "69; x", r"r.csv: cannot be read as CSV: could not convert string to float: 'x'"),
        ("69; 71", "69", r"r.csv: cannot be read as CSV: 1 values for the seeds '0; 1', expected one"),
        (",True,", ",yes,", r"r.csv: cannot be read as CSV: .*yes"),
        ("task,dataset", "Task,dataset", r"r.csv: its columns are not those of results that"),
        (whole.partition("\n")[2], "", "has no results"),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new, 1))
        with pytest.raises(InputError, match=message):
            read_results(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="its columns are not those of"):
        write_results(results(judged_groups()), tmp_path / "r.csv#it")
    assert path.read_text() == "a,b\n1,2\n"
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    for name, message in (
        ("r.parquet", "cannot be read as Parquet"),
        ("r.xlsx", r"r.xlsx: results are written as .csv or .parquet"),
        ("gone.csv", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_results(tmp_path / name)


DOCUMENT = """# Title

<!-- table: r.csv -->
old
<!-- end of table -->

between
<!-- table: sub/r.parquet as text -->
<!-- end of table -->
after
"""


def document(folder: Path) -> tuple[Path, pd.DataFrame]:
    first, *others = judged_groups()
    records = results([replace(first, judged=replace(first.judged, baseline="", against={})), *others])
    write_results(records, folder / "r.csv")
    write_results(records, folder / "sub" / "r.parquet")
    path = folder / "doc.md"
    path.write_text(DOCUMENT)
    return path, records


def test_documents_are_updated_only_between_markers(tmp_path, capsys):
    path, records = document(tmp_path)
    verb = partial(exit_code, compare.main, "tables", path)
    assert (verb("--check"), path.read_text()) == (1, DOCUMENT)
    shown = capsys.readouterr().out
    assert shown.count("the table of ") == 2
    assert f"{path}: the table of r.csv is not what its results say" in shown
    assert f"`polypool compare tables {path}` renews them" in shown
    assert verb() == verb("--check") == 0
    first = rendered(records, file="r.csv")
    second = rendered(records, file="sub/r.parquet", as_in_terminal=True)
    new = DOCUMENT.replace("old", first).replace("as text -->", f"as text -->\n{second}")
    assert path.read_text() == new
    assert "| `gpo` | 70.0 ± 1.4\\* | 120.0 ± 1.4 | 30.0 ± 1.4 |" in first
    assert "From [r.csv](r.csv): 6 runs of commits 1111111111, 2222222222+" in " ".join(first.split())
    assert "\n    mean        60.0 ± 1.4*" in second
    path.write_text(new.replace("70.0", "71.0", 1))
    assert verb("--check") == 1


def test_documents_with_bad_markers_are_refused(tmp_path):
    document(tmp_path)
    for text, message in (
        *(
            (text, "x.md: a table is marked by two lines")
            for text in ("nothing", DOCUMENT + "<!-- table: r.csv -->\n")
        ),
        (DOCUMENT.replace("r.csv", "gone.csv"), "gone.csv: no such file; expected results that"),
    ):
        with pytest.raises(InputError, match=message):
            renewed(text, tmp_path, where="x.md")


def test_document_figures_are_drawn_from_results(tmp_path):
    text = "<!-- figure: r.csv -->\n![Differences from the best](lags.png)\n"
    write_results(results(judged_groups()), tmp_path / "r.csv")
    draw_figures(text, tmp_path)
    draw_figures(text.replace("r.csv", "r.csv against r.csv").replace("lags", "two"), tmp_path)
    assert all((tmp_path / f"{name}.png").stat().st_size > 5_000 for name in ("lags", "two"))
    write_results(results(blocks_of(run("gpo"))), tmp_path / "r.csv")
    with pytest.raises(InputError, match="expected one table of at least two rows"):
        draw_figures(text, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--detect", "-1"],
            "--detect must be a difference of the primary metric above 0, such as 1.0, not -1",
        ),
        (["--detect", "nan"], "not nan"),
        (["--out", "x.xlsx"], "x.xlsx: results are written as .csv or .parquet, by the end of the name"),
    ],
)
def test_bad_options_exit_2_before_reading_runs(words, message, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/at/all.db")
    assert (exit_code(compare.main, *words), message in capsys.readouterr().err) == (2, True)
    if words[0] == "--detect":
        assert exit_code(sweep.main, "--recipes", "demo", "--aggregators", "gpo", *words) == 2
        assert message in capsys.readouterr().err
