from __future__ import annotations

from polypool.infra.text_tables import Table, aligned, as_latex, as_markdown, as_text


def test_numbers_align_right_and_labels_left():
    lines = aligned(
        ["name", "a\nscore", "b"], [["x", "1.0*", "[0, 1]"], ["long name", "10.0 ", ""]], width=60
    )
    assert lines == [
        "               a",
        "name       score       b",
        "────────────────────────",
        "x           1.0*  [0, 1]",
        "long name  10.0",
    ]


def test_only_first_column_is_wrapped():
    lines = aligned(["name", "score"], [["slots of men " + "y" * 30, "12.345 ± 0.001"]], width=30)
    assert max(map(len, lines)) <= 30
    assert "12.345 ± 0.001" in lines[2]
    assert "".join("".join(lines[2:]).split()).count("y") == 30


def test_columns_may_align_left_and_rows_be_empty():
    lines = aligned(["a", "b", "c"], [["x", "1", "note"], ["y", "22", "n"]], width=60, left=(0, 2))
    assert lines[2:] == ["x   1  note", "y  22  n"]
    assert aligned(["a", "b"], [], width=60)[0] == "a  b"


def test_wide_text_tables_split_at_120_characters():
    header = ("aggregator", *(f"task_{k}\ndata set {k}" for k in range(12)))
    table = Table(
        title="wide", header=header, rows=((("slots(k=4, heads=2), " * 3), *["100.0 ± 10.0"] * 12),), label=32
    )
    text = as_text(table)
    assert max(map(len, text.splitlines())) <= 120
    assert [text.count(f"task_{k}") for k in (0, 5, 9)] == [1, 1, 1]
    assert text.count("aggregator") > 1
    assert as_markdown(table).splitlines()[2].count("|") == 14


def test_latex_is_escaped():
    rows = (("kmax(k=5), a_b & c%", "-1.0* [-2.0, +3.0]"),)
    text = as_latex(Table(title="t_1", header=("a", "b"), rows=rows, best=frozenset({(0, 1)})))
    assert r"\texttt{kmax(k=5), a\_b \& c\%}" in text
    assert r"\textbf{$-$1.0$^{*}$ [$-$2.0, +3.0]}" in text
    assert r"\caption{t\_1.}" in text
