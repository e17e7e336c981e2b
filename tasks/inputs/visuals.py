"""Images and videos as the visual encoder reads them: sets of features, stored or in memory, or files.

Files are decoded in threads, for encoders that read pixels.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polypool.encoders.visual.pixels import ImageTransform
from polypool.infra.digests import why_changed
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least
from polypool.infra.files import existing
from polypool.infra.pictures import load
from polypool.infra.registry import ENCODERS, Spec
from polypool.infra.store import FeatureStore
from polypool.infra.store.resident import StoreRows
from polypool.infra.video import BadVideo, VideoReaders, choose_decoder, choose_frames
from polypool.tasks.inputs.augmentations import Draw, Drop

Modality = Literal["image", "video"]
_STREAM = 2  # of random numbers; augmentations use 0 and 1
_decoder = cache(choose_decoder)  # which starts a process


class VisualFiles(ABC):
    """Files decoded in threads, cropped and mirrored by random numbers that any worker can repeat.

    Args:
        paths: of the files, in order.
        transform: makes the encoder's input of an image, or of a frame.
        augment: which cells stay in training; all if None.
        threads: files decoded at a time; by default one for each core.
        digests: SHA-256 of each file, empty where it is not known; none if None.

    Raises:
        InputError: files are missing.
    """

    modality: Modality

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
        self.digests = digests or [""] * len(self.paths)
        folders = {path.parent for path in self.paths}  # each is listed once
        files = {folder: set(os.listdir(folder)) for folder in folders if folder.is_dir()}
        if missing := [path for path in self.paths if path.name not in files.get(path.parent, ())]:
            raise InputError(
                f"{len(missing)} of {len(self.paths)} {self.modality}s are missing, the first is {missing[0]}; the "
                f"corpus was ingested with another folder of {self.modality}s, or they were moved"
            )
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, f"{self.modality}s")

    def batch(self, item_B: np.ndarray, *, sample_B: np.ndarray, draw: Draw | None) -> tuple[Tensor, Tensor]:
        """Return the pixels, float32, and the mask of their cells.

        Images are `(B, 3, S, S)` with masks `(B, N)`; videos `(B, F, 3, S, S)`, zeros in the pads, with masks
        `(B, F * N)`.

        Raises:
            InputError: a file that does not decode, or has changed since it was ingested.
        """
        u_B4 = [None] * len(item_B) if draw is None else draw(sample_B[:, None], np.arange(4), _STREAM)
        pixels = [torch.from_numpy(x) for x in self._pool.map(self.read, item_B.tolist(), u_B4)]
        size_B = np.array([self.transform.cells * math.prod(x.shape[:-3]) for x in pixels])
        if self.augment and draw is not None:
            stay = self.augment(size_B, sample_B, draw)
        else:
            stay = [np.ones(size, bool) for size in size_B]
        mask_BN = pad_sequence([torch.from_numpy(stay_N) for stay_N in stay], batch_first=True)
        return pad_sequence(pixels, batch_first=True), mask_BN

    @abstractmethod
    def read(self, item: int, u_4: Any) -> np.ndarray:
        """Return the encoder's input of a file, cropped and mirrored by `u_4` (whole if None); see `ImageTransform`."""

    def unreadable(self, item: int, why: str) -> InputError:
        """Return the error of a file that cannot be read."""
        return InputError(f"{self.paths[item]}: {why}; replace the file, or ingest the corpus without it")


class Pixels(VisualFiles):
    """Images, each `(3, S, S)`."""

    modality = "image"

    def read(self, item: int, u_4: Any) -> np.ndarray:
        image = load(self.paths[item], digest=self.digests[item])
        if isinstance(image, str):
            raise self.unreadable(item, image)
        return self.transform(image, u_4)


class Frames(VisualFiles):
    """Frames of videos, `(F, 3, S, S)` of each, with one crop for all frames of a video.

    Args:
        paths, how: as in `VisualFiles`.
        frames: maximum number of frames of each video, evenly spaced.

    Raises:
        InputError: files are missing, `frames` is 0, or PyAV is not installed.
    """

    modality = "video"

    def __init__(self, paths: Sequence[Path], *, frames: int, **how: Any) -> None:
        check_frames(frames)
        super().__init__(paths, **how)
        self.frames = frames
        self._readers = VideoReaders(self.threads, decoder=_decoder())

    def read(self, item: int, u_4: Any) -> np.ndarray:
        path = self.paths[item]
        if why := why_changed(path, self.digests[item]):
            raise self.unreadable(item, why)
        try:
            frames = self._readers.frames(path, at_most=self.frames)
            return np.stack([self.transform(Image.fromarray(x_HW3), u_4) for x_HW3, _ in frames])
        except BadVideo as bad:
            raise self.unreadable(item, str(bad)) from bad


def check_frames(frames: int) -> None:
    """Refuse to encode every frame of video files.

    Raises:
        InputError: `frames` is 0.
    """
    if frames < 1:
        raise InputError(
            "--data.max-frames 0 has the visual encoder read every frame of a video file; make it the number of frames "
            "of a video, such as 4"
        )


def visual_files(
    paths: Sequence[Path], *, modality: Modality, frames: int, transform: ImageTransform, **how: Any
) -> VisualFiles:
    """Return `Pixels` of images, or `Frames` of videos with at most `frames` each."""
    if modality == "video":
        return Frames(paths, frames=frames, transform=transform, **how)
    return Pixels(paths, transform=transform, **how)


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
    """Origin of a run's stored features, kept in its assets, so that features of new files need no store.

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
        """Return the origin of a store; messages name the store as `called`, or by its path if empty."""
        manifest = store.manifest.source
        return cls(
            store=called or str(store.folder),
            dim=store.dim,
            dtype=cast("Any", store.dtype),
            source={name: manifest[name] for name in _MAKING if name in manifest},
        )


class StoredSets(StoreRows):
    """The sets of a feature store, one for each image or video.

    Args:
        store: the features.
        ids: of the items of a split, in order.
        augment: which elements stay in training; all if None.
        limit: maximum elements of a set; larger sets are thinned out evenly, as HGR's frames; 0 for no limit.
    """

    def __init__(
        self, store: FeatureStore, ids: Sequence[str], *, augment: Drop | None = None, limit: int = 0
    ) -> None:
        super().__init__(store, store.rows(ids))
        self.augment, self.limit = augment, limit

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
        return self.sets.padded(rows_B, keep=selected)


class MemorySets:
    """Sets in memory, one for each image or video.

    Args:
        sets: features `(N, F)`, as a feature store keeps them.
        dim: width F that the model was trained with.
        limit: maximum elements of a set; larger sets are thinned out evenly; 0 for no limit.

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
        x_BNF = pad_sequence(sets, batch_first=True)
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
        limit: maximum elements of a set of features, 0 for no limit; or maximum frames of a video file, at least 1.
        modality: of the files.

    Raises:
        InputError: features of another shape, a missing file, no limit for video files, or files for an encoder of
            features and vice versa.
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
