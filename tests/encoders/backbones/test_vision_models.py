"""`patches` of vision models of several architectures, distinguished by the shape of their output."""

from __future__ import annotations

import json

import pytest
import torch

from polypool.infra.fields import from_plain
from polypool.infra.registry import ENCODERS

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
