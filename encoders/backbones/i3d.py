"""I3D's features of a video: 1,024 numbers for every eight frames, the kind that VATEX comes with.

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
    from torch import Tensor  # torch is slow to import, and workers that need no model import this too

_STEP = 8  # frames to a step of the last map
_LEAST = 2 * _STEP  # two steps, over which the network takes means
_SHORT, _SIDE = 256, 224


@BACKBONES.register("i3d")
class I3DBackbone(Backbone):
    """The average-pooled last map of I3D on all frames of a video, which are resized to 256 pixels on the short side
    and cropped to the 224 x 224 in the middle.

    The network sees `window` frames at a time, from frame 0, `stride`, 2 `stride` and so on until the last frame was
    seen; memory is that of one window. The last window holds what is left, and the last frame is repeated until there
    are a multiple of 8 and at least 16. A window of W frames gives W / 8 - 1 vectors, means of two neighbouring steps
    of the map, and a set has those of all windows in order. With the default stride, W - 8, these are as many as the
    network would give of the whole video at once, ceil(frames / 8) - 1 (at least one); they differ from those near
    the ends of windows, where the network sees zeros instead of the frames beyond.

    Args:
        weights: path of the published `rgb_imagenet.pt`, or of another file with its names.
        window: frames that go through the network together, a multiple of 8.
        stride: frames from one window to the next, a multiple of 8; `window - 8` where None. With less, windows
            overlap and time is covered more than once.
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
        self._lock = Lock()  # videos may come from several threads; the memory is that of one window

    def describe(self) -> dict[str, object]:
        """Return what the features depend on."""
        sizes = {"short_side": _SHORT, "crop": _SIDE}
        return {"backbone": "i3d", "window": self.window, "stride": self.stride} | sizes | self._weights

    def __call__(self, frames: Iterable[Image.Image]) -> np.ndarray:
        """Return the `(T, 1024)` float32 features of the frames of a video, which are read as they are needed."""
        import torch

        parts_TD = [np.empty((0, self.dim), np.float32)]
        for window_T in self._windows(map(_prepared, frames)):
            with self._lock, torch.inference_mode():
                features_1TD = self._network(_pixels(window_T).to(self._device))
            parts_TD.append(features_1TD[0].float().cpu().numpy())
        return np.concatenate(parts_TD)

    def _windows(self, frames: Iterator[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Yield the windows, the last one filled up."""
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
    """Return the 224 x 224 x 3 in the middle, uint8; frames of any mode and size will do."""
    image = rgb(image)
    scale = _SHORT / min(image.size)
    width, height = (max(_SHORT, round(side * scale)) for side in image.size)
    left, top = (width - _SIDE) // 2, (height - _SIDE) // 2
    box = (left, top, left + _SIDE, top + _SIDE)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop(box))


def _pixels(window_T: list[np.ndarray]) -> Tensor:
    """Return frames as the network wants them: `(1, 3, T, 224, 224)` from -1 to 1."""
    import torch

    x_THW3 = torch.from_numpy(np.stack(window_T))
    return (x_THW3.permute(3, 0, 1, 2)[None].float() / 127.5 - 1).contiguous()
