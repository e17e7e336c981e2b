"""From a record that an evaluation leaves to the files that show it, by the record's type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from infra.errors import InputError
from pipelines.pages.attention import attention_page
from pipelines.pages.examples import answers_page, retrieval_page
from tasks.base import Pictures
from tasks.questions.report import AnswerExamples
from tasks.scoring.attention import AttentionExamples
from tasks.scoring.examples import RetrievalExamples


@singledispatch
def draw(record: Pictures) -> Mapping[str, bytes]:
    """Return the files that show a record, by file name; files stay as they are, and None has none.

    A package with a record of its own says how it is drawn: `@draw.register` over a function of that type.

    Raises:
        InputError: nobody said how records of this type are drawn.
    """
    raise InputError(
        f"an evaluation's pictures are {type(record).__name__}, expected files by name, None or one of the records "
        f"{', '.join(sorted(it.__name__ for it in draw.registry if it.__module__ != 'builtins'))}; another is drawn by "
        "a function that pipelines.pages.draw.draw.register takes"
    )


@draw.register
def _(record: None) -> Mapping[str, bytes]:
    return {}


@draw.register(Mapping)
def _(record: Mapping[str, Any]) -> Mapping[str, bytes]:
    for name, content in record.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise InputError(
                f"the file {name!r} of an evaluation's pictures is {type(content).__name__}, expected bytes"
            )
    return record


@draw.register
def _(record: RetrievalExamples) -> Mapping[str, bytes]:
    name = f"{record.protocol.name}_{record.split}_examples.html"
    return {name: retrieval_page(record).encode()}


@draw.register
def _(record: AnswerExamples) -> Mapping[str, bytes]:
    return {f"vqa_{record.split}_examples.html": answers_page(record).encode()}


@draw.register
def _(record: AttentionExamples) -> Mapping[str, bytes]:
    return {f"{record.split}_attention.html": attention_page(record).encode()}
