"""What an exported model is sent and answers in MLflow: the names of columns, and the signature made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from infra.errors import InputError

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

    from pipelines.models import TrainedModel

FEATURES, IMAGE, TEXT = "features", "image", "text"
"""In: features `(N, F)` of an image or video, as lists of numbers; the file of an image in base64; a text."""
EMBEDDING, SCORE, ANSWER, PROBABILITY = "embedding", "score", "answer", "probability"
"""Out: a vector, or a list of them for a model of sets; how alike image and text are; the likeliest answer."""


def makes_sets(trained: TrainedModel) -> bool:
    """Whether embeddings are several vectors each; the model is tried on made-up input.

    Raises:
        InputError: the model reads no images and texts by itself.
    """
    from tasks.abilities import Answers

    if isinstance(trained.adapter, Answers) or not _has_embeddings(trained):
        return False
    made = [trained.encode_text(["a"])]
    made += [trained.encode_visual([_features(trained)])] if trained.adapter.visual_dim else []
    return any(x.ndim > 2 for x in made)


def check_servable(trained: TrainedModel) -> None:
    """Refuse a model that no rows can be made for.

    Raises:
        InputError: its task reads nothing but its corpus, or its model neither retrieves nor answers.
    """
    from tasks.abilities import Answers, ReadsInputs
    from tasks.models.base import RetrievalModel

    answers = isinstance(trained.adapter, Answers)
    if not isinstance(trained.adapter, ReadsInputs) or not (
        answers or isinstance(trained.model, RetrievalModel)
    ):
        raise InputError(
            f"the task {trained.run.task!r} cannot be served: its model reads no images and texts by itself, or "
            "neither compares nor answers them; export it with --out, and load it by polypool.load"
        )


def signature(trained: TrainedModel, *, sets: bool) -> ModelSignature:
    """Return what goes in and comes out, as MLflow checks and shows it."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    from tasks.abilities import Answers

    rows = Array(Array(DataType.double))
    both = isinstance(trained.adapter, Answers) or not _has_embeddings(trained)
    visual = (
        ColSpec(rows, FEATURES, required=both)
        if trained.adapter.visual_dim
        else ColSpec(DataType.string, IMAGE, required=both)
    )
    inputs = Schema([visual, ColSpec(DataType.string, TEXT, required=both)])
    if isinstance(trained.adapter, Answers):
        return ModelSignature(
            inputs, Schema([ColSpec(DataType.string, ANSWER), ColSpec(DataType.double, PROBABILITY)])
        )
    vectors = rows if sets else Array(DataType.double)
    outputs = [ColSpec(vectors, EMBEDDING, required=False), ColSpec(DataType.double, SCORE, required=False)]
    return ModelSignature(inputs, Schema(outputs))


def input_example(trained: TrainedModel) -> pd.DataFrame:
    """Return a row that the model takes: made-up features, or a grey image, and a text."""
    visual = FEATURES if trained.adapter.visual_dim else IMAGE
    return pd.DataFrame(
        {visual: [_features(trained) if visual == FEATURES else _image()], TEXT: ["a dog on the grass"]}
    )


def _has_embeddings(trained: TrainedModel) -> bool:
    return getattr(trained.model, "has_embeddings", False)


def _features(trained: TrainedModel) -> Any:
    return np.zeros((2, trained.adapter.visual_dim), dtype=np.float32).tolist()


def _image() -> str:
    import base64
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
