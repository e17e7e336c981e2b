"""I3D: the network against published shapes and a reference; windows over a video as a backbone."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from polypool.encoders.backbones.inception import I3D
from polypool.infra.registry import BACKBONES


def test_i3d_parameters_match_published_names_and_shapes(weights):
    expected = {name: x.shape for name, x in weights.items() if not name.endswith("num_batches_tracked")}
    del expected["logits.conv3d.weight"], expected["logits.conv3d.bias"]
    network = I3D()
    assert {name: x.shape for name, x in network.state_dict().items()} == expected
    assert sum(x.numel() for x in network.parameters()) == 12_287_264


def explicit_pads(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding before and after, from the required output size."""
    before_and_after = 0
    while (size + before_and_after - kernel) // stride + 1 < math.ceil(size / stride):
        before_and_after += 1
    return before_and_after // 2, before_and_after - before_and_after // 2


def reference_map(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compute the last map layer by layer, from the paper's figure 3 and the published names."""
    w = {name: value.double() for name, value in weights.items()}

    def padded(x, kernel, stride):
        pads = [explicit_pads(size, k, s) for size, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
        return F.pad(x, [end for pair in reversed(pads) for end in pair])

    def unit(x, name, stride=1):
        kernel = w[f"{name}.conv3d.weight"]
        y = F.conv3d(padded(x, kernel.shape[2:], [stride] * 3), kernel, stride=stride)
        mean, var, scale, shift = (
            w[f"{name}.bn.{part}"][:, None, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return torch.clamp((y - mean) / torch.sqrt(var + 0.001) * scale + shift, min=0)

    def pool(x, kernel, stride):
        return F.max_pool3d(padded(x, kernel, stride), kernel, stride)

    def mixed(x, *blocks):
        for block in blocks:
            name = f"Mixed_{block}"
            one = unit(unit(x, f"{name}.b1a"), f"{name}.b1b")
            two = unit(unit(x, f"{name}.b2a"), f"{name}.b2b")
            three = unit(pool(x, (3, 3, 3), (1, 1, 1)), f"{name}.b3b")
            x = torch.cat([unit(x, f"{name}.b0"), one, two, three], dim=1)
        return x

    x = pool(unit(x, "Conv3d_1a_7x7", stride=2), (1, 3, 3), (1, 2, 2))
    x = pool(unit(unit(x, "Conv3d_2b_1x1"), "Conv3d_2c_3x3"), (1, 3, 3), (1, 2, 2))
    x = pool(mixed(x, "3b", "3c"), (3, 3, 3), (2, 2, 2))
    x = pool(mixed(x, "4b", "4c", "4d", "4e", "4f"), (2, 2, 2), (2, 2, 2))
    return mixed(x, "5b", "5c")


@pytest.mark.parametrize("sizes", [(9, 33, 50), (1, 31, 1)])
def test_i3d_last_map_matches_reference(network, weights, sizes):
    x = torch.rand(1, 3, *sizes, dtype=torch.float64) * 2 - 1
    expected = reference_map(weights, x)
    assert expected.shape[2:] == tuple(
        math.ceil(size / by) for size, by in zip(sizes, (8, 32, 32), strict=True)
    )
    double = I3D().double().eval()
    double.load_state_dict({name: value.double() for name, value in network.state_dict().items()})
    with torch.inference_mode():
        np.testing.assert_allclose(double.last_map(x), expected, rtol=1e-8, atol=1e-9)
        found = network.last_map(x.float())
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))


def test_features_average_two_steps_and_all_positions(network, monkeypatch):
    map_BCTHW = torch.randn(1, 1024, 3, 7, 7)
    monkeypatch.setattr(network, "last_map", lambda pixels: map_BCTHW)
    with torch.no_grad():
        features = network(torch.empty(0))
    step_CT = map_BCTHW[0].double().mean(dim=(2, 3))
    expected_TC = torch.stack([(step_CT[:, 0] + step_CT[:, 1]) / 2, (step_CT[:, 1] + step_CT[:, 2]) / 2])
    assert features.shape == (1, 2, 1024)
    np.testing.assert_allclose(features[0], expected_TC, rtol=1e-4, atol=1e-5)


class Steps:
    """A fake network: the mean of the first channel over every 8 frames, then over two neighbours."""

    def __call__(self, pixels_B3THW: torch.Tensor) -> torch.Tensor:
        self.seen = pixels_B3THW
        step_T = pixels_B3THW[0, 0].mean(dim=(1, 2)).reshape(-1, 8).mean(dim=1)
        return ((step_T[1:] + step_T[:-1]) / 2)[None, :, None].expand(1, -1, 1024)


def grey(value: int) -> Image.Image:
    return Image.new("RGB", (256, 256), (value,) * 3)


@pytest.mark.parametrize(
    ("window", "count"),
    [*product([16], [1, 8, 9, 16, 17, 24, 25]), (24, 73), *product([64], [63, 65, 72, 121])],
)
def test_windowed_features_equal_whole_video_features(path, monkeypatch, window, count):
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


def test_frames_are_resized_cropped_and_scaled(path, monkeypatch):
    backbone = built(path, window=16, monkeypatch=monkeypatch)
    image = Image.new("RGB", (1024, 512), (255, 0, 51))
    image.paste((0, 0, 0), (0, 0, 512 - 460, 512))  # 26 of 512 columns after resizing: outside the crop
    image.paste((0, 255, 0), (0, 0, 1024, 16))  # 8 of 256 rows after resizing: outside the crop
    backbone([image])
    seen = backbone._network.seen.cpu()
    assert seen.shape == (1, 3, 16, 224, 224)
    np.testing.assert_allclose(seen[0, :, 0].amin(dim=(1, 2)), [1, -1, 51 / 127.5 - 1], atol=1e-6)
    np.testing.assert_allclose(seen[0, :, 0].amax(dim=(1, 2)), [1, -1, 51 / 127.5 - 1], atol=1e-6)
    for size in [(64, 48), (1, 1), (224, 300)]:
        backbone([Image.new("L", size)])
        assert backbone._network.seen.shape == (1, 3, 16, 224, 224)


def test_i3d_backbone_matches_recorded_features(path):
    backbone = BACKBONES.build(f"i3d(weights={str(path)!r}, window=16)")
    about = backbone.describe()
    assert (about["backbone"], about["window"], about["stride"]) == ("i3d", 16, 8)
    assert (about["weights"], len(about["sha256"])) == ("rgb_imagenet.pt", 64)
    noise = np.random.default_rng(0).integers(0, 256, (9, 224, 256, 3), np.uint8)
    features_TD = backbone(map(Image.fromarray, noise))
    assert (features_TD.shape, features_TD.dtype, backbone.dim) == ((1, 1024), np.float32, 1024)
    # means of `reference_map` in float64 on the central crop of 293 x 256 frames, the last one 8 times
    recorded = [4.6239947, 5.5613813, 8.3519615, 5.7097008, 1.1473859, 0.3830586, 1.5919097, 3.0625333]
    np.testing.assert_allclose(features_TD[0, :8], recorded, rtol=1e-4)
