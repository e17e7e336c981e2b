"""Images and videos as the visual encoder reads them: sets of features, stored or in memory, or image files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from polypool.encoders.visual.pixels import ImageTransform
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least
from polypool.infra.files import existing
from polypool.infra.pictures.opening import load
from polypool.infra.registry import ENCODERS, Spec
from polypool.infra.store import FeatureStore
from polypool.infra.video.sampling import choose_frames
from polypool.tasks.inputs.augmentations import Draw, Drop

FEATURES = "feature_source"  # key of a `FeatureSource` in a run's assets
_MAKING = ("reader", "extractor", "video", "batch")
_STREAM = 2  # of random numbers; 0 and 1 belong to the augmentation of sets and texts


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

    def fetch_ahead(self, item_B: np.ndarray) -> Sequence[Future]:
        return self.store.fetch_ahead(self.rows[item_B])

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


class Pixels:
    """Images decoded in threads, cropped and mirrored by random numbers that any worker can repeat.

    Args:
        paths: of the images, in order.
        transform: makes the encoder's input of an image.
        augment: which cells stay in training; all if None.
        threads: images decoded at a time; by default one for each core.
        digests: SHA-256 of each file, empty where it is not known; none if None.

    Raises:
        InputError: images are missing.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        transform: ImageTransform,
        augment: Drop | None = None,
        threads: int | None = None,
        digests: Sequence[str] | None = None,
    ) -> None:
        self.paths, self.transform, self.augment = list(paths), transform, augment
        self._digests = digests or [""] * len(self.paths)
        folders = {path.parent for path in self.paths}  # each is listed once
        files = {folder: set(os.listdir(folder)) for folder in folders if folder.is_dir()}
        if missing := [path for path in self.paths if path.name not in files.get(path.parent, ())]:
            raise InputError(
                f"{len(missing)} of {len(self.paths)} images are missing, the first is {missing[0]}; the corpus was "
                "ingested with another folder of images, or they were moved"
            )
        self._pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "images")

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the pixels `(B, 3, S, S)`, float32, and the mask `(B, N)` of their cells.

        Raises:
            InputError: an image does not decode, or is another one than was ingested.
        """
        mask_BN = np.ones((len(item_B), self.transform.cells), dtype=bool)
        u_B4: Sequence[np.ndarray | None] | np.ndarray = [None] * len(item_B)
        if draw is not None:
            u_B4 = draw(sample_B[:, None], np.arange(4), _STREAM)
            if self.augment:
                mask_BN = np.stack(self.augment(mask_BN.sum(axis=1), sample_B, draw))
        pixels_B3SS = np.stack(list(self._pool.map(self._read, item_B.tolist(), u_B4)))
        return torch.from_numpy(pixels_B3SS), torch.from_numpy(mask_BN)

    def _read(self, item: int, u_4: Any) -> np.ndarray:
        image = load(self.paths[item], digest=self._digests[item])
        if isinstance(image, str):
            raise InputError(
                f"{self.paths[item]}: {image}; replace the file, or ingest the corpus without it"
            )
        return self.transform(image, u_4)


def unseen_inputs(
    visuals: Sequence[np.ndarray | str | Path], *, spec: Spec, assets: Mapping[str, Any], limit: int = 0
) -> VisualInputs:
    """Return the visual encoder's inputs of images or videos that are in no corpus.

    Args:
        visuals: features `(N, F)` of each, or for an encoder of pixels the image files.
        spec: of the encoder.
        assets: of the encoder.
        limit: elements of a set of features; 0 for no limit.

    Raises:
        InputError: features of another shape, a missing file, or files for an encoder of features and vice versa.
    """
    encoder = ENCODERS.get(spec.name)
    files = [visual for visual in visuals if isinstance(visual, str | Path)]
    sets = [visual for visual in visuals if not isinstance(visual, str | Path)]
    if encoder.reads == "features":
        if files:
            raise InputError(
                f"the encoder {spec.name!r} reads features, not image files; extract them first with the backbone that "
                "the model was trained on: polypool extract"
            )
        return MemorySets(sets, dim=assets["dim"], limit=limit)
    if sets:
        raise InputError(f"the encoder {spec.name!r} reads image files; give their paths, not arrays")
    paths = [existing(path, what="an image") for path in files]
    return Pixels(paths, transform=encoder.transform(assets, **spec.params))
