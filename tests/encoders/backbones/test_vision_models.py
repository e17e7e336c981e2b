"""Vision models of several architectures, distinguished by the shape of their output."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pictures import noise
from tiny_models import save_vit

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.registry import BACKBONES, ENCODERS

FLAT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
STAGES = {"hidden_sizes": [4, 6, 8, 10], "depths": [1, 1, 1, 1]}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
MODELS = {
    "deit": (FLAT, 16, 2),
    "dinov3_vit": (FLAT | {"num_register_tokens": 4}, 16, 5),
    "ijepa": (FLAT, 16, 0),
    "beit": (FLAT, 16, 1),
    "swin": (SWIN, 16, 0),
    "convnext": (STAGES, 4, 0),
}
PATCHES = ENCODERS.get("patches")


def saved(folder, kind: str, settings: dict) -> str:
    import transformers as tf
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    tf.AutoModel.from_config(tf.AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", MODELS)
def test_patches_match_transformers_and_train_all_weights(kind, tmp_path):
    from transformers import AutoModel

    settings, cells, ahead = MODELS[kind]
    size = 64 if kind == "convnext" else 32
    name = saved(tmp_path / kind, kind, settings)
    assets = json.loads(json.dumps(PATCHES.prepare(name=name, size=size)))
    from_plain(PATCHES.assets_kind, assets, where="assets")
    assert (assets["layout"]["cells"], assets["layout"]["ahead"]) == (cells, ahead)
    encoder = PATCHES(assets, name=name, width=6, size=size).eval()
    encoder.load_pretrained()
    assert PATCHES.transform(assets, size=size).cells == cells
    pixels = torch.randn(2, 3, size, size)
    x_BND, _ = encoder(pixels, torch.ones(2, cells, dtype=torch.bool))
    state = AutoModel.from_pretrained(name).eval()(pixels).last_hidden_state
    if state.ndim == 4:
        state = torch.stack([state[:, :, row, column] for row in range(2) for column in range(2)], dim=1)
    torch.testing.assert_close(x_BND, encoder.fc(state[:, ahead:]), rtol=1e-4, atol=1e-5)
    x_BND.square().sum().backward()
    none = [
        name for name, weight in encoder.named_parameters() if weight.requires_grad and weight.grad is None
    ]
    assert none == []


def test_class_token_comes_first_or_is_refused(tmp_path):
    name = saved(tmp_path / "dinov3", "dinov3_vit", FLAT | {"num_register_tokens": 4})
    assets = PATCHES.prepare(name=name, size=32)
    plain, whole = (
        PATCHES(assets, name=name, width=6, size=32, class_token=token).eval() for token in (False, True)
    )
    whole.load_state_dict(plain.state_dict())
    pixels = torch.randn(1, 3, 32, 32)
    x_1ND, _ = whole(pixels, torch.ones(1, 17, dtype=torch.bool))
    torch.testing.assert_close(x_1ND[:, 1:], plain(pixels, torch.ones(1, 16, dtype=torch.bool))[0])
    torch.testing.assert_close(x_1ND[:, 0], whole.fc(whole.vit(pixels).last_hidden_state[:, 0]))
    assert PATCHES.transform(assets, size=32, class_token=True).cells == 17
    name = saved(tmp_path / "ijepa", "ijepa", FLAT)
    with pytest.raises(ValueError, match=r"ijepa has no \[CLS\] token"):
        PATCHES(PATCHES.prepare(name=name, size=32), name=name, size=32, class_token=True)


@pytest.mark.parametrize(
    ("kind", "settings", "cls", "message"),
    [
        ("vit_mae", FLAT, False, "5 states of an image of 16 patches; expected one of each; choose another"),
        ("vit_mae", FLAT | {"patch_size": 4, "mask_ratio": 0.9}, False, "7 states of an image of 64 patches"),
        ("ijepa", FLAT, True, r"16 states .* one of each and \[CLS\]; choose cls=False"),
        ("swin", SWIN, True, r"16 states .* one of each and \[CLS\]; choose cls=False"),
    ],
)
def test_vit_requires_a_state_for_each_patch(kind, settings, cls, message, tmp_path):
    backbone = BACKBONES.get("vit")(name=saved(tmp_path / kind, kind, settings), cls=cls)
    with pytest.raises(InputError, match=message):
        backbone([noise()])


def test_vit_averages_merged_patches_over_grid_cells(tmp_path):
    name = saved(tmp_path / "swin", "swin", SWIN)
    every_ND, cell_ND = (BACKBONES.get("vit")(name=name, grid=grid)([noise()])[0] for grid in (None, 2))
    assert every_ND.shape == (16, 16)
    np.testing.assert_allclose(cell_ND[0], every_ND[[0, 1, 4, 5]].mean(axis=0), rtol=1e-5, atol=1e-6)


def test_resnet_refuses_tokens(tmp_path):
    backbone = BACKBONES.get("resnet")(name=saved(tmp_path / "dinov3", "dinov3_convnext", STAGES))
    with pytest.raises(InputError, match=r"states of shape \(2, 10\), expected a map \(10, rows, columns\)"):
        backbone([noise()])


def test_missing_pooler_does_not_change_the_digest(tmp_path):
    name = save_vit(tmp_path / "vit")  # without a pooler, as google/vit-base-patch16-224
    one, two = (BACKBONES.get("vit")(name=name).describe()["sha256"] for _ in range(2))
    assert one == two
