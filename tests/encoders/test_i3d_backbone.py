"""I3D as a backbone: windows over a video, frames as the network wants them, parameters."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polypool.encoders.backbones.inception import I3D
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES


class Steps:
    """In the network's place: the mean of the first channel over every 8 frames, then of two neighbours."""

    def __call__(self, pixels_B3THW: torch.Tensor) -> torch.Tensor:
        self.seen = pixels_B3THW
        step_T = pixels_B3THW[0, 0].mean(dim=(1, 2)).reshape(-1, 8).mean(dim=1)
        return ((step_T[1:] + step_T[:-1]) / 2)[None, :, None].expand(1, -1, 1024)


def grey(value: int) -> Image.Image:
    return Image.new("RGB", (256, 256), (value,) * 3)


@pytest.mark.parametrize("window", [16, 24, 64])
@pytest.mark.parametrize("count", [1, 8, 9, 15, 16, 17, 24, 25, 63, 64, 65, 72, 73, 120, 121, 150])
def test_windows_give_as_many_steps_as_the_whole_video(path, monkeypatch, window, count):
    backbone = built(path, window=window, monkeypatch=monkeypatch)
    features_TD = backbone(grey(number) for number in range(count))
    filled = [min(number, count - 1) for number in range(max(16, -(-count // 8) * 8))]
    step_T = np.array(filled).reshape(-1, 8).mean(axis=1) / 127.5 - 1
    expected_T = (step_T[1:] + step_T[:-1]) / 2
    assert features_TD.shape == (max(1, math.ceil(count / 8) - 1), 1024)
    np.testing.assert_allclose(features_TD[:, 0], expected_T, atol=1e-5)


def built(path: Path, *, monkeypatch: pytest.MonkeyPatch, **sizes: int):
    """Return the backbone with `Steps` as its network."""
    monkeypatch.setattr(I3D, "load", classmethod(lambda cls, path: torch.nn.Identity()))
    backbone = BACKBONES.get("i3d")(weights=str(path), **sizes)
    backbone._network = Steps()
    return backbone


def test_windows_of_another_stride(path, monkeypatch):
    backbone = built(path, window=32, stride=32, monkeypatch=monkeypatch)
    apart = backbone(grey(number) for number in range(64))
    assert len(apart) == 2 * 3  # the mean over frames 24 to 39 is left out
    backbone = built(path, window=32, stride=8, monkeypatch=monkeypatch)
    assert len(backbone(grey(number) for number in range(48))) == 3 * 3


def test_no_more_than_a_window_is_held(path, monkeypatch):
    backbone, ahead = built(path, window=16, monkeypatch=monkeypatch), []
    network, given = backbone._network, 0

    def frames():
        nonlocal given
        for number in range(100):
            given += 1
            yield grey(number)

    def counted(pixels):
        ahead.append((given, pixels.shape[2]))
        return network(pixels)

    backbone._network = counted
    backbone(frames())
    assert [at for at, _ in ahead][:3] == [17, 25, 33]
    assert {length for _, length in ahead} == {16}


def test_frames_are_resized_cropped_and_scaled(path, monkeypatch):
    backbone = built(path, window=16, monkeypatch=monkeypatch)
    image = Image.new("RGB", (1024, 512), (255, 0, 51))
    image.paste((0, 0, 0), (0, 0, 512 - 460, 512))  # 26 of 512 columns at the new size: outside the middle
    image.paste((0, 255, 0), (0, 0, 1024, 16))  # 8 of 256 rows: outside too
    backbone([image])
    seen = backbone._network.seen
    assert seen.shape == (1, 3, 16, 224, 224)
    np.testing.assert_allclose(seen[0, :, 0].amin(dim=(1, 2)), [1, -1, 51 / 127.5 - 1], atol=1e-6)
    np.testing.assert_allclose(seen[0, :, 0].amax(dim=(1, 2)), [1, -1, 51 / 127.5 - 1], atol=1e-6)
    for size in [(64, 48), (48, 64), (1, 1), (224, 300)]:
        backbone([Image.new("L", size)])
        assert backbone._network.seen.shape == (1, 3, 16, 224, 224)


def test_the_backbone_runs_the_network(path, network):
    backbone = BACKBONES.build(f"i3d(weights={str(path)!r}, window=16)")
    noise = np.random.default_rng(0).integers(0, 256, (16, 224, 256, 3), np.uint8)
    middle = np.stack(
        [np.asarray(Image.fromarray(x).resize((293, 256), Image.Resampling.BILINEAR)) for x in noise]
    )
    middle = middle[:, 16:240, 34:258]
    with torch.inference_mode():
        expected = network((torch.from_numpy(middle).permute(3, 0, 1, 2)[None] / 127.5 - 1).float())[0]
    features_TD = backbone(map(Image.fromarray, noise))
    assert (features_TD.shape, features_TD.dtype, backbone.dim) == ((1, 1024), np.float32, 1024)
    np.testing.assert_allclose(features_TD, expected, rtol=1e-3, atol=1e-4)
    about = backbone.describe()
    assert (about["backbone"], about["window"], about["stride"]) == ("i3d", 16, 8)
    assert about["weights"] == "rgb_imagenet.pt"
    assert len(about["sha256"]) == 64


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("", "weights"),
        ("weights='none.pt'", "no weights at none.pt"),
        ("weights='none.pt', window=20", "multiples of 8"),
        ("weights='none.pt', window=8", "at least 16"),
        ("weights='none.pt', stride=72", "no larger than it"),
        ("weights='none.pt', stride=0", "multiples of 8"),
    ],
)
def test_bad_parameters_are_one_message(parameters, message):
    with pytest.raises(InputError, match=message):
        BACKBONES.build(f"i3d({parameters})")


def test_a_set_of_no_frames_is_empty(path, monkeypatch):
    assert built(path, monkeypatch=monkeypatch)(iter([])).shape == (0, 1024)
