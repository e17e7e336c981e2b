import json
from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.annotation_files import read_csv, read_elements, read_entries

QUOTE = "a row with a quote that is not closed where its field or line ends"


def read(folder: Path, *lines: str) -> list[tuple[str, tuple[str, ...]] | tuple[str, str]]:
    path = folder / "f.csv"
    path.write_bytes("\n".join(("key,id,text", *lines)).encode("utf-8", "surrogateescape"))
    rows = read_csv(path, columns=("text", "id"))
    return [
        (row.where.removeprefix("f.csv, line "), row.why) if isinstance(row, Skipped) else row[1]
        for row in rows
    ]


def test_values_come_in_the_order_that_is_asked_for(tmp_path):
    rows = read(tmp_path, "k1,v1,a cat", "", 'k2, v2 ,"a ""cat"", and a dog"', 'k3,v3,he said "no"', "k4,v4,")
    assert rows == [("a cat", "v1"), ('a "cat", and a dog', "v2"), ('he said "no"', "v3"), ("", "v4")]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('k2,v2,"a cat', QUOTE),
        ('k2,v2,"a" cat', QUOTE),
        ('"k2,v2,a cat', QUOTE),
        ('k2,"v2,a cat"', "a row of 2 fields, where the header has 3"),
        ("k2,v2", "a row of 2 fields, where the header has 3"),
        ("k2,v2,a cat,and more", "a row of 4 fields, where the header has 3"),
        ("k2,v2," + "x" * 200_000, "a row with a field that is far too long"),
    ],
)
def test_a_bad_line_is_one_row_and_swallows_no_other(tmp_path, bad, why):
    good = [f"k{number},v{number},text {number}" for number in range(8)]
    rows = read(tmp_path, *good[:2], bad, *good[2:])
    assert rows[2] == ("4", why)
    assert rows[:2] + rows[3:] == [(f"text {number}", f"v{number}") for number in range(8)]


def test_windows_lines_a_byte_order_mark_and_bytes_that_are_no_text(tmp_path):
    (tmp_path / "f.csv").write_bytes(b"\xef\xbb\xbfid,text\r\nv1,caf\xe9\r\nv2,b\r\n")
    rows = list(read_csv(tmp_path / "f.csv", columns=("id", "text")))
    assert rows == [("f.csv, line 2", ("v1", "caf\udce9")), ("f.csv, line 3", ("v2", "b"))]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,words", "no column text; expected id, text, and it has id, words"),
        ("", "no column id, text; expected id, text, and it has none"),
        ("id,text,id", "more than one column id; expected id, text, and it has id, text, id"),
        ('id,"text', f"no column id, text; expected id, text, and it has {QUOTE}"),
    ],
)
def test_a_header_that_is_another(tmp_path, header, message):
    (tmp_path / "f.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(InputError, match=message):
        list(read_csv(tmp_path / "f.csv", columns=("id", "text")))


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 50_000, "nul", '"\udcff'])
def test_a_value_that_cannot_be_read_ends_in_one_message(tmp_path, value):
    path = tmp_path / "graphs.json"
    path.write_bytes(f'{{"a": [1], "b": {value}}}'.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"graphs.json: cannot be read at character [0-9]+"):
        list(read_entries(path, what="role graphs"))


@pytest.mark.parametrize("rows", [[], [1], [{"a": "x" * 3_000_000}, [1, 2], "]", None] * 2])
def test_elements_of_a_list_come_one_by_one(tmp_path, rows):
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(f"\ufeff {json.dumps(rows, indent=indent)}\n")
        assert [*read_elements(tmp_path / "a.json", what="rows")] == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "expected \\[, found {"),
        ("[1 2]", "expected , or \\], found 2"),
        ("[1] 2", "there is more after the end"),
        ("[1,", "Expecting value"),
        ('[{"a": 1, "a": 2}]', "the key 'a' is twice in an object"),
    ],
)
def test_a_list_that_is_none_is_a_message(tmp_path, text, why):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=f"cannot be read at character [0-9]+: {why}"):
        [*read_elements(tmp_path / "a.json", what="rows")]


def test_a_line_that_is_longer_than_any_row_is_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.annotation_files.LARGEST_ROW", 20)
    assert read(tmp_path, "k1,v1," + "x" * 13) == [("x" * 13, "v1")]
    with pytest.raises(InputError, match=r"f\.csv: a line of over 20 characters; expected a CSV file"):
        read(tmp_path, "k1,v1," + "x" * 15)
