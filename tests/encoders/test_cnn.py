import pytest
import torch
from formulas import resnet_of
from torch import Tensor, nn

from polypool.encoders.visual.cnn import NETWORKS
from polypool.encoders.visual.pixels import IMAGENET
from polypool.encoders.visual.resnet import (
    FrozenBatchNorm,
    ResNet,
    fill,
    read_weights,
    resnet_weights,
)
from polypool.infra.errors import InputError
from polypool.infra.registry import ENCODERS

TINY = {"depths": (1, 2, 1, 1), "base": 4}


def scrambled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Randomise parameters and statistics, so that none is zero, one or equal to another."""
    generator = torch.Generator().manual_seed(seed)
    for name, x in module.state_dict().items():
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x.copy_(noise.abs() + 0.5 if "var" in name else 0.3 * noise + ("bn" in name and "weight" in name))
    return module


@pytest.mark.parametrize(
    ("layout", "groups", "widen"), [("caffe", 1, 1), ("torchvision", 1, 1), ("torchvision", 2, 4)]
)
def test_resnet_matches_its_formula(layout, groups, widen):
    caffe = layout == "caffe"
    net = scrambled(ResNet(**TINY, caffe=caffe, groups=groups, widen=widen).double())
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    ours = net(x)
    assert ours.shape == (2, 128, 2, 3)
    weights = {name: value.clone().requires_grad_() for name, value in net.state_dict().items()}
    theirs = resnet_of(weights, x, caffe=caffe, groups=groups)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    target = torch.randn_like(ours)
    (ours * target).sum().backward()
    (theirs * target).sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-7, atol=1e-7, msg=name)


def test_caffe_layout_keeps_colour_normalisation(monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", TINY)
    own, caffe = (
        ENCODERS.build(f"cnn(width=4, name=tiny, layout={layout})", {}) for layout in ("own", "caffe")
    )
    scrambled(own).double()
    caffe.double().load_state_dict(own.state_dict())
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for encoder, layout in ((own, False), (caffe, True)):
        torch.testing.assert_close(encoder.cnn(x), resnet_of(own.cnn.state_dict(), x, caffe=layout))
    transform = type(caffe).transform({}, name="resnet152", layout="caffe")
    assert (transform.mean, transform.bgr) == (IMAGENET["mean"], False)
    with pytest.raises(InputError, match=r"layout of a network: 'cafe'\. Did you mean 'caffe'"):
        ENCODERS.build("cnn(layout=cafe)", {})


@pytest.mark.parametrize(
    ("name", "published"),  # torchvision's counts minus the classifier's 2,049,000
    [
        ("resnet101_caffe", 44_549_160 - 2_049_000),
        ("resnet152", 60_192_808 - 2_049_000),
        ("resnext101_32x8d", 88_791_336 - 2_049_000),
    ],
)
def test_networks_have_published_parameter_counts(name, published):
    with torch.device("meta"):
        net = ResNet(**NETWORKS[name])
    assert sum(p.numel() for p in net.parameters()) == published
    assert tuple(len(getattr(net, f"layer{n}")) for n in (1, 2, 3, 4)) == NETWORKS[name]["depths"]


def test_frozen_batch_norm_trains_only_scale_and_shift():
    net = scrambled(ResNet(**TINY).double()).train()
    before = {name: x.clone() for name, x in net.named_buffers()}
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    net(x).square().mean().backward()
    assert all(torch.equal(x, before[name]) for name, x in net.named_buffers())
    for module in net.modules():
        if isinstance(module, FrozenBatchNorm):
            assert module.weight.grad.abs().sum() > 0
            assert module.bias.grad.abs().sum() > 0
    torch.testing.assert_close(net(x), torch.cat([net.eval()(image[None]) for image in x]))


def as_updown(net: ResNet) -> dict[str, dict[str, Tensor]]:
    """Return the contents of `original_updown_backbone.pth`: two nn.Sequential, with batch counters."""
    relu, pool = nn.ReLU(), nn.MaxPool2d(3)
    parts = {
        "base": nn.Sequential(net.conv1, net.bn1, relu, pool, net.layer1, net.layer2, net.layer3),
        "top": nn.Sequential(net.layer4),
    }
    return {part: with_counters(module.state_dict()) for part, module in parts.items()}


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    norms = [name.removesuffix("running_var") for name in weights if name.endswith("running_var")]
    return {**weights, **{f"{name}num_batches_tracked": torch.tensor(7) for name in norms}}


def as_torchvision(net: ResNet) -> dict[str, Tensor]:
    classifier = {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    return {**with_counters(net.state_dict()), **classifier}


@pytest.mark.parametrize("form", [as_updown, as_torchvision])
def test_published_weight_files_load(tmp_path, monkeypatch, form):
    monkeypatch.setitem(NETWORKS, "tiny", TINY | {"caffe": form is as_updown})
    published = scrambled(ResNet(**NETWORKS["tiny"]))
    torch.save(form(published), tmp_path / "net.pth")
    encoder = ENCODERS.build(f"cnn(name=tiny, width=6, weights={str(tmp_path / 'net.pth')!r})", {})
    encoder.load_pretrained()
    for name, value in published.state_dict().items():
        assert torch.equal(encoder.cnn.state_dict()[name], value), name


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (None, "no weights at"),
        (b"<html>", "cannot read the weights"),
        ({"state": Evil()}, "cannot read the weights"),
        ([1], "are a list"),
        ({"epoch": 3}, "epoch in .* is a int"),
    ],
)
def test_invalid_weight_files_are_refused(tmp_path, held, message):
    path = tmp_path / "net.pth"
    if isinstance(held, bytes):
        path.write_bytes(held)
    elif held:
        torch.save(held, path)
    with pytest.raises(InputError, match=message):
        fill(ResNet(**TINY), resnet_weights(read_weights(path)), where=path)


def test_cnn_projects_map_cells_row_by_row(monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", TINY)
    encoder = ENCODERS.build("cnn(name=tiny, width=6, size=64)", {})
    scrambled(encoder.cnn)
    assert (encoder.reads, encoder.width) == ("pixels", 6)
    pixels, mask_BN = torch.randn(2, 3, 64, 64), torch.tensor([[True, True, False, True], [True] * 4])
    x_BND, mask = encoder(pixels, mask_BN)
    map_BCHW = encoder.cnn(pixels)
    assert x_BND.shape == (2, 4, 6)
    assert mask is mask_BN
    torch.testing.assert_close(x_BND[1, 1], encoder.fc(map_BCHW[1, :, 0, 1]))
    torch.testing.assert_close(x_BND[1, 2], encoder.fc(map_BCHW[1, :, 1, 0]))
    bound = (6 / (128 + 6)) ** 0.5
    assert 0.8 * bound < encoder.fc.weight.abs().max() <= bound
    assert encoder.fc.bias.eq(0).all()
