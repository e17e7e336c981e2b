"""The tables of a comparison: LaTeX, wide ones, published numbers, what MLflow keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import blocks_of, run, three_tasks

from polypool.infra.text_tables import Table, as_text
from polypool.pipelines.comparison.comparison import Comparison, description
from polypool.pipelines.comparison.results import columns, results
from polypool.pipelines.comparison.tables import score_tables as tables


def test_latex_is_escaped_and_balanced() -> None:
    groups = blocks_of(*three_tasks(), run("kmax(k=5), a_b & c%"))
    text = Comparison(experiment="x", groups=groups, notes=("50 % of it",)).latex()
    assert text.startswith("% needs \\usepackage{booktabs}\n% 50 % of it\n")
    assert text.count("\\begin{table}") == text.count("\\end{table}") == text.count("\\bottomrule") == 7
    assert r"\texttt{kmax(k=5), a\_b \& c\%}" in text
    assert r"\textbf{70.0 $\pm$ 1.4}" in text
    assert r"\caption{image\_text $\cdot$ coco\_mini $\cdot$ whole. Sorted by rsum" in text
    body = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert all("±" not in line and "\u2013" not in line for line in body)


def test_published_numbers_stand_under_their_block() -> None:
    made = run("gpo")
    (group,) = blocks_of(
        replace(
            made, params={**made.params, "published": '{"full/rsum": 174.7}', "source": "A paper, table 4"}
        )
    )
    assert "published, mini: A paper, table 4: full/rsum 174.7" in as_text(tables.scores(group))
    assert tables.scores(blocks_of(run("max"))[0]).notes == ()


def test_the_table_of_scores_has_a_line_for_each_row() -> None:
    table = columns([of for of in results(blocks_of(*three_tasks())) if of.decides])
    assert {len(column) for column in table.values()} == {9}
    assert table["aggregator"][:3] == ["gpo", "mean", "max"]
    assert table["chance_normalised"][0] == pytest.approx(100 * 66.8 / 596.8, abs=1e-3)
    assert table["difference"] == [None] * 9
    long = Table(title="t", header=("a", "b"), rows=tuple(("x" * 50, "1") for _ in range(60)))
    assert description([long, long]).endswith("All tables are in the artifact `compare.md`.")
    assert len(description([long, long])) < 5000
