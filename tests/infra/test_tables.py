from __future__ import annotations

from infra.tables import aligned


def test_numbers_stand_right_and_labels_left_and_blanks_after_numbers_keep_their_place() -> None:
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


def test_the_first_column_alone_is_wrapped_to_fit() -> None:
    lines = aligned(["name", "score"], [["slots of men " + "y" * 30, "12.345 ± 0.001"]], width=30)
    assert max(map(len, lines)) <= 30
    assert "12.345 ± 0.001" in lines[2]
    assert "".join("".join(lines[2:]).split()).count("y") == 30


def test_columns_can_be_set_left_and_rows_left_out() -> None:
    lines = aligned(["a", "b", "c"], [["x", "1", "note"], ["y", "22", "n"]], width=60, left=(0, 2))
    assert lines[2:] == ["x   1  note", "y  22  n"]
    assert aligned(["a", "b"], [], width=60)[0] == "a  b"
