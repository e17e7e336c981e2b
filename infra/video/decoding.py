"""Frames of a video file, by decord or by PyAV: the same ones from both.

This runs in a process of its own, `infra.video.process`: decoders crash, and hang where nothing but a kill ends them.
decord's `get_batch` is one such place, so frames are asked for one by one; for those that it cannot decode it silently
gives their neighbours unless `fault_tol` is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version

import numpy as np
from PIL import Image

from infra.errors import InputError, unknown
from infra.video.sampling import choose_frames

_FEWER = "fewer frames than the file says, which is cut or damaged"
_PICTURES = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")


class BadVideo(Exception):
    """A video that gives no frames; the message says why, in words that are the same for every such video."""


def frames(path: str, *, at_most: int | None = None, decoder: str) -> Iterator[np.ndarray]:
    """Yield frames `(H, W, 3)` of a video as uint8 RGB, upright, in order; no other is converted or kept.

    Args:
        path: the file.
        at_most: evenly spaced ones where there are more (`infra.video.sampling`); all where None.
        decoder: `decord` or `av`.

    Raises:
        BadVideo: there is no such file, it is no video, or it is damaged, cut off or without frames; the frames
            before the damage may have been yielded.
    """
    if why := _unusable(path):
        raise BadVideo(why)
    try:
        yield from DECODERS[decoder](path, at_most)
    except BadVideo:
        raise
    except Exception as error:  # decord raises RuntimeError and its own, PyAV OSError, ValueError and its own
        if "cannot find video stream" in str(error):
            raise BadVideo("no video in it, only other streams") from error
        raise BadVideo(f"does not decode as a video ({type(error).__name__})") from error


def choose_decoder(name: str = "auto") -> str:
    """Return the decoder that this machine has: decord, or PyAV where decord does not import.

    Args:
        name: `auto`, or the one that it has to be.

    Raises:
        InputError: an unknown decoder, or one that does not import.
    """
    if name not in ("auto", *DECODERS):
        raise unknown("decoder", name, ("auto", *DECODERS))
    for each in DECODERS if name == "auto" else (name,):
        # looked up in another process: these libraries do not always get on with the ones that are loaded here
        if subprocess.run([sys.executable, "-c", f"import {each}"], capture_output=True).returncode == 0:
            return each
    raise InputError(
        f"the decoder {name!r} does not import; install it with `pip install av` or `pip install decord`"
    )


def describe_decoder(name: str) -> str:
    """Return name and version of a decoder, `av 14.0.0`."""
    return f"{name} {version(name)}"


def _unusable(path: str) -> str | None:
    """Return why a file is no video where that can be seen without a decoder."""
    if not os.path.isfile(path):
        return "no such file"
    if os.path.getsize(path) == 0:
        return "an empty file"
    try:
        with Image.open(path, formats=_PICTURES) as image:
            still = getattr(image, "n_frames", 1) == 1
    except Exception:  # it is no picture, then
        return None
    return "a picture, not a video" if still else None


def _by_decord(path: str, at_most: int | None) -> Iterator[np.ndarray]:
    import decord

    reader = decord.VideoReader(path, num_threads=1, fault_tol=0)
    if list(reader.get_key_indices())[:1] != [0]:  # it would make frames up
        raise BadVideo(_FEWER)
    for number in _chosen(len(reader), at_most).tolist():
        x_HWC = reader[number].asnumpy()
        height, width, _ = x_HWC.shape
        # decord takes the bytes that fill up short lines for more channels
        yield x_HWC.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


def _by_av(path: str, at_most: int | None) -> Iterator[np.ndarray]:
    import av

    with av.open(path) as container:
        if not container.streams.video:
            raise BadVideo("no video in it, only other streams")
        count = sum(packet.size > 0 for packet in container.demux(video=0))
    left = iter(_chosen(count, at_most).tolist())
    wanted = next(left, None)
    with av.open(path) as container:
        container.streams.video[0].thread_type = "NONE"
        for number, frame in enumerate(container.decode(video=0)):
            if number == wanted:
                x_HW3 = frame.to_ndarray(format="rgb24")
                yield np.rot90(x_HW3, frame.rotation // 90 % 4)
                wanted = next(left, None)
                if wanted is None:
                    return
    if wanted is not None:
        raise BadVideo(_FEWER)


def _chosen(count: int, at_most: int | None) -> np.ndarray:
    if count < 1:
        raise BadVideo("no frames")
    return choose_frames(count, count if at_most is None else at_most)


DECODERS: dict[str, Callable[[str, int | None], Iterator[np.ndarray]]] = {"decord": _by_decord, "av": _by_av}
