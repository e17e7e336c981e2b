"""Video-text retrieval: MSR-VTT, VATEX, MSVD, and other video corpora."""

from __future__ import annotations

from typing import Any

from polypool.infra.registry import TASKS
from polypool.tasks.retrieval import Retrieval
from polypool.tasks.run import Run


@TASKS.register("video_text")
class VideoText(Retrieval):
    """The adapter of video-text retrieval: a video is the set of its frames or clips, stored or decoded.

    Args:
        run: its complete description.
        assets: of a checkpoint; computed from the corpus if None.
        dev_protocol: protocol that selects the best epoch.
        chunk: videos or captions per forward pass in evaluation.
    """

    modality = "video"
    samples = "videos"

    def __init__(
        self,
        run: Run,
        assets: dict[str, Any] | None = None,
        *,
        dev_protocol: str = "val-distinct",
        chunk: int = 256,
    ) -> None:
        super().__init__(run, assets, dev_protocol=dev_protocol, chunk=chunk)
