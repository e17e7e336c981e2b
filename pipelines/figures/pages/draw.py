"""Drawing of an evaluation's pictures, by the type of their record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from polypool.infra.errors import InputError
from polypool.pipelines.figures.pages.attention import attention_page
from polypool.pipelines.figures.pages.examples import answers_page, retrieval_page
from polypool.tasks.adapter import Pictures
from polypool.tasks.questions.answer_report import AnswerExamples
from polypool.tasks.scoring.attention import AttentionExamples
from polypool.tasks.scoring.examples import RetrievalExamples


@singledispatch
def draw(record: Pictures) -> Mapping[str, bytes]:
    """Return the files that show a record, by file name; a mapping is returned unchanged.

    A package registers a function for its own type of record by `@draw.register`.

    Raises:
        InputError: no function is registered for the type.
    """
    raise InputError(
        f"an evaluation's pictures are {type(record).__name__}, expected files by name, None or one of the records "
        f"{', '.join(sorted(it.__name__ for it in draw.registry if it.__module__ != 'builtins'))}; another is drawn by "
        "a function that polypool.pipelines.figures.pages.draw.draw.register takes"
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
