"""The base class of backbones, which extract features to store: of images, of all frames of a video, or of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from PIL import Image

from infra.registry import BACKBONES


@dataclass(frozen=True, kw_only=True)
class Described:
    """The set of one image, with what stands beside its vectors.

    Attributes:
        x_ND: `(N, D)` float32.
        columns: `(N, C)` float32 each, by name, such as `boxes` and `scores` (`infra.pictures.boxes`).
    """

    x_ND: np.ndarray
    columns: Mapping[str, np.ndarray]

    def side_by_side(self) -> np.ndarray:
        """Return vectors and columns as one array `(N, D + C ...)`, the columns in the order of their names."""
        return np.concatenate([self.x_ND, *(self.columns[name] for name in sorted(self.columns))], axis=1)


class Backbone(ABC):
    """Describes images, videos or texts for `extract`; register one under `BACKBONES`.

    Attributes:
        dim: width D of the features.
        gpu: whether it computes on a GPU where there is one; each worker of it then gets one.
        reads: `image`: it is called with a list of images, and returns a `(N, D)` float32 array for each; `video`: it
            is called with an iterator over a video's frames, and returns one `(N, D)` float32 array; `text`: with a
            list of texts, and returns for each such an array, or a text that says why there is none.
        columns: of a backbone of images, what stands beside each vector, by name how many numbers; where there is any,
            it returns a `Described` for each image.
        note: what `extract` says before it starts, such as that a setting does not suit this machine.
    """

    dim: int
    gpu: bool = False
    reads: Literal["image", "video", "text"] = "image"
    columns: Mapping[str, int] = MappingProxyType({})
    note: str = ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what the features depend on, as JSON can hold it; `backbone` is the registered name."""

    @abstractmethod
    def __call__(
        self, inputs: Iterable[Image.Image | str]
    ) -> list[np.ndarray | Described | str] | np.ndarray:
        """Describe images of any mode and size, a video by its frames, or texts."""


def vectors(described: np.ndarray | Described) -> np.ndarray:
    """Return the vectors `(N, D)` alone of what a backbone returned for one image."""
    return described.x_ND if isinstance(described, Described) else described


def build_backbone(spec: str) -> Backbone:
    """Return the backbone of a spec.

    Raises:
        InputError: an unknown name or parameter, or a part that is no `Backbone`.
    """
    return BACKBONES.build(spec)
