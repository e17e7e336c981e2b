"""Video readers shared by the threads of a pool."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from queue import Empty, LifoQueue

from polypool.infra.video.containers import Frame
from polypool.infra.video.video_reader import VideoReader


class VideoReaders:
    """A reader for each of several threads; the processes that decode start when they are needed.

    They end with `close`, or when nothing refers to this object any more.

    Args:
        count: videos that are decoded at a time.
        decoder: `av` or `decord`, as `polypool.infra.video.decoding.choose_decoder` returns it.
        timeout: seconds of decoding after which a video is given up.
    """

    def __init__(self, count: int, *, decoder: str, timeout: float = 60.0) -> None:
        self._idle: LifoQueue[VideoReader] = LifoQueue()  # one that has a process comes first
        for _ in range(count):
            self._idle.put(VideoReader(decoder=decoder, timeout=timeout))
        self.close = weakref.finalize(self, _close, self._idle)

    def frames(
        self, path: str | Path, *, every: int = 1, at_most: int | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of a video, as `VideoReader.frames` does; wait while all readers are in use.

        Raises:
            BadVideo: it has no (more) frames, they take too much time or memory, or the decoder crashed.
            RuntimeError: the process does not start.
        """
        reader = self._idle.get()
        try:
            with closing(reader.frames(path, every=every, at_most=at_most)) as decoded:
                yield from decoded
        finally:
            self._idle.put(reader)


def _close(readers: LifoQueue[VideoReader]) -> None:
    while True:
        try:
            readers.get_nowait().close()
        except Empty:
            return
