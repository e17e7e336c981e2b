"""The network of I3D against the published table and explicit formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from i3d_weights import units

from polypool.encoders.backbones.inception import I3D, MaxPool, Unit, pad_same
from polypool.infra.errors import InputError


def test_parameters_are_those_of_the_published_table():
    convolutions = sum(inputs * outputs * kernel**3 for inputs, outputs, kernel in units().values())
    scales = sum(2 * outputs for _, outputs, _ in units().values())
    network = I3D()
    counts = {name: x.numel() for name, x in network.named_parameters()}
    classifier = counts.pop("logits.conv3d.weight") + counts.pop("logits.conv3d.bias")
    assert sum(counts.values()) == convolutions + scales == 12_287_264
    assert classifier == 400 * 1024 + 400


def test_names_and_shapes_are_the_published_ones(weights):
    expected = {name: x.shape for name, x in weights.items() if not name.endswith("num_batches_tracked")}
    assert {name: x.shape for name, x in I3D().state_dict().items()} == expected


def explicit_pads(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding before and after, from the outputs it promises."""
    before_and_after = 0
    while (size + before_and_after - kernel) // stride + 1 < math.ceil(size / stride):
        before_and_after += 1
    return before_and_after // 2, before_and_after - before_and_after // 2


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2), (7, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9])
def test_padding_is_tensorflow_s(kernel, stride, size):
    padded = pad_same(torch.ones(1, 1, size, 1, 1), (kernel, 1, 1), (stride, 1, 1))[0, 0, :, 0, 0]
    before, after = explicit_pads(size, kernel, stride)
    assert padded.tolist() == [0.0] * before + [1.0] * size + [0.0] * after


def test_each_dimension_has_its_own_padding():
    padded = pad_same(torch.ones(1, 1, 4, 5, 6), (3, 2, 7), (2, 2, 1))
    assert padded.shape[2:] == (5, 6, 12)
    assert padded[0, 0, 4].sum() == 0
    assert padded[0, 0, :, 5].sum() == 0
    assert padded[0, 0, 0, 0].tolist() == [0.0] * 3 + [1.0] * 6 + [0.0] * 3


def same_conv(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    """Convolve `(C, T, H, W)` with `(O, C, K, K, K)` by loops over the outputs."""
    kernel, sizes = w.shape[-1], x.shape[1:]
    x = np.pad(x, [(0, 0), *(explicit_pads(size, kernel, stride) for size in sizes)])
    out = np.empty((len(w), *(math.ceil(size / stride) for size in sizes)))
    for t, h, v in np.ndindex(out.shape[1:]):
        t0, h0, v0 = t * stride, h * stride, v * stride
        part = x[:, t0 : t0 + kernel, h0 : h0 + kernel, v0 : v0 + kernel]
        out[:, t, h, v] = (w * part).sum(axis=(1, 2, 3, 4))
    return out


@pytest.mark.parametrize(
    ("kernel", "stride", "sizes"), [(7, 2, (5, 8, 9)), (3, 1, (2, 3, 4)), (1, 1, (1, 2, 3))]
)
def test_a_unit_is_convolution_normalisation_and_relu(kernel, stride, sizes):
    torch.manual_seed(0)
    unit = Unit(2, 3, kernel=kernel, stride=stride).double()
    unit.load_state_dict({name: torch.rand_like(x) + 0.1 for name, x in unit.state_dict().items()})
    x_CTHW = torch.randn(2, *sizes, dtype=torch.float64)
    y = same_conv(x_CTHW.numpy(), unit.conv3d.weight.detach().numpy(), stride)
    by_channel = {name: x.detach().numpy()[:, None, None, None] for name, x in unit.bn.state_dict().items()}
    y = (y - by_channel["running_mean"]) / np.sqrt(by_channel["running_var"] + 1e-3)
    y = np.maximum(y * by_channel["weight"] + by_channel["bias"], 0)
    np.testing.assert_allclose(unit(x_CTHW[None])[0].detach().numpy(), y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [(4, 6, 7), (1, 1, 1), (5, 5, 5)])
def test_pooling_takes_the_largest_of_what_is_there(sizes):
    x_THW = np.random.default_rng(0).random(sizes)
    got = MaxPool((3, 3, 3), (2, 2, 2))(torch.from_numpy(x_THW)[None, None])[0, 0].numpy()
    starts = [[i * 2 - explicit_pads(size, 3, 2)[0] for i in range(math.ceil(size / 2))] for size in sizes]
    assert got.shape == tuple(map(len, starts))
    for place in np.ndindex(got.shape):
        at = [starts[dim][i] for dim, i in enumerate(place)]
        part = x_THW[tuple(slice(max(0, a), a + 3) for a in at)]
        assert got[place] == part.max()


def reference_map(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return the last map, written down layer by layer from the paper's figure 3 and the published names."""
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


@pytest.mark.parametrize("sizes", [(9, 33, 50), (16, 64, 32), (1, 31, 1)])
def test_the_last_map_is_that_of_the_paper_s_layers(network, weights, sizes):
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


def test_features_are_means_over_two_steps_and_all_places(network):
    x = torch.rand(1, 3, 24, 224, 224) * 2 - 1
    with torch.no_grad():
        map_CTHW = network.last_map(x)[0].double()
        features = network(x)
        scores = network.scores(features)
    assert map_CTHW.shape == (1024, 3, 7, 7)
    step_CT = map_CTHW.mean(dim=(2, 3))
    expected_TC = torch.stack([(step_CT[:, 0] + step_CT[:, 1]) / 2, (step_CT[:, 1] + step_CT[:, 2]) / 2])
    assert features.shape == (1, 2, 1024)
    np.testing.assert_allclose(features[0], expected_TC, rtol=1e-4, atol=1e-5)
    kernel, bias = network.logits.conv3d.weight[:, :, 0, 0, 0], network.logits.conv3d.bias
    np.testing.assert_allclose(scores[0], (features[0] @ kernel.T + bias).detach(), rtol=1e-4, atol=1e-4)


def test_other_numbers_of_classes_load(weights, tmp_path):
    torch.save(
        weights | {name: x[:157] for name, x in weights.items() if "logits" in name}, tmp_path / "charades.pt"
    )
    assert I3D.load(tmp_path / "charades.pt").logits.conv3d.bias.shape == (157,)


def test_files_of_other_networks_are_refused_with_a_list(weights, tmp_path):
    path = tmp_path / "other.pt"
    other = dict(weights)
    other["Mixed_6a.b0.conv3d.weight"] = other.pop("Mixed_5c.b0.conv3d.weight")
    other["Conv3d_1a_7x7.conv3d.weight"] = torch.zeros(64, 2, 7, 7, 7)
    torch.save(other, path)
    with pytest.raises(InputError) as error:
        I3D.load(path)
    for words in ("missing Mixed_5c.b0.", "unexpected Mixed_6a.b0.", "(64, 2, 7, 7, 7) for (64, 3, 7, 7, 7)"):
        assert words in str(error.value)
    torch.save({"epoch": 3, "state_dict": {}}, path)
    with pytest.raises(InputError, match=r"epoch in .* is no tensor"):
        I3D.load(path)
    torch.save({}, path)
    with pytest.raises(InputError, match="missing Conv3d_1a_7x7"):
        I3D.load(path)
