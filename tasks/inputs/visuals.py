"""Images and videos as the visual encoder reads them: sets of features, stored or in memory, or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.fields import at_least
from polypool.infra.files import existing
from polypool.infra.registry import ENCODERS, Spec
from polypool.infra.store import FeatureStore
from polypool.infra.video import choose_frames
from polypool.tasks.inputs.augmentations import Draw, Drop
from polypool.tasks.inputs.visual_files import Modality, visual_files

FEATURES = "feature_source"  # key of a `FeatureSource` in a run's assets
_MAKING = ("reader", "extractor", "video", "batch")


class VisualInputs(Protocol):
    """The visual encoder's inputs of a split's images or videos."""

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the items `item_B` and the mask `(B, N)` of their sets.

        Args:
            item_B: numbers of the items in their split.
            sample_B: numbers of the samples that they belong to, which seed the augmentation.
            draw: source of the augmentation's random numbers; None for no augmentation.
        """


@dataclass(frozen=True, kw_only=True)
class FeatureSource:
    """Origin of a run's stored features, as its assets keep it, so that new files are described without the store.

    Attributes:
        store: the folder, for messages.
        dim: width of its vectors.
        dtype: of the stored numbers.
        source: from its manifest: the `reader` of another program's files, or the `extractor`, its settings of `video`
            and the size of a `batch`.
    """

    store: str
    dim: Annotated[int, at_least(1)]
    dtype: Literal["float16", "float32"]
    source: dict[str, Any]

    @classmethod
    def of(cls, store: FeatureStore, *, called: str = "") -> FeatureSource:
        """Describe a store, whose folder messages name as `called`, or by its path if empty."""
        manifest = store.manifest.source
        return cls(
            store=called or str(store.folder),
            dim=store.dim,
            dtype=cast("Any", store.dtype),
            source={name: manifest[name] for name in _MAKING if name in manifest},
        )


class StoredSets:
    """The sets of a feature store, one for each image or video.

    Args:
        store: the features.
        ids: of the items of a split, in order.
        augment: which elements stay in training; all if None.
        limit: elements of a set; larger ones are thinned out evenly, as HGR does with frames; 0 for no limit.
    """

    def __init__(
        self, store: FeatureStore, ids: Sequence[str], *, augment: Drop | None = None, limit: int = 0
    ) -> None:
        self.store, self.augment, self.limit = store, augment, limit
        self.rows = store.rows(ids)

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the sets `(B, N, F)` and their mask."""
        rows_B, selected = self.rows[item_B], None
        size_B = self.store.sizes(rows_B)
        if self.limit:
            selected = [np.isin(np.arange(size), choose_frames(size, self.limit)) for size in size_B.tolist()]
            size_B = np.minimum(size_B, self.limit)
        if self.augment and draw is not None:
            stay = self.augment(size_B, sample_B, draw)
            for selected_N, stay_K in zip(selected or (), stay, strict=bool(selected)):
                selected_N[selected_N] = stay_K
            selected = selected or stay
        return self.store.padded(rows_B, keep=selected)


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
    visuals: Sequence[np.ndarray | str | Path],
    *,
    spec: Spec,
    assets: Mapping[str, Any],
    limit: int = 0,
    modality: Modality = "image",
) -> VisualInputs:
    """Return the visual encoder's inputs of images or videos that are in no corpus.

    Args:
        visuals: features `(N, F)` of each, or for an encoder of pixels the image or video files.
        spec: of the encoder.
        assets: of the encoder.
        limit: elements of a set of features, 0 for no limit; or frames of a video file.
        modality: of the files.

    Raises:
        InputError: features of another shape, a missing file, or files for an encoder of features and vice versa.
    """
    encoder = ENCODERS.get(spec.name)
    files = [visual for visual in visuals if isinstance(visual, str | Path)]
    sets = [visual for visual in visuals if not isinstance(visual, str | Path)]
    if encoder.reads == "features":
        if files:
            raise InputError(
                f"the encoder {spec.name!r} reads features, not {modality} files; extract them first with the backbone "
                "that the model was trained on: polypool extract"
            )
        return MemorySets(sets, dim=assets["dim"], limit=limit)
    if sets:
        raise InputError(f"the encoder {spec.name!r} reads {modality} files; give their paths, not arrays")
    what = "a video" if modality == "video" else "an image"
    paths = [existing(path, what=what) for path in files]
    transform = encoder.transform(assets, **spec.params)
    return visual_files(paths, modality=modality, frames=limit, transform=transform)
