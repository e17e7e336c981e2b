"""The Python function of a model in MLflow: rows with features, images and texts in, a row for each out.

A row with an image or video, or with a text, is embedded; one with both is scored, or its question answered. MLflow
loads this file as a script, with the saved copy of this project on the path.
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
"""Names of the artifact, an exported folder, and of settings: trusted modules, and whether embeddings are sets."""


class Served(PythonModel):
    """MLflow's interface to an exported model."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported folder."""
        from polypool.pipelines.models.trained import load

        self.model = load(Path(context.artifacts[MODEL]), trust=context.model_config[TRUST])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return an output row for each input row.

        Args:
            context: artifacts and settings of the saved model.
            model_input: the columns of `polypool.pipelines.models.table_rows`.
            params: ignored.

        Raises:
            MlflowException: an invalid row, as a client error.
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
    """Return each row's features, or its image as a file in `folder`, and its text.

    Raises:
        InputError: an empty row, features that are not a matrix, or an image that is not base64.
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
    """Return a cell; None for NaN."""
    return None if cell is None or (isinstance(cell, float) and np.isnan(cell)) else cell


set_model(Served())
