"""The base class of backbones, which extract features to store: of images, of all frames of a video, or of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from PIL import Image

from infra.registry import BACKBONES


class Backbone(ABC):
    """Describes images, videos or texts for `extract`; register one under `BACKBONES`.

    Attributes:
        dim: width D of the features.
        gpu: whether it computes on a GPU where there is one; each worker of it then gets one.
        reads: `image`: it is called with a list of images, and returns a `(N, D)` float32 array for each; `video`: it
            is called with an iterator over a video's frames, and returns one `(N, D)` float32 array; `text`: with a
            list of texts, and returns for each such an array, or a text that says why there is none.
        note: what `extract` says before it starts, such as that a setting does not suit this machine.
    """

    dim: int
    gpu: bool = False
    reads: Literal["image", "video", "text"] = "image"
    note: str = ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what the features depend on, as JSON can hold it; `backbone` is the registered name."""

    @abstractmethod
    def __call__(self, inputs: Iterable[Image.Image | str]) -> list[np.ndarray | str] | np.ndarray:
        """Describe images of any mode and size, a video by its frames, or texts."""


def build_backbone(spec: str) -> Backbone:
    """Return the backbone of a spec.

    Raises:
        InputError: an unknown name or parameter, or a part that is no `Backbone`.
    """
    return BACKBONES.build(spec)
