"""The rows of a table, and what they make together: items with captions, or questions with answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.store.findings import Flagged, Skipped
from tasks.datasets.corpus import Item
from tasks.datasets.own.columns import Columns
from tasks.datasets.own.division import split_called
from tasks.datasets.own.listing import Listing
from tasks.datasets.own.table_file import TableFile
from tasks.datasets.questions import Question

Divide = Callable[[Iterable[str]], dict[str, str]]
"""Draws the split of each id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        where: it stands, for messages.
        id: of its picture or video.
        path: of that; empty where there are features alone.
        texts: captions, or one question.
        answers: to it.
        split: what its column says; empty where there is none.
    """

    where: str
    id: str
    path: str
    texts: tuple[str, ...]
    answers: tuple[str, ...]
    split: str


def rows_of(files: Sequence[TableFile], columns: Columns) -> Iterator[Row | Skipped | Flagged]:
    """Yield the rows of files, and what cannot be used of them.

    Raises:
        InputError: a file is damaged.
    """
    named = columns.named
    for file in files:
        values, torn = file.read([*dict.fromkeys(named.values())])
        yield from torn
        by_name = dict(zip(dict.fromkeys(named.values()), values, strict=True))
        for number, row in enumerate(zip(*(by_name[name] for name in named.values()), strict=True), start=1):
            yield from row_of(f"{file.path.name}, row {number}", dict(zip(named, row, strict=True)))


def row_of(where: str, values: dict[str, Any]) -> Iterator[Row | Skipped | Flagged]:
    """Yield a row of some values, by the names that `Columns.named` gives them, and what is odd about it."""
    strange = [part for part in ("media", "id", "split") if isinstance(values.get(part), list)]
    if strange:
        yield Skipped(where=where, why=f"a list for {' and '.join(strange)}, expected one value")
        return
    path, id, split = ((values.get(part) or "").strip() for part in ("media", "id", "split"))
    texts, answers = (_several(values.get(part)) for part in ("text", "answer"))
    if not (id := id or path):
        yield Skipped(where=where, why="a row without a picture or video", split=split_called(split))
        return
    if any("\n" in text for text in texts):
        yield Flagged(
            where=where, why="a text of several lines; if it is none, a quote in the file is not closed"
        )
    yield Row(where=where, id=id, path=path, texts=texts, answers=answers, split=split_called(split))


def _several(value: str | list[str | None] | None) -> tuple[str, ...]:
    """Return the texts of a cell, that may be a list of them; a missing one is empty, and counted later."""
    if isinstance(value, list):
        return tuple(text or "" for text in value)
    return (value or "",)


def grouped(
    rows: Iterable[Row | Skipped | Flagged],
    *,
    splits: Divide | None,
    questions: bool = False,
    folder: Path | None = None,
) -> Iterator[Item | Question | Skipped | Flagged]:
    """Yield what rows of one picture or video make together, in the order in which these begin.

    Args:
        rows: of all files; they are held in memory.
        splits: draws them; None where the rows have theirs.
        questions: whether texts are questions.
        folder: that paths start from, where what is not there is to be skipped.

    Raises:
        InputError: too few ids to be divided.
    """
    listing, groups = Listing(folder) if folder else None, dict[str, list[Row]]()
    for row in rows:
        if not isinstance(row, Row):
            yield row
        elif row.path and listing and not listing.has(row.path):
            yield Skipped(where=f"{row.where}, {row.path}", why=_absent(row.path, folder), split=row.split)
        else:
            groups.setdefault(row.id, []).append(row)
    drawn = splits(groups) if splits and groups else {}
    for id, group in groups.items():
        split, fitting = drawn.get(id, group[0].split), []
        for row in group:
            if odd := _odd(row, group[0]):
                yield Skipped(where=f"{row.where}, id {id}", why=odd, split=split, part=not questions)
            else:
                fitting.append(row)
        if not split:
            yield Skipped(where=f"{group[0].where}, id {id}", why="a row without a split")
        elif questions:
            yield from _questions(id, split, fitting)
        else:
            captions = tuple(text for row in fitting for text in row.texts)
            yield Item(id=id, split=split, captions=captions, path=group[0].path)


def _absent(path: str, folder: Path) -> str:
    if "://" in path:
        return "an address, and no path of a file; fetch the files first"
    return f"no such file in {folder}"


def _odd(row: Row, first: Row) -> str:
    """Return why a row cannot belong to the first one of its id."""
    if row.split != first.split:
        return "a row in another split than the first one of its picture or video"
    return "a row of another file than the first one of its id" if row.path != first.path else ""


def _questions(id: str, split: str, rows: Sequence[Row]) -> Iterator[Question]:
    """Yield the questions about a picture, each with the answers of all its rows; the first one's place is its id."""
    asked: dict[str, list[Row]] = {}
    for row in rows:
        asked.setdefault(" ".join(row.texts), []).append(row)
    for question, same in asked.items():
        answers = tuple(answer for row in same for answer in row.answers)
        told = Counter(answer for answer in answers if answer.strip())
        yield Question(
            id=same[0].where,
            split=split,
            image_id=id,
            question=question,
            path=same[0].path,
            answers=answers,
            label=told.most_common(1)[0][0] if told else "",
        )
