"""Region features in TSV files of bottom-up attention."""

import base64

import numpy as np
from verbs import ingested, reasons, sets_of

from polypool.infra.store import FeatureStore

RANDOM = np.random.default_rng(0)
X_ND = RANDOM.standard_normal((2, 8)).astype(np.float32)
BOX_N4 = np.array([[0, 0, 640, 480], [160, 120, 320, 360]], np.float32)
FRACTIONS = [[0, 0, 1, 1], [0.25, 0.25, 0.5, 0.75]]


def encode(x: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(x, "<f4").tobytes()).decode()


def line(id: object, x_ND: np.ndarray, box_N4: np.ndarray | None = None) -> str:
    boxes = np.zeros((len(x_ND), 4)) if box_N4 is None else box_N4
    return "\t".join([str(id), "640", "480", str(len(x_ND)), encode(boxes), encode(x_ND)]) + "\n"


def test_butd_reads_several_files_and_skips_bad_rows(tmp_path):
    xs = [RANDOM.standard_normal((n, 8)).astype(np.float32) for n in (10, 36, 100, 2, 3)]
    nan = xs[3].copy()
    nan[0, 0] = np.nan
    good, rest = line(0, xs[0]), line(1, xs[1])
    first = [
        good,
        "just a few\tcolumns\n",
        line(5, xs[3])[:-2] + "\n",  # incomplete base64 padding
        line(6, xs[3]).replace("480\t2", "480\t3"),
        line(7, xs[3]).replace("480\t2", "480\ttwo"),
        line(8, nan),
        line(9, xs[3])[:-5] + "*&%$\n",
        "\n",
        line("caf\udce9", xs[3]),
        rest,
    ]
    (tmp_path / "a.tsv").write_text("".join(first), "utf-8", "surrogateescape")
    (tmp_path / "b.tsv").write_text(line(2, xs[2]) + line(0, xs[4]) + line(4, xs[4])[:60])
    options = ("--dim", 8, "--dtype", "float32", "--out", tmp_path / "out")
    out = ingested("butd", "--file", tmp_path / "a.tsv", tmp_path / "b.tsv", *options, "--allow-skipped")
    found = sets_of(tmp_path / "out")
    assert list(found) == ["0", "1", "2"]
    for id, x_ND in zip(found, xs, strict=False):
        assert np.array_equal(found[id], x_ND)
    columns, base64 = "not 6 columns, such as a row that is cut short", "features that are not valid base64"
    assert reasons(tmp_path / "out") == [
        ("a.tsv:2", columns),
        ("a.tsv:3 (id 5)", base64),
        ("a.tsv:4 (id 6)", "features of another size than boxes x 8 (--dim) x 4 bytes"),
        ("a.tsv:5 (id 7)", "a number of boxes that is not a number"),
        ("a.tsv:6 (id 8)", "NaN or infinite values"),
        ("a.tsv:7 (id 9)", base64),
        ("a.tsv:8", columns),
        ("a.tsv:9 (id caf\udce9)", "an id that is not valid UTF-8"),
        ("b.tsv:2 (id 0)", "duplicate id"),
        ("b.tsv:3", columns),
    ]
    assert "3 x not 6 columns, such as a row that is cut short: a.tsv:2; a.tsv:8; b.tsv:3" in out


def test_boxes_are_stored_as_fractions_of_image_size(tmp_path):
    good, boxes = line(1, X_ND, BOX_N4), encode(BOX_N4)
    others = (encode(BOX_N4[:1]), "*", encode(np.full((2, 4), np.inf)))
    bad = [good.replace("640", "0"), good.replace("480", "tall"), *(good.replace(boxes, x) for x in others)]
    rows = [good, *(row.replace("1\t", f"{id}\t", 1) for id, row in enumerate(bad, 2))]
    (tmp_path / "a.tsv").write_text("".join(rows))
    out = ingested("butd", "--file", tmp_path / "a.tsv", "--dim", 8, "--out", tmp_path / "out")
    store = FeatureStore.open(tmp_path / "out")
    column = store.column("boxes")
    assert store.ids.to_pylist() == column.ids.to_pylist() == ["1", "2", "3", "4", "5", "6"]
    assert column[0].tolist() == FRACTIONS
    assert not any(column[row].any() for row in range(1, 6))
    assert "5 x boxes that cannot be read; zeros are stored" in out
