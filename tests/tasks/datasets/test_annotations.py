from pathlib import Path

import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.annotations import map_array, read_csv


def read(folder: Path, *lines: str) -> list[tuple[str, ...]]:
    path = folder / "f.csv"
    path.write_bytes("\n".join(("key,id,text", *lines)).encode("utf-8", "surrogateescape"))
    return [values for _, values in read_csv(path, columns=("text", "id"))]


def test_csv_values_follow_requested_column_order(tmp_path):
    rows = read(tmp_path, "k1,v1,a cat", "", 'k2, v2 ,"a ""cat"", and a dog"', 'k3,v3,he said "no"', "k4,v4,")
    assert rows == [("a cat", "v1"), ('a "cat", and a dog', "v2"), ('he said "no"', "v3"), ("", "v4")]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('k2,v2,"a cat', "perhaps a quote is not closed"),
        ('k2,v2,"a" cat', r"f\.csv, line 4: .*perhaps a quote is not closed"),
        ('k2,"v2,a cat"', r"f\.csv, line 4: a row of 2 fields, where the header has 3"),
        ("k2,v2,a cat,and more", "a row of 4 fields, where the header has 3"),
        ("k2,v2," + "x" * 200_000, "field larger than field limit"),
    ],
)
def test_damaged_csv_row_is_refused(tmp_path, bad, why):
    good = [f"k{number},v{number},text {number}" for number in range(8)]
    with pytest.raises(InputError, match=why):
        read(tmp_path, *good[:2], bad, *good[2:])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,words", "columns id, text, each once; it has id, words, and text not once"),
        ("", "it has none, and id, text not once"),
        ("id,text,id", "it has id, text, id, and id not once"),
        ('id,"text', "perhaps a quote is not closed"),
    ],
)
def test_wrong_csv_header_is_refused(tmp_path, header, message):
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
def test_damaged_npy_header_is_refused(tmp_path, header):
    path = tmp_path / "x.npy"
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(32))
    why = r"cannot be read as features: (damaged or cut short|pickled objects|an array of)"
    with pytest.raises(InputError, match=why):
        map_array(path, what="features")
