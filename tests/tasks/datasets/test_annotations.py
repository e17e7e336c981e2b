from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.annotations import map_array, read_csv

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


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }"


LARGE = HEADER.replace("2, 4", "4611686018427387904, 4")


@pytest.mark.parametrize(
    "header",
    [
        *(HEADER[:-3], HEADER.replace("2, 4", "99999999999999999999, 4"), HEADER.replace("2, 4", "10**9, 4")),
        *(HEADER.replace("<f4", "<U1000000000"), HEADER.replace("<f4", "|O"), "(" * 5_000, "1" * 5_000, "{}"),
        LARGE.replace("'<f4'", "[]"),
        HEADER.replace("<f4", "|V4").replace("2, 4", "1,"),
    ],
)
def test_a_damaged_header_of_an_array_ends_in_one_message(tmp_path, header):
    path = tmp_path / "x.npy"
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(32))
    why = r"cannot be read as features: (damaged or cut short|pickled objects|an array of)"
    with pytest.raises(InputError, match=why):
        map_array(path, what="features")
