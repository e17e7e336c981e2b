"""Small files of words, ids and ratings: GloVe, id lists, role graphs, judgments of pairs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
from judgment_files import caption, image, write_csvs, write_eccv

from fuzz.cases import Kind, expect
from polypool.encoders.text.bigru import read_glove
from polypool.tasks.datasets.annotation_files import read_id_rows, read_ids
from polypool.tasks.datasets.coco_judgments import read_cxc, read_eccv
from polypool.tasks.hgr.released_graphs import find_role_graphs, read_role_graphs

_IDS = ["COCO_1", "2", "café"]
_GRAPHS = {
    f"a dog runs {i}": [
        {
            "0": {"role": "ROOT", "spans": [0, 1, 2, 3], "words": ["x"]},
            "1": {"role": "V", "spans": [2], "words": ["runs"]},
            "2": {"role": "ARG0", "spans": [0, 1], "words": ["a", "dog"]},
        },
        [["0", "1", "V"], ["1", "2", "ARG0"]],
    ]
    for i in range(4)
}


def _glove(folder: Path) -> None:
    numbers = [" ".join(f"{i + j / 7:.4f}" for j in range(4)) for i in range(4)]
    lines = [f"{word} {row}\n" for word, row in zip(("a", "dog", ". .", "é"), numbers, strict=True)]
    (folder / "glove.txt").write_text("".join(lines), "utf-8")


def _read_glove(folder: Path) -> int:
    vectors = read_glove(folder / "glove.txt", ["a", "dog", "é", "absent"], dim=4)
    for word, vector in vectors.items():
        expect(vector.shape == (4,) and np.isfinite(vector).all(), f"{word} is {vector}")
    return 0


def _ids(folder: Path) -> None:
    (folder / "ids.txt").write_text("\n".join(_IDS) + "\n", "utf-8")
    (folder / "ids.json").write_text(json.dumps(_IDS))
    (folder / "rows.json").write_text(json.dumps({id: row for row, id in enumerate(_IDS)}))
    np.save(folder / "ids.npy", np.array(_IDS))


def _read_ids(folder: Path, *, name: str) -> int:
    path = folder / name
    ids = [id for id, _ in read_id_rows(path)] if name == "rows.json" else read_ids(path)
    expect(all(isinstance(id, str) for id in ids), "an id that is no text")
    return 0


def _graphs(folder: Path) -> None:
    (folder / "graphs.json").write_text(json.dumps(_GRAPHS))


def _read_graphs(folder: Path) -> int:
    path = folder / "graphs.json"
    read = list(read_role_graphs(path, wanted=lambda _: True))
    found = list(find_role_graphs(path, list(_GRAPHS), wanted=lambda sentence: sentence in _GRAPHS))
    same = [each for each in read if each.sentence in _GRAPHS]
    expect(len(found) == len(same), "a sentence is read, and not found")
    for each in read:
        if each.graph:
            count = len(each.graph.nodes)
            expect(all(0 <= end < count for edge in each.graph.edges for end in edge), "an edge to no node")
            places = [word for node in each.graph.nodes for word in node.words]
            expect(all(0 <= word < len(each.graph.words) for word in places), "a word beyond the sentence")
    return sum(bool(each.faults) for each in read)


def _cxc(folder: Path) -> None:
    write_csvs(
        folder,
        sits=[(caption(i), image(i), i / 2) for i in range(4)],
        sts=[(caption(i), caption(i + 1), 4.5) for i in range(3)],
        sis=[(image(i), image(i + 1), 0.25) for i in range(3)],
    )


def _read_cxc(folder: Path) -> int:
    ratings = read_cxc(folder, "test")
    for kind in ("sits", "sts", "sis"):
        rated = getattr(ratings, kind)
        lines = (folder / f"{kind}_test.csv").read_text("utf-8", "replace").splitlines()
        rows = sum(bool(line.strip()) for line in lines) - 1
        expect(len(rated) >= rows, f"{kind}: {rows} rows, and {len(rated)} were read")
        expect(((rated.rating_P >= 0) & (rated.rating_P <= 5)).all(), f"{kind}: a rating beyond 0 to 5")
    return 0


def _eccv(folder: Path) -> None:
    write_eccv(folder, image_to_caption={7: [11, 12, 13], 8: [21]}, caption_to_image={11: [7], 21: [8, 7]})


def _read_eccv(folder: Path) -> int:
    read = read_eccv(folder)
    for answers in (read.image_to_caption, read.caption_to_image):
        for query, ids in answers.items():
            expect(query.isdecimal() and len(ids) > 0, f"query {query} has {ids}")
            expect(all(id.isdecimal() for id in ids), f"an id of {query} is no number")
            expect(len({*ids}) == len(ids), f"an answer of {query} counts twice")
    return 0


_CXC = {f"{kind}_test.csv": "csv" for kind in ("sits", "sts", "sis")}
_ECCV = {f"eccv_{name}.json": "json" for name in ("image_to_caption", "caption_to_image")}
_FORMS = {"ids.txt": "lines", "ids.json": "json", "rows.json": "json", "ids.npy": "npy"}

KINDS = [
    Kind(name="GloVe", make=_glove, read=_read_glove, damaged={"glove.txt": "lines"}),
    *(
        Kind(name=f"ids, {name}", make=_ids, read=partial(_read_ids, name=name), damaged={name: form})
        for name, form in _FORMS.items()
    ),
    Kind(name="role graphs", make=_graphs, read=_read_graphs, damaged={"graphs.json": "json"}),
    Kind(name="cxc", make=_cxc, read=_read_cxc, damaged=_CXC),
    Kind(name="eccv", make=_eccv, read=_read_eccv, damaged=_ECCV),
]
