from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image
from records import blocks_of, run, three_tasks, vqa
from verbs import exit_code

from polypool.infra.errors import InputError
from polypool.infra.text_tables import as_text
from polypool.pipelines.commands import compare, sweep
from polypool.pipelines.comparison.documents import draw_figures, rendered, renewed
from polypool.pipelines.comparison.groups import Group
from polypool.pipelines.comparison.result_files import read_results, write_results
from polypool.pipelines.comparison.results import APART, Result, groups_of, results
from polypool.pipelines.comparison.statistics.intervals import Difference
from polypool.pipelines.comparison.statistics.significance import Judged
from polypool.pipelines.comparison.tables import score_tables as report
from polypool.pipelines.comparison.tables.cross_task import cross_task_table

ORIGIN = {
    "git_commit": "1" * 40,
    "command": "polypool sweep --aggregators mean 'kmax(k=5)', x",
    "data.corpus": "c" * 64,
    "data.features": "f" * 64,
}


def judged_groups() -> tuple[Group, ...]:
    """Return three tables over two seeds, of which the first is judged, and runs that say what they came from."""
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
            rest[1]: Difference(value=-10.0, low=-19.0, high=-1.0, p=0.04, over_seeds=True),
        },
    )
    return (replace(first, judged=judged), *others)


@pytest.mark.parametrize("name", ["r.csv", "r.parquet", "below/R.CSV"])
def test_results_are_read_back_as_they_were(tmp_path, name):
    records = results(judged_groups(), compared_by="polypool compare --out 'a b.csv'")
    write_results(records, tmp_path / name)
    assert read_results(tmp_path / name) == records
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [Path(name).name]
    if name == "r.parquet":
        table = pq.read_table(tmp_path / name)
        kinds = [table.schema.field(field).type for field in ("mean", "p", "higher_is_better")]
        assert (table.num_rows, kinds) == (len(records), ["double", "double", "bool"])


def test_a_record_says_what_was_measured_how_sure_and_where_it_came_from():
    records = results(judged_groups(), compared_by="me")
    gpo, mean = (
        next(of for of in records if (of.task, of.row, of.decides) == ("image_text", row, True))
        for row in ("gpo", "mean")
    )
    assert (gpo.metric, gpo.mean, gpo.seeds, gpo.values) == ("rsum", 70.0, "0; 1", "69; 71")
    assert gpo.deviation == pytest.approx(math.sqrt(2))
    assert (gpo.low, gpo.high, gpo.against, gpo.difference) == (40.0, 75.25, "mean", 10.0)
    assert (mean.against, mean.difference, mean.difference_low, mean.difference_high) == ("gpo", -10, -22, 2)
    assert (mean.p, mean.over_seeds, mean.may_be_best) == (0.2, True, True)
    assert (mean.baseline, gpo.baseline) == ("", "mean")
    assert (gpo.baseline_difference, gpo.baseline_low, gpo.baseline_high, gpo.baseline_p) == (10, -3, 23, 0.3)
    assert gpo.step_cost == 40.0
    assert gpo.data == f"corpus={'c' * 64}; features={'f' * 64}"
    assert (gpo.command, gpo.commits, gpo.compared_by) == (ORIGIN["command"], "1" * 40, "me")
    assert mean.commits == f"{'2' * 40}+; {'1' * 40}"
    assert mean.run_ids == "id-mean-0-0; id-mean-1-0"
    others = {of.metric for of in records if of.row == "gpo" and of.task == "image_text"}
    assert others == {"rsum", "i2t/R1", "i2t/R5", "i2t/R10", "t2i/R1", "t2i/R5", "t2i/R10"}
    assert all(of.difference is None for of in records if not of.decides)


