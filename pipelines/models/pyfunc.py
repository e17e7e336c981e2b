"""The Python function of a model in MLflow: rows with features, images and texts in, a row for each out.

A row with an image or video, or with a text, is embedded; one with both is scored, or its question answered. MLflow
loads this file by itself, with the packages of this project beside it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from polypool.infra.errors import InputError
from polypool.pipelines.models.table_rows import (
    ANSWER,
    EMBEDDING,
    FEATURES,
    IMAGE,
    PROBABILITY,
    SCORE,
    TEXT,
    Row,
    answered,
    decode_image,
    embedded,
    matrix,
    plain,
)
from polypool.tasks.abilities import Answers

MODEL, TRUST, SETS = "model", "trust", "sets"
"""The artifact that is the exported folder; settings: modules that it may name, and whether embeddings are sets."""


class Served(PythonModel):
    """An exported model, as MLflow calls it."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported folder."""
        from polypool.pipelines.models.trained import load

        self.model = load(Path(context.artifacts[MODEL]), trust=context.model_config[TRUST])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return a row for each row.

        Args:
            context: holds what the model was saved with.
            model_input: the columns of `polypool.pipelines.models.table_rows`.
            params: none are known.

        Raises:
            MlflowException: rows that do not fit, as an error of the client's.
        """
        with tempfile.TemporaryDirectory(prefix="polypool-images-") as folder:
            try:
                rows = _rows(model_input, Path(folder))
                if isinstance(self.model.adapter, Answers):
                    return pd.DataFrame(answered(self.model, rows), columns=[ANSWER, PROBABILITY])
                made = [plain(row) for row in embedded(self.model, rows, sets=context.model_config[SETS])]
                return pd.DataFrame(made, columns=[EMBEDDING, SCORE], dtype=object)
            except InputError as error:  # files of images are named by their rows
                message = str(error).replace(f"{folder}/", "row ")
                raise MlflowException.invalid_parameter_value(message) from error


def _rows(table: pd.DataFrame, folder: Path) -> list[Row]:
    """Return what each row has of an image or video, features or a file in `folder`, and its text.

    Raises:
        InputError: a row with neither, features that are no numbers in rows of one length, or an image that is no text
            in base64.
    """
    rows = []
    for number, row in enumerate(table.to_dict("records")):
        text, features, image = (_given(row.get(name)) for name in (TEXT, FEATURES, IMAGE))
        visual = None
        try:
            if features is not None:
                visual = matrix(features)
            elif image is not None:
                visual = folder / f"{number}"
                visual.write_bytes(decode_image(image))
        except InputError as error:
            raise InputError(f"row {number}: {error}") from error
        if visual is None and text is None:
            raise InputError(f"row {number} has neither an image or video nor a text")
        rows.append(Row(visual, text))
    return rows


def _given(cell: Any) -> Any:
    """Return a cell, None where it is empty, which tables write as NaN, too."""
    return None if cell is None or (isinstance(cell, float) and np.isnan(cell)) else cell


set_model(Served())
