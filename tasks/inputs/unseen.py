"""Features in memory and files of images, as a trained model reads them: what is looked at apart from a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infra.errors import InputError
from infra.files import existing
from infra.registry import ENCODERS, Spec
from infra.video.sampling import choose_frames
from tasks.augmentations.sets import Draw
from tasks.inputs.pairs import VisualInputs
from tasks.inputs.pixels import Pixels


class MemorySets:
    """Sets in memory, one for each image or video.

    Args:
        sets: features `(N, F)`, as a feature store keeps them.
        dim: width F that the model was trained with.
        limit: elements of a set; larger ones are thinned out evenly; 0 for no limit.

    Raises:
        InputError: a set of another shape, an empty one, or one with values that are not finite.
    """

    def __init__(self, sets: Sequence[np.ndarray], *, dim: int, limit: int = 0) -> None:
        self._sets = [_checked(x_NF, number, dim) for number, x_NF in enumerate(sets)]
        if limit:
            self._sets = [x_NF[choose_frames(len(x_NF), limit)] for x_NF in self._sets]

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the sets `(B, N, F)` as they are, zeros in the pads, and their mask."""
        sets = [torch.from_numpy(self._sets[item]) for item in item_B.tolist()]
        size_B = torch.tensor([len(x_NF) for x_NF in sets])
        x_BNF = torch.nn.utils.rnn.pad_sequence(sets, batch_first=True)
        return x_BNF, torch.arange(x_BNF.shape[1]) < size_B[:, None]


def _checked(x_NF: np.ndarray, number: int, dim: int) -> np.ndarray:
    x_NF = np.asarray(x_NF)
    if x_NF.ndim != 2 or x_NF.shape[1] != dim or not len(x_NF):
        raise InputError(
            f"the features number {number} (from 0) have shape {x_NF.shape}; expected (elements, {dim}), at least one "
            "element, as in the store that the model was trained on"
        )
    x_NF = np.array(x_NF, np.float32)
    if not np.isfinite(x_NF).all():
        raise InputError(f"the features number {number} (from 0) hold NaN or infinite values")
    return x_NF


def unseen_inputs(
    visuals: Sequence[np.ndarray | str | Path], *, spec: Spec, assets: Mapping[str, Any], limit: int = 0
) -> VisualInputs:
    """Return what a visual encoder reads of images or videos that are in no corpus.

    Args:
        visuals: features `(N, F)` of each, or for an encoder of pixels the image files.
        spec: of the encoder.
        assets: of the encoder.
        limit: elements of a set of features; 0 for no limit.

    Raises:
        InputError: features of another shape, a missing file, or the one where the other is read.
    """
    encoder = ENCODERS.get(spec.name)
    files = [isinstance(visual, str | Path) for visual in visuals]
    if encoder.reads == "features":
        if any(files):
            raise InputError(
                f"the encoder {spec.name!r} reads features, not image files; extract them first with the backbone that "
                "the model was trained on: python -m pipelines.extract"
            )
        return MemorySets(visuals, dim=assets["dim"], limit=limit)
    if not all(files):
        raise InputError(f"the encoder {spec.name!r} reads image files; give their paths, not arrays")
    paths = [existing(path, what="an image") for path in visuals]
    return Pixels(paths, transform=encoder.transform(assets, **spec.params), augment=None)
