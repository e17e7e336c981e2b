"""Backbones: feature extractors that `extract` runs once over images, videos or texts."""

from __future__ import annotations

import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from PIL import Image

from polypool.encoders.backbones.model_folders import remembered_model
from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.registry import BACKBONES
from polypool.infra.spec import changed, refuse_untrusted


@dataclass(frozen=True, kw_only=True)
class ImageFeatures:
    """The features of one image, with further columns.

    Attributes:
        x_ND: `(N, D)` float32.
        columns: `(N, C)` float32 each, by name, such as `boxes` and `scores` (`polypool.infra.pictures`).
    """

    x_ND: np.ndarray
    columns: Mapping[str, np.ndarray]


class Backbone(ABC):
    """Computes features of images, videos or texts for `extract`; register one under `BACKBONES`.

    Attributes:
        dim: width D of the features.
        gpu: whether it uses a GPU if one is available; each of its workers then reserves one.
        reads: `image`: called with a list of images, returns a `(N, D)` float32 array for each. `video`: called with an
            iterator over a video's frames, returns one `(N, D)` float32 array. `text`: called with a list of texts,
            returns for each an array, or a string with the reason if the text cannot be encoded.
        columns: for images, the width of each further column, by name; if not empty, the backbone returns
            `ImageFeatures` for each image.
        note: message printed before `extract` starts, such as a setting that is slow on this machine.
    """

    dim: int
    gpu: bool = False
    reads: Literal["image", "video", "text"] = "image"
    columns: Mapping[str, int] = MappingProxyType({})
    note: str = ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return all settings that determine the features, as JSON values; `backbone` is the registered name."""

    def prepare(self, image: Image.Image) -> Any:
        """Preprocess an image, in parallel threads of `extract`; `__call__` accepts images and results of this."""
        return image

    @abstractmethod
    def __call__(
        self, inputs: Iterable[Image.Image | str]
    ) -> list[np.ndarray | ImageFeatures | str] | np.ndarray:
        """Compute the features of images of any mode and size, of a video's frames, or of texts."""


def vectors(described: np.ndarray | ImageFeatures) -> np.ndarray:
    """Return the vectors `(N, D)` of a backbone's output for one image, without columns."""
    return described.x_ND if isinstance(described, ImageFeatures) else described


def build_backbone(spec: str) -> Backbone:
    """Return the backbone of a spec.

    Raises:
        InputError: an unknown name or parameter, or a part that is no `Backbone`.
    """
    return BACKBONES.build(spec)


_SHOWN = reprlib.Repr()  # shortens the difference in a message: a tokenizer takes megabytes
_SHOWN.maxstring = _SHOWN.maxother = 80


def recorded_spec(extractor: Any, *, where: str) -> str:
    """Return the spec of the backbone that a store records.

    Args:
        extractor: output of `Backbone.describe`, as read from the store.
        where: the file and its field, for messages.

    Raises:
        InputError: an unknown backbone, or one from an untrusted module.
    """
    described = from_plain(dict[str, Any], extractor, where=where)
    name = from_plain(str, described.get("backbone"), where=f"{where}.backbone")
    refuse_untrusted(name, where=f"{where}.backbone")
    takes = inspect.signature(BACKBONES.get(name)).parameters
    params = {key: value for key, value in described.items() if key in takes and value is not None}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in params.items())})"


def recorded_backbone(extractor: dict[str, Any], *, where: str, store: str) -> Backbone:
    """Return the backbone that computed the features of a store.

    Args:
        extractor: output of `Backbone.describe`, as read from the store.
        where: the file and its field, for messages.
        store: the folder, for messages.

    Raises:
        InputError: it cannot be built, or its description differs now.
    """
    spec = recorded_spec(extractor, where=where)
    local = remembered_model(extractor)
    gone = ""
    if local and local.exists():
        spec = changed(spec, **{"name" if local.is_dir() else "weights": str(local)})
    elif local:
        gone = f" Its model was in {local} when they were extracted, which no longer exists."
    try:
        built = build_backbone(spec)
    except InputError as error:
        raise InputError(f"{store}: the backbone of its features cannot be built: {error}{gone}") from error
    here = built.describe()
    if "sha256" in here and here["sha256"] == extractor.get("sha256"):
        # the same weights, in a folder or file of another name
        here |= {key: extractor[key] for key in ("name", "weights") if key in extractor}
    if differing := sorted(key for key in extractor | here if extractor.get(key) != here.get(key)):
        what = ", ".join(
            f"{key} {_SHOWN.repr(extractor.get(key))}, here {_SHOWN.repr(here.get(key))}" for key in differing
        )
        raise InputError(
            f"{store}: its backbone cannot be built as it was ({what}); install the versions it was made with, or "
            "extract the store again and retrain"
        )
    return built
