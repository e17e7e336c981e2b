"""Features of a file that is in no corpus, made as those that a model was trained on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np

from polypool.encoders.backbones import recorded_backbone, recorded_spec, vectors
from polypool.infra.errors import InputError
from polypool.infra.fields import Rule, at_least, from_plain
from polypool.infra.files import existing
from polypool.infra.pictures import load
from polypool.infra.store.manifest import NAME as MANIFEST
from polypool.pipelines.data.extraction.extractors import VideoExtractor, VideoOptions, Videos, parted
from polypool.tasks.inputs.visuals import FEATURES, FeatureSource

_FRAMES = Rule(
    "'all' or a whole number of at least 1",
    lambda frames: frames == "all" or (type(frames) is int and frames > 0),
)
_DECODER = Rule("a decoder's name and version", lambda decoder: bool(decoder.strip()))


@dataclass(frozen=True, kw_only=True)
class _Video:
    """Settings of videos in a manifest that `extract` wrote."""

    decoder: Annotated[str, _DECODER]
    frames: Annotated[Any, _FRAMES]
    every: Annotated[int, at_least(1)] | None = None
    pool: Literal["mean", "concat", "all"] = "mean"
    batch: Annotated[int, at_least(1)] = 16


class FileFeatures:
    """Describes image or video files with the backbone that made the features of a store.

    Args:
        made: how the features that the model was trained on were made.

    Raises:
        InputError: on use: the store was not made by `extract`, or the backbone of it cannot be built.
    """

    def __init__(self, made: FeatureSource) -> None:
        self.made, self.source = made, made.source
        self._manifest = f"{made.store}/{MANIFEST}"
        self._where = f"{self._manifest}: source.extractor"

    @classmethod
    def for_model(cls, adapter: Any) -> FileFeatures:
        """Return what describes files for a trained model of features.

        The assets of its `Searchable` adapter say how.

        Raises:
            InputError: its assets are damaged, or it was trained without a store.
        """
        return cls(from_plain(FeatureSource, adapter.assets.get(FEATURES), where=f"assets.json: {FEATURES}"))

    @property
    def of_videos(self) -> bool:
        """Whether the store describes videos."""
        return "video" in self.source

    @property
    def _extractor(self) -> Any:
        extractor = self.source.get("extractor")
        if not extractor:
            origin = self.source.get("reader", "another program")
            raise InputError(
                f"{self.made.store}: its features come from {origin}, not from `polypool extract`, so no "
                "backbone here makes them of a new file; search with a text, or with --id, an id of the corpus"
            )
        return extractor

    @cached_property
    def _backbone(self) -> Any:
        return recorded_backbone(self._extractor, where=self._where, store=self.made.store)

    @cached_property
    def _videos(self) -> VideoExtractor:
        kept = self.source["video"]
        if isinstance(kept, dict):
            kept = kept | {"batch": self.source.get("batch", 16)}
            kept = {field.name: kept[field.name] for field in fields(_Video) if field.name in kept}
        video = from_plain(_Video, kept, where=f"{self._manifest}: source.video")
        options = VideoOptions(
            frames=None if video.frames == "all" else video.frames,
            every=video.every,
            pool=video.pool,
            decoder=cast(Any, video.decoder.partition(" ")[0]),  # `Videos.plan` checks it
        )
        spec = recorded_spec(self._extractor, where=self._where)
        videos = Videos.plan(self._backbone, options, batch=video.batch)
        if videos.version != video.decoder:
            print(
                f"note: frames come from {videos.version}, the store's from {video.decoder}", file=sys.stderr
            )
        return VideoExtractor(backbone=spec, threads=1, videos=videos)

    def check(self, *, video: bool) -> None:
        """Refuse where no image, or no video, can be described, before one comes.

        Raises:
            InputError: the store has the other ones, was not made by `extract`, or its backbone cannot be built.
        """
        if video != self.of_videos:
            has = "videos" if self.of_videos else "images"
            raise InputError(f"{self.made.store}: the model was trained on features of {has}")
        _ = self._backbone

    def of(self, path: Path, *, video: bool) -> np.ndarray:
        """Return the features `(N, dim)` of a file, rounded as the store rounds them.

        Raises:
            InputError: an image where the store has videos, or the other way round; a file that is missing or does not
                decode; or a backbone that cannot be built.
        """
        path = existing(path, what="a video" if video else "an image")
        if video != self.of_videos:
            has, say = ("videos", "--video") if self.of_videos else ("images", "--image")
            raise InputError(f"{path}: the model was trained on features of {has}; give one with {say} FILE")
        x_ND = self._of_video(path) if video else self._of_image(path)
        if x_ND.shape[1] != self.made.dim:
            raise InputError(
                f"{path}: features of width {x_ND.shape[1]}, and {self.made.store} has {self.made.dim}"
            )
        return x_ND.astype(self.made.dtype).astype(np.float32)

    def _of_image(self, path: Path) -> np.ndarray:
        return np.asarray(vectors(self._backbone([readable(path)])[0]))

    def _of_video(self, path: Path) -> np.ndarray:
        (row,) = self._videos({"ids": [""], "paths": [str(path)], "digests": [""]})
        if row["why"]:
            raise InputError(f"{path}: {row['why']}; give a video that can be played")
        return parted(row["x_NW"], self._videos.columns)[0]

    def close(self) -> None:
        """End the processes that decode."""
        if "_videos" in self.__dict__:
            self._videos.close()


def readable(path: Path) -> Any:
    """Return an image file as RGB.

    Raises:
        InputError: it does not decode.
    """
    image = load(path)
    if isinstance(image, str):
        raise InputError(f"{path}: {image}; give an image such as a JPEG or PNG")
    return image