def test_tables_of_results_are_those_of_the_runs(tmp_path):
    groups = judged_groups()
    write_results(results(groups), tmp_path / "r.csv")
    again = groups_of(read_results(tmp_path / "r.csv"))
    for ours, theirs in zip(again, groups, strict=True):
        assert report.scores(ours).rows[0][:3] == report.scores(theirs).rows[0][:3]
        assert report.scores(ours).legend == report.scores(theirs).legend
    (ours, theirs) = again[0].judged, groups[0].judged
    assert (ours.labels, ours.units) == (theirs.labels, theirs.units)
    assert ours.confidence_set == ("gpo", "mean")
    assert ours.from_best("mean") == theirs.from_best("mean")
    assert ours.intervals == theirs.intervals
    runs = [replace(made, params={**made.params, "optim.epochs": "10"}) for made in three_tasks()]
    runs[0] = replace(runs[0], params={**runs[0].params, "optim.epochs": "1"})
    other = blocks_of(*runs)
    assert other[0].usual
    for given, read in ((groups, again), (other, groups_of(results(other)))):
        assert [group.usual for group in read] == [group.usual for group in given]
        shown = [as_text(report.across(cross_task_table(of))) for of in (read, given)]
        assert shown[0] == shown[1]


def of_earlier_version(records: list[Result]) -> list[Result]:
    """Return records as they were when rows were compared with the best alone, corrected for all pairs."""
    first = {"against": "", "difference": None, "difference_low": None, "difference_high": None, "p": None}
    return [
        replace(of, may_be_best=None, **(first if of.row == of.baseline else {"pairs": 3})) for of in records
    ]


def test_results_of_earlier_versions_are_read_and_shown_as_they_were_meant():
    first, *_ = judged_groups()
    first = replace(first, judged=replace(first.judged, baseline="", against={}))
    records = [
        replace(of, baseline="gpo") for of in results([first])
    ]  # the best row, which had no difference
    (group,) = groups_of(of_earlier_version(records))
    assert (group.judged.best, group.judged.tests) == ({}, 3)
    assert group.judged.difference("gpo", "mean").value == 10.0
    table = report.scores(group)
    assert "*: no significant difference from gpo over seeds and 1,064" in table.legend[1]
    assert table.legend[1].endswith("corrected by Holm for 3 pairs")
    assert [row[2][-1] for row in table.rows] == [" ", "*", "?"]
    assert not table.notes


def test_a_column_whose_best_is_not_its_tables_says_that_it_is_not_judged():
    small = Difference(value=1.0, low=-1.0, high=3.0, p=1.0, over_seeds=True)
    labels = ("gpo, mini", "mean, mini", "gpo, bert", "mean, bert")
    pairs = {(row, "gpo, mini"): small for row in labels[1:]}
    runs = [run("gpo", rsum=60.0), run("mean", rsum=59.0)]
    runs += [run("gpo", rsum=50.0, recipe="bert"), run("mean", rsum=49.0, recipe="bert"), vqa("gpo", 0, 30.0)]
    image, *others = blocks_of(*runs)
    for known, said in (({labels[:1:-1]: small}, []), ({}, ["image_text · coco_mini · whole · bert"])):
        judged = Judged(units="queries", labels=labels, intervals={}, pairs=pairs | known, tests=6)
        found = cross_task_table([replace(image, judged=judged), *others])
        notes = [note for note in report.across(found).notes if "is not judged" in note]
        assert [note.partition(" is not judged")[0] for note in notes] == said


