"""I3D features of a video: one 1,024-wide vector per eight frames, as published with VATEX.

Carreira and Zisserman, "Quo vadis, action recognition? A new model and the Kinetics dataset", CVPR 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone
from polypool.infra.files import sha256
from polypool.infra.paths import FilePath
from polypool.infra.pictures import rgb
from polypool.infra.registry import BACKBONES

if TYPE_CHECKING:
    from torch import Tensor  # torch is slow to import, and workers without a model import this module, too

_STEP = 8  # frames per step of the last map
_LEAST = 2 * _STEP  # the network averages two neighbouring steps
_SHORT, _SIDE = 256, 224


@BACKBONES.register("i3d")
class I3DBackbone(Backbone):
    """The average-pooled last feature map of I3D on all frames of a video.

    Frames are resized to 256 pixels on the short side, and the central 224 x 224 is cropped. The network sees `window`
    frames at a time, starting at frame 0, `stride`, 2 `stride` and so on, up to the last frame; only one window is in
    memory. The last frame is repeated until the last window has a multiple of 8 frames, at least 16. A window of W
    frames gives W / 8 - 1 vectors, means of two neighbouring steps of the map; a set holds the vectors of all windows.
    With the default stride W - 8 the number of vectors equals one pass over the whole video, ceil(frames / 8) - 1 (at
    least one); values differ near the ends of windows, where the network sees zero padding instead of further frames.

    Args:
        weights: path of the published `rgb_imagenet.pt`, or of another file with the same parameter names.
        window: frames per forward pass, a multiple of 8.
        stride: frames from one window to the next, a multiple of 8; `window - 8` if None. Smaller strides make windows
            overlap further.
    """

    gpu = True
    reads = "video"
    dim = 1024

    def __init__(self, *, weights: FilePath, window: int = 64, stride: int | None = None) -> None:
        stride = window - _STEP if stride is None else stride
        if window % _STEP or stride % _STEP or window < _LEAST or not _STEP <= stride <= window:
            raise ValueError(
                f"window and stride must be multiples of {_STEP}, window at least {_LEAST} and stride no larger "
                f"than it, got {window} and {stride}"
            )

        from polypool.encoders.backbones.inception import I3D
        from polypool.infra.compute.device import best_device

        self.window, self.stride = window, stride
        path = Path(weights).expanduser()
        self._device = best_device()
        self._network = I3D.load(path).to(self._device)
        self._weights = {"weights": path.name, "sha256": sha256(path)}
        self._lock = Lock()  # one window in memory, also when called from several threads

    def describe(self) -> dict[str, object]:
        """Return all settings that determine the features."""
        sizes = {"short_side": _SHORT, "crop": _SIDE}
        return {"backbone": "i3d", "window": self.window, "stride": self.stride} | sizes | self._weights

    def __call__(self, frames: Iterable[Image.Image]) -> np.ndarray:
        """Return the features of a video `(T, 1024)` float32; frames are read lazily."""
        import torch

        parts_TD = [np.empty((0, self.dim), np.float32)]
        for window_T in self._windows(map(_prepared, frames)):
            with self._lock, torch.inference_mode():
                features_1TD = self._network(_pixels(window_T).to(self._device))
            parts_TD.append(features_1TD[0].float().cpu().numpy())
        return np.concatenate(parts_TD)

    def _windows(self, frames: Iterator[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Yield the windows, the last one padded."""
        window_T: list[np.ndarray] = []
        for x_HW3 in frames:
            if len(window_T) == self.window:
                yield window_T
                window_T = window_T[self.stride :]
            window_T.append(x_HW3)
        if window_T:
            count = max(_LEAST, -(-len(window_T) // _STEP) * _STEP)
            yield window_T + window_T[-1:] * (count - len(window_T))


def _prepared(image: Image.Image) -> np.ndarray:
    """Return the central crop `(224, 224, 3)`, uint8; frames may have any mode and size."""
    image = rgb(image)
    scale = _SHORT / min(image.size)
    width, height = (max(_SHORT, round(side * scale)) for side in image.size)
    left, top = (width - _SIDE) // 2, (height - _SIDE) // 2
    box = (left, top, left + _SIDE, top + _SIDE)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop(box))


def _pixels(window_T: list[np.ndarray]) -> Tensor:
    """Return frames as network input `(1, 3, T, 224, 224)` in [-1, 1]."""
    import torch

    x_THW3 = torch.from_numpy(np.stack(window_T))
    return (x_THW3.permute(3, 0, 1, 2)[None].float() / 127.5 - 1).contiguous()
