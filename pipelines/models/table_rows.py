"""Rows of tables and requests: their columns, a model's outputs for them, and their MLflow signature."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.tasks.abilities import Answers, ReadsInputs
from polypool.tasks.models.retrieval_model import RetrievalModel

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

    from polypool.pipelines.models.trained import TrainedModel

FEATURES, IMAGE, TEXT = "features", "image", "text"
"""Inputs: features `(N, F)` of an image or video, as lists of numbers; an image file in base64; a text."""
EMBEDDING, SCORE, ANSWER, PROBABILITY = "embedding", "score", "answer", "probability"
"""Outputs: a vector, or a list of them for a model of sets; the similarity of image and text; the likeliest answer; its
probability."""
EXAMPLE_TEXT = "a dog on the grass"


class Row(NamedTuple):
    """One input.

    Attributes:
        visual: features `(N, F)` of an image or video, or an image file; None if neither.
        text: None if absent.
    """

    visual: np.ndarray | Path | None
    text: str | None


def matrix(features: Any) -> np.ndarray:
    """Return features as `(N, F)` float32; an overflow is infinite.

    Raises:
        InputError: not lists of numbers of one length.
    """
    try:
        with np.errstate(over="ignore"):
            return np.array([np.asarray(vector, dtype=np.float32) for vector in features])
    except (TypeError, ValueError) as error:
        raise InputError(f"{FEATURES!r} must be N lists of equally many numbers") from error


def decode_image(image: Any) -> bytes:
    """Return the bytes of an image file given in base64.

    Raises:
        InputError: not base64.
    """
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InputError(f"{IMAGE!r} must be the image's file in base64: {error}") from error


def answered(trained: TrainedModel, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the most probable answer to the question of each row, and its probability.

    Raises:
        InputError: a row lacks an image or a question, or is not an input of the model.
    """
    visuals, questions = [], []
    for number, (visual, text) in enumerate(rows):
        if visual is None or text is None:
            raise InputError(
                f"row {number}: a question is about an image; give both, the question as {TEXT!r}"
            )
        visuals.append(visual)
        questions.append(text)
    answers = trained.answers(visuals, questions) if rows else []
    return [{ANSWER: answer, PROBABILITY: probability} for answer, probability in answers]


def embedded(trained: TrainedModel, rows: Sequence[Row], *, sets: bool) -> list[dict[str, Any]]:
    """Return the embedding of each row with only an image or video or only a text, and the score of each with both.

    Args:
        trained: the model.
        rows: each has an image or video, a text, or both.
        sets: whether embeddings are sets of vectors, so that a single vector is a set of one.

    Raises:
        InputError: a row that is not an input of the model, or that needs an embedding of a model without any.
    """
    made: list[dict[str, Any]] = [{EMBEDDING: None, SCORE: None} for _ in rows]
    visuals = {number: row.visual for number, row in enumerate(rows) if row.text is None}
    texts = {number: row.text for number, row in enumerate(rows) if row.visual is None}
    sides: list[tuple[dict[int, Any], Callable[[Any], Tensor]]] = [
        (visuals, trained.encode_visual),
        (texts, trained.encode_text),
    ]
    for given, encode in sides:
        vectors = encode([*given.values()]).cpu().numpy() if given else ()
        for number, vector in zip(given, vectors, strict=True):
            made[number][EMBEDDING] = _elements(trained, vector) if sets else vector
    for number, row in enumerate(rows):
        if row.visual is not None and row.text is not None:
            made[number][SCORE] = float(trained.scores([row.visual], [row.text])[0, 0])
    return made


def _elements(trained: TrainedModel, x: np.ndarray) -> np.ndarray:
    """Return the vectors of a set `(K, D)`, without its padding of zeros."""
    if x.ndim == 1:
        return x[None]
    if trained.similarity.of_distributions:
        return x
    real_K = x.any(axis=-1)
    return x[real_K] if real_K.any() else x[:1]


def makes_sets(trained: TrainedModel) -> bool:
    """Whether embeddings are sets of vectors or distributions; the model is run on an example.

    Raises:
        InputError: the model cannot read new images and texts.
    """
    if isinstance(trained.adapter, Answers) or not _has_embeddings(trained):
        return False
    made = [trained.encode_text(["a"])]
    made += [trained.encode_visual([_features(trained)])] if trained.adapter.visual_dim else []
    return any(x.ndim > 2 for x in made)


def check_servable(trained: TrainedModel) -> None:
    """Refuse a model that cannot read rows.

    Raises:
        InputError: its task reads only its corpus, or its model neither retrieves nor answers.
    """
    useful = isinstance(trained.adapter, Answers) or isinstance(trained.model, RetrievalModel)
    if not useful or not isinstance(trained.adapter, ReadsInputs):
        raise InputError(
            f"the task {trained.run.task!r} cannot be served: its model reads no new images and texts, or neither "
            "compares nor answers them; export it with --out, and load it by polypool.load"
        )


def signature(trained: TrainedModel, *, sets: bool) -> ModelSignature:
    """Return the input and output columns, which MLflow checks and shows."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    rows = Array(Array(DataType.double))
    answers = isinstance(trained.adapter, Answers)
    both = answers or not _has_embeddings(trained)
    visual = (rows, FEATURES) if trained.adapter.visual_dim else (DataType.string, IMAGE)
    inputs = Schema([ColSpec(*visual, required=both), ColSpec(DataType.string, TEXT, required=both)])
    if answers:
        outputs: list[Any] = [ColSpec(DataType.string, ANSWER), ColSpec(DataType.double, PROBABILITY)]
    else:
        vectors = rows if sets else Array(DataType.double)
        outputs = [
            ColSpec(vectors, EMBEDDING, required=False),
            ColSpec(DataType.double, SCORE, required=False),
        ]
    return ModelSignature(inputs, Schema(outputs))


def input_example(trained: TrainedModel) -> pd.DataFrame:
    """Return an example row: features of zeros, or a grey image, and a text."""
    import pandas as pd

    if trained.adapter.visual_dim:
        return pd.DataFrame({FEATURES: [_features(trained)], TEXT: [EXAMPLE_TEXT]})
    Image.new("RGB", (64, 64), (128, 128, 128)).save(file := BytesIO(), format="PNG")
    return pd.DataFrame({IMAGE: [base64.b64encode(file.getvalue()).decode()], TEXT: [EXAMPLE_TEXT]})


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row as JSON values."""
    return {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in row.items()}


def _has_embeddings(trained: TrainedModel) -> bool:
    return getattr(trained.model, "has_embeddings", False)


def _features(trained: TrainedModel) -> Any:
    return np.zeros((2, trained.adapter.visual_dim), dtype=np.float32).tolist()