def test_damaged_results_name_file_line_and_column(tmp_path):
    path = tmp_path / "r.csv"
    write_results(results(judged_groups()), path)
    whole = path.read_text()
    for old, new, message in (
        ("69; 71", "69; x", r"r.csv: row 1: values must be numbers with '; ' between them, not '69; x'"),
        ("69; 71", "69", r"r.csv: row 1: 1 values for the seeds '0; 1', expected one for each"),
        (",True,", ",yes,", r"r.csv: cannot be read as CSV: .*'yes'"),
        ("0.2,True,0", "much,True,0", r"r.csv: cannot be read as CSV: .*'much'"),
        ("0.2,True,0", "inf,True,0", r"r.csv: row \d+: p must be a finite number, not inf"),
        ("69; 71", '"69; 71', "r.csv: "),
        ("task,dataset", "Task,dataset", r"r.csv: its columns are not those of results that"),
        ("\nimage_text,", "\n", r"r.csv: cannot be read as CSV: .*columns"),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new, 1))
        with pytest.raises(InputError, match=message):
            read_results(path)
    for name, content, message in (
        ("r.csv", b"\xff", "cannot be read as CSV"),
        ("r.csv", whole.splitlines()[0].encode() + b"\n", "holds no results"),
        ("r.parquet", b"PAR1", "cannot be read as Parquet"),
        ("r.xlsx", b"", r"r.xlsx: results are written as .csv or .parquet"),
        ("gone.csv", None, "no such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_results(tmp_path / name)


def test_a_table_without_its_deciding_metric_is_refused():
    records = [of for of in results(judged_groups()) if not (of.task == "vqa" and of.decides)]
    with pytest.raises(InputError, match="no metric of vqa · daquar decides"):
        groups_of([*records, replace(results(judged_groups())[-1], decides=False)])


DOCUMENT = """# Title

<!-- table: r.csv -->
old
<!-- end of table -->

between
<!-- table: sub/r.parquet as text -->
<!-- end of table -->
after
"""


def document(folder: Path) -> tuple[Path, list[Result]]:
    records = results(judged_groups())
    write_results(records, folder / "r.csv")
    write_results(records, folder / "sub" / "r.parquet")
    path = folder / "doc.md"
    path.write_text(DOCUMENT)
    return path, records


def test_a_document_is_renewed_between_its_comments_and_nowhere_else(tmp_path):
    path, records = document(tmp_path)
    new, changed = renewed(DOCUMENT, tmp_path, where="doc.md")
    assert len(changed) == 2
    assert renewed(new, tmp_path, where="doc.md") == (new, [])
    first = rendered(records, file="r.csv")
    second = rendered(records, file="sub/r.parquet", as_in_terminal=True)
    assert new == DOCUMENT.replace("old", first).replace("as text -->", f"as text -->\n{second}")
    assert "| `gpo` | 70.0 ± 1.4\\* | 120.0 ± 1.4 | 30.0 ± 1.4 |" in first
    assert "| `mean` | 60.0 ± 1.4\\* |" in first
    assert "\\*: in the confidence set of the best of its column (95 %, over seeds and queries)" in " ".join(
        first.split()
    )
    assert "From [r.csv](r.csv): 6 runs of commits 1111111111, 2222222222+" in " ".join(first.split())
    assert f"`{ORIGIN['command']}`" in " ".join(first.split())
    assert "\n    mean        60.0 ± 1.4*" in second
    assert path.read_text() == DOCUMENT


def test_one_task_has_its_scores_and_the_first_of_many_commands():
    records = results(blocks_of(run("gpo")))
    shown = rendered(records, file="r.csv")
    assert "| `gpo` | 1 | 60.0 ± \u2013 |" in shown
    assert shown.splitlines()[-1] == "From [r.csv](r.csv): 1 run."
    records = [replace(record, command=f"first{APART}second{APART}third") for record in records]
    shown = rendered(records, file="r.csv").splitlines()[-1]
    assert shown == "From [r.csv](r.csv): 1 run, by `first` and 2 more commands, which are there."


def test_documents_that_name_no_results_or_have_no_end_are_refused(tmp_path):
    document(tmp_path)
    for text, message in (
        ("nothing", "x.md: names no results"),
        ("<!-- table: r.csv -->\n", "the table of r.csv has no line '<!-- end of table -->' after it"),
        (
            "<!-- table: r.csv -->\n" + DOCUMENT,
            "a table begins before '<!-- end of table -->' of the one above",
        ),
        (DOCUMENT.replace("r.csv", "gone.csv"), "gone.csv: no such file; expected results that"),
    ):
        with pytest.raises(InputError, match=message):
            renewed(text, tmp_path, where="x.md")


def test_figures_of_a_document_are_drawn_of_results_with_costs(tmp_path):
    text = "<!-- figure: r.csv -->\n![Scores over costs](costs.png)\n"
    names = (("gpo", 2.0), ("mean", 1.0))
    costly = [run(name, metrics={"whole/rsum": 60.0, "cost/step": cost}) for name, cost in names]
    write_results(results(blocks_of(*costly)), tmp_path / "r.csv")
    draw_figures(text, tmp_path)
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "costs.png").unlink()
    write_results(results(judged_groups()), tmp_path / "r.csv")  # three columns
    draw_figures(text, tmp_path)
    with Image.open(tmp_path / "costs.png") as image:
        assert image.width > 3 * image.height
    write_results(results(blocks_of(run("gpo"))), tmp_path / "r.csv")
    with pytest.raises(InputError, match="fewer than two rows have a score and a cost in every column"):
        draw_figures(text, tmp_path)


def test_the_verb_checks_and_renews(tmp_path, capsys):
    path, _ = document(tmp_path)
    verb = partial(exit_code, compare.main, "tables", path)
    assert verb("--check") == 1
    assert path.read_text() == DOCUMENT
    shown = capsys.readouterr().out
    assert f"{path}: the table of r.csv is not what its results say" in shown
    assert f"`polypool compare tables {path}` renews them" in shown
    assert verb() == 0
    assert verb("--check") == 0
    assert verb() == 0
    path.write_text(path.read_text().replace("70.0", "71.0", 1))
    assert verb("--check") == 1
    path.write_text("nothing")
    assert verb() == 2
    assert "names no results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--detect", "-1"],
            "--detect must be a difference of the primary metric above 0, such as 1.0, not -1",
        ),
        (["--detect", "nan"], "not nan"),
        (["--out", "x.xlsx"], "x.xlsx: results are written as .csv or .parquet, by the end of the name"),
        (["--out", "x"], "x: results are written as .csv or .parquet"),
    ],
)
def test_nonsense_is_refused_before_anything_is_read(words, message, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/at/all.db")
    assert (exit_code(compare.main, *words), message in capsys.readouterr().err) == (2, True)
    if words[0] == "--detect":
        assert exit_code(sweep.main, "--recipes", "demo", "--aggregators", "gpo", *words) == 2
        assert message in capsys.readouterr().err


def test_a_damaged_file_and_one_in_the_way_of_a_folder_stay(tmp_path):
    (tmp_path / "r.csv").write_text("a,b\n1,2\n")
    for name, message in (("r.csv#it", "its columns are not those of"), ("r.csv/r.csv", "r.csv")):
        with pytest.raises(InputError, match=message):
            write_results(results(judged_groups()), tmp_path / name)
    assert (tmp_path / "r.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_file_holds_several_tables(tmp_path, ending):
    records = results(judged_groups())
    at = lambda name: tmp_path / f"r{ending}#{name}"  # noqa: E731
    for name in ("photographs", "clips", "others"):
        write_results(records, at(name))
    write_results(records[:-1], at("clips"))  # in the place of what it held
    assert [*tmp_path.iterdir()] == [tmp_path / f"r{ending}"]
    for name, expected in (("photographs", records), ("clips", records[:-1]), ("others", records)):
        assert read_results(at(name)) == [replace(record, table=name) for record in expected]
    with pytest.raises(
        InputError, match=rf"several tables; name one, such as r\{ending}#clips: clips, others, ph"
    ):
        read_results(tmp_path / f"r{ending}")
    with pytest.raises(InputError, match="Did you mean 'clips'"):
        read_results(at("clip"))
    write_results(records, tmp_path / f"r{ending}")  # a file of one table is written anew
    assert read_results(tmp_path / f"r{ending}") == records
