"""Rows that a served model is sent, whoever serves it: what stands in their cells, and what the model makes of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from infra.errors import InputError
from pipelines.exporting.columns import ANSWER, EMBEDDING, FEATURES, IMAGE, PROBABILITY, SCORE, TEXT

if TYPE_CHECKING:
    from pipelines.models import TrainedModel


class Row(NamedTuple):
    """What a row holds.

    Attributes:
        visual: features `(N, F)` of an image or video, or an image's file; None where it has neither.
        text: None where it has none.
    """

    visual: np.ndarray | Path | None
    text: str | None


def matrix(features: Any) -> np.ndarray:
    """Return features as `(N, F)` float32; numbers that are too large for it become infinite.

    Raises:
        InputError: they are no numbers in lists of one length.
    """
    try:
        with np.errstate(over="ignore"):
            return np.array([np.asarray(vector, dtype=np.float32) for vector in features])
    except (TypeError, ValueError) as error:
        raise InputError(f"{FEATURES!r} must be N lists of equally many numbers") from error


def file_of(image: Any) -> bytes:
    """Return the file of an image in base64.

    Raises:
        InputError: it is no text in base64.
    """
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InputError(f"{IMAGE!r} must be the image's file in base64: {error}") from error


def answered(trained: TrainedModel, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the most probable answer to the question of each row, and its probability.

    Raises:
        InputError: a row without an image or a question, or one that does not fit the model.
    """
    for number, (visual, text) in enumerate(rows):
        if visual is None or text is None:
            raise InputError(
                f"row {number}: a question is asked of an image; give both, the question as {TEXT!r}"
            )
    answers = trained.answers([row.visual for row in rows], [row.text for row in rows]) if rows else []
    return [{ANSWER: answer, PROBABILITY: probability} for answer, probability in answers]


def embedded(trained: TrainedModel, rows: Sequence[Row], *, sets: bool) -> list[dict[str, Any]]:
    """Return the embedding of each row with an image or video or a text, and the score of each that has both.

    Args:
        trained: the model.
        rows: have at least one of them.
        sets: whether embeddings are several vectors each, so that a single vector is a set of one.

    Raises:
        InputError: a row does not fit the model, or asks it for what it has not.
    """
    made: list[dict[str, Any]] = [{EMBEDDING: None, SCORE: None} for _ in rows]
    visuals = [number for number, row in enumerate(rows) if row.text is None]
    texts = [number for number, row in enumerate(rows) if row.visual is None]
    for numbers, side, encode in ((visuals, 0, trained.encode_visual), (texts, 1, trained.encode_text)):
        vectors = encode([rows[number][side] for number in numbers]).cpu().numpy() if numbers else ()
        for number, of_row in zip(numbers, vectors, strict=True):
            made[number][EMBEDDING] = _elements(trained, of_row) if sets else of_row
    for number, row in enumerate(rows):
        if row.visual is not None and row.text is not None:
            made[number][SCORE] = float(trained.scores([row.visual], [row.text])[0, 0])
    return made


def _elements(trained: TrainedModel, x: np.ndarray) -> np.ndarray:
    """Return the vectors of a set `(K, D)`, without the zeros that fill it up beside larger ones."""
    if x.ndim == 1:
        return x[None]
    if trained.model.similarity.of_distributions:
        return x
    real_K = x.any(axis=-1)
    return x[real_K] if real_K.any() else x[:1]
