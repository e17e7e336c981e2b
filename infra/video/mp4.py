"""Writer of short video files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError


def write_video(path: str | Path, frames_THWC: np.ndarray, *, fps: int) -> None:
    """Write frames as MPEG-4 into an `.mp4`, with little loss.

    Args:
        path: the file; an existing one is replaced.
        frames_THWC: RGB, uint8; height and width are even.
        fps: frames a second.

    Raises:
        InputError: the file cannot be written.
    """
    import av

    try:
        with av.open(str(path), "w") as container:
            # FFmpeg's own encoder: every build has it, and every decoder reads its output
            stream = container.add_stream(
                "mpeg4", rate=fps, options={"qmin": "2", "qmax": "4", "threads": "1"}
            )
            stream.height, stream.width = frames_THWC.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for frame_HWC in frames_THWC:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame_HWC, format="rgb24")))
            container.mux(stream.encode())
    except (OSError, av.FFmpegError) as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
