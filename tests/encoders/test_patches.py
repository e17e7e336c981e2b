from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.registry import ENCODERS

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
BEFORE = {"vit": 1, "clip": 1, "siglip": 0, "dinov2": 1, "registers": 5}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Tiny models as on the hub; CLIP and SigLIP with a text half."""
    import transformers as tf

    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    vision = TINY | {"intermediate_size": 32}
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text |= {"vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1}
    made = {
        "vit": tf.ViTModel(tf.ViTConfig(**vision)),
        "clip": tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)),
        "siglip": tf.SiglipModel(tf.SiglipConfig(text_config=text, vision_config=vision)),
        "dinov2": tf.Dinov2Model(tf.Dinov2Config(**TINY)),
        "registers": tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**TINY)),
    }
    for name, model in made.items():
        scrambled = {
            k: torch.randn_like(x) * 0.2 for k, x in model.state_dict().items() if x.is_floating_point()
        }
        model.load_state_dict(model.state_dict() | scrambled)
        model.save_pretrained(root / name)
        tf.ViTImageProcessorPil(image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]).save_pretrained(
            root / name
        )
    return {name: root / name for name in made}


def build(folder: Path, **params):
    kind = ENCODERS.get("patches")
    params = {"name": str(folder), **params}
    assets = json.loads(json.dumps(kind.prepare(**params)))  # as a checkpoint keeps them
    inside = ", ".join(f"{key}={value!r}" for key, value in params.items())
    encoder = ENCODERS.build(f"patches({inside})", assets)
    return encoder, kind.transform(assets, **params)


@pytest.mark.parametrize("name", BEFORE)
def test_patches_are_the_last_states_of_the_published_model(models, name):
    from transformers import AutoModel

    encoder, transform = build(models[name], width=6, size=32)
    encoder.load_pretrained()
    assert (encoder.reads, encoder.width, transform.size, transform.cells) == ("pixels", 6, 32, 16)
    whole = AutoModel.from_pretrained(models[name]).eval()
    pixels, mask_BN = torch.randn(2, 3, 32, 32), torch.rand(2, 16) > 0.3
    state_BLH = getattr(whole, "vision_model", whole)(pixels).last_hidden_state
    x_BND, mask = encoder.eval()(pixels, mask_BN)
    assert state_BLH.shape[1] == BEFORE[name] + 16
    assert mask is mask_BN
    torch.testing.assert_close(x_BND, encoder.fc(state_BLH[:, BEFORE[name] :]), rtol=1e-4, atol=1e-5)
    if BEFORE[name]:
        longer, transform = build(models[name], width=6, size=32, class_token=True)
        assert transform.cells == 17
        longer.load_state_dict(encoder.state_dict())
        x_BND = longer.eval()(pixels, torch.ones(2, 17, dtype=torch.bool))[0]
        expected_BLH = torch.cat((state_BLH[:, :1], state_BLH[:, BEFORE[name] :]), dim=1)
        torch.testing.assert_close(x_BND, encoder.fc(expected_BLH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BEFORE)
def test_every_weight_has_a_gradient_and_any_size_will_do(models, name):
    encoder, transform = build(models[name], width=6, size=48)
    assert transform.cells == 36
    x_BND, _ = encoder.train()(torch.randn(2, 3, 48, 48), torch.ones(2, 36, dtype=torch.bool))
    assert x_BND.shape == (2, 36, 6)
    (x_BND * torch.randn_like(x_BND)).sum().backward()
    assert [key for key, p in encoder.named_parameters() if p.grad is None] == []


def test_colours_are_those_of_the_model(models):
    _, transform = build(models["vit"], size=32)
    pixels = transform(Image.new("RGB", (90, 50), (51, 102, 255)))
    expected = np.array([(0.2 - 0.1) / 0.4, (0.4 - 0.2) / 0.5, (1 - 0.3) / 0.6], np.float32)
    np.testing.assert_allclose(pixels[:, 7, 9], expected, rtol=1e-5)
    assert pixels.dtype == np.float32
    assert transform.antialias


def test_what_cannot_be_is_refused(models, tmp_path):
    from transformers import ConvNextImageProcessorPil, ResNetConfig

    with pytest.raises(InputError, match="multiple of 8"):
        build(models["vit"], size=30)
    with pytest.raises(InputError, match=r"no \[CLS\] token"):
        build(models["siglip"], class_token=True)
    ResNetConfig().save_pretrained(tmp_path)
    ConvNextImageProcessorPil().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"'resnet'.*Choices: clip_vision_model, dinov2"):
        build(tmp_path)
