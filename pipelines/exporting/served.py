"""The code of an exported model that MLflow runs: rows with features, images and texts in, a row for each out.

A row with an image or video, or with a text, is embedded; one with both is scored, or its question answered. MLflow
loads this file by itself, with the packages of this project beside it.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from infra.errors import InputError
from pipelines.exporting.columns import ANSWER, EMBEDDING, FEATURES, IMAGE, PROBABILITY, SCORE, TEXT

MODEL, TRUST, SETS = "model", "trust", "sets"
"""The artifact that is the exported folder; settings: modules that it may name, and whether embeddings are sets."""


class Served(PythonModel):
    """An exported model behind MLflow's door."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the exported folder."""
        from pipelines.models import load

        self.model = load(Path(context.artifacts[MODEL]), trust=context.model_config[TRUST])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return a row for each row.

        Args:
            context: holds what the model was saved with.
            model_input: the columns of `pipelines.exporting.columns`.
            params: none are known.

        Raises:
            MlflowException: rows that do not fit, as an error of the client's.
        """
        with tempfile.TemporaryDirectory(prefix="polypool-images-") as folder:
            try:
                rows = _rows(model_input, Path(folder))
                return (
                    self._answered(rows)
                    if self._answers
                    else self._embedded(rows, context.model_config[SETS])
                )
            except InputError as error:  # files of images are named by their rows
                said = str(error).replace(f"{folder}/", "row ")
                raise MlflowException.invalid_parameter_value(said) from error

    @property
    def _answers(self) -> bool:
        from tasks.abilities import Answers

        return isinstance(self.model.adapter, Answers)

    def _answered(self, rows: Sequence[tuple[Any, str | None]]) -> pd.DataFrame:
        for number, (visual, text) in enumerate(rows):
            if visual is None or text is None:
                raise InputError(
                    f"row {number}: a question is asked of an image; give both, the question as {TEXT!r}"
                )
        answers = (
            self.model.answers([visual for visual, _ in rows], [text for _, text in rows]) if rows else []
        )
        return pd.DataFrame(answers, columns=[ANSWER, PROBABILITY])

    def _embedded(self, rows: Sequence[tuple[Any, str | None]], sets: bool) -> pd.DataFrame:
        made = pd.DataFrame({EMBEDDING: [None] * len(rows), SCORE: [None] * len(rows)}, dtype=object)
        visuals = [number for number, (visual, text) in enumerate(rows) if text is None]
        texts = [number for number, (visual, _) in enumerate(rows) if visual is None]
        for numbers, side, encode in (
            (visuals, 0, self.model.encode_visual),
            (texts, 1, self.model.encode_text),
        ):
            vectors = encode([rows[number][side] for number in numbers]).cpu().numpy() if numbers else ()
            for number, of_row in zip(numbers, vectors, strict=True):
                of_row = of_row[None] if sets and of_row.ndim == 1 else of_row
                made.at[number, EMBEDDING] = of_row.tolist()
        for number, (visual, text) in enumerate(rows):
            if visual is not None and text is not None:
                made.at[number, SCORE] = float(self.model.scores([visual], [text])[0, 0])
        return made


def _rows(table: pd.DataFrame, folder: Path) -> list[tuple[Any, str | None]]:
    """Return what each row has of an image or video, features or a file, and its text; None where it has none.

    Args:
        table: what was sent.
        folder: where images are written to.

    Raises:
        InputError: a row with neither, features that are no numbers in rows of one length, or an image that is no text
            in base64.
    """
    rows = []
    for number, row in enumerate(table.to_dict("records")):
        text, features, image = (_given(row.get(name)) for name in (TEXT, FEATURES, IMAGE))
        visual = None
        if features is not None:
            visual = _matrix(features, number)
        elif image is not None:
            visual = folder / f"{number}"
            try:
                visual.write_bytes(base64.b64decode(image, validate=True))
            except (binascii.Error, ValueError, TypeError) as error:
                raise InputError(
                    f"row {number}: {IMAGE!r} must be the image's file in base64: {error}"
                ) from error
        if visual is None and text is None:
            raise InputError(f"row {number} has neither an image or video nor a text")
        rows.append((visual, text))
    return rows


def _given(cell: Any) -> Any:
    """Return a cell, None where it is empty, which tables write as NaN, too."""
    return None if cell is None or (isinstance(cell, float) and np.isnan(cell)) else cell


def _matrix(features: Any, number: int) -> np.ndarray:
    try:
        return np.array([np.asarray(vector, dtype=np.float32) for vector in features])
    except (TypeError, ValueError) as error:
        raise InputError(f"row {number}: {FEATURES!r} must be N lists of equally many numbers") from error


set_model(Served())
