"""Items and texts that splits of a corpus share, which would make memorised samples count as understood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.store.findings import Flagged

_FITTED = ("train", "val")  # a model is fitted to the first and chosen by the second


def shared_captions(table: pa.Table) -> Iterator[Flagged]:
    """Yield the captions of a corpus's table that are also, letter by letter, in a split that models learn from."""
    for fitted, other in _pairs(table):
        known, held = (_of(table, split).combine_chunks() for split in (fitted, other))
        texts, rows = pc.list_flatten(held["captions"]), pc.list_parent_indices(held["captions"])
        found = pc.is_in(texts, value_set=pc.list_flatten(known["captions"]).combine_chunks())
        starts = pc.list_value_length(held["captions"]).to_numpy().cumsum()
        for place in pc.indices_nonzero(found).to_pylist():
            row = rows[place].as_py()
            number = place - (int(starts[row - 1]) if row else 0) + 1
            where = f"id {held['id'][row]}, caption {number}"
            yield Flagged(where=where, why=f"the same caption in {fitted} and {other}")


def shared_images(table: pa.Table) -> Iterator[Flagged]:
    """Yield the questions of a corpus's table whose image has questions in a split that models learn from, too."""
    for fitted, other in _pairs(table):
        held = _of(table, other)
        known = pc.unique(_of(table, fitted)["image_id"])
        both = held.filter(pc.is_in(held["image_id"], value_set=known))
        for id, image in zip(both["id"].to_pylist(), both["image_id"].to_pylist(), strict=True):
            where = f"question {id}, image {image}"
            yield Flagged(where=where, why=f"a question whose image is in {fitted} and {other}")


def shared_files(table: pa.Table, *, id: str) -> Iterator[Flagged]:
    """Yield the pictures and videos that have the same bytes as another in a split that models learn from.

    The column `id` names the picture, and `sha256` is empty where there is no file.
    """
    table = table.filter(pc.not_equal(table["sha256"], ""))
    for fitted, other in _pairs(table):
        known, held = _of(table, fitted), _of(table, other)
        held = held.filter(pc.is_in(held["sha256"], value_set=pc.unique(known["sha256"])))
        known = known.filter(pc.is_in(known["sha256"], value_set=pc.unique(held["sha256"])))
        twins: dict[str, list[str]] = defaultdict(list)
        for name, digest in _once(known, id):
            twins[digest].append(name)
        for name, digest in _once(held, id):
            if twin := next((twin for twin in twins[digest] if twin != name), None):
                yield Flagged(
                    where=f"id {name}, as id {twin}", why=f"the same picture in {fitted} and {other}"
                )


def _once(table: pa.Table, id: str) -> Iterable[tuple[str, str]]:
    """Return the names and digests of pictures, which several questions may be about."""
    return dict.fromkeys(zip(table[id].to_pylist(), table["sha256"].to_pylist(), strict=True))


def _pairs(table: pa.Table) -> list[tuple[str, str]]:
    return _ordered(pc.unique(table["split"]).to_pylist())


def _ordered(splits: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of a split that models learn from and another; of train and val, train is that."""
    present = list(splits)
    return [
        (fitted, other)
        for place, fitted in enumerate(_FITTED)
        if fitted in present
        for other in present
        if other not in _FITTED[: place + 1]
    ]


def _of(table: pa.Table, split: str) -> pa.Table:
    return table.filter(pc.equal(table["split"], split))
