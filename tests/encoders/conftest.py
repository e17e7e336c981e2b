from pathlib import Path

import pytest
import torch
from i3d_weights import published

from polypool.encoders.backbones.inception import I3D


@pytest.fixture(scope="session")
def weights() -> dict[str, torch.Tensor]:
    """Random I3D weights under their published names."""
    return published()


@pytest.fixture(scope="session")
def path(weights, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("i3d") / "rgb_imagenet.pt"
    torch.save(weights, path)
    return path


@pytest.fixture(scope="session")
def network(path) -> I3D:
    return I3D.load(path)


@pytest.fixture(scope="session")
def towers(tmp_path_factory) -> dict[str, Path]:
    """Folders of tiny vision transformers as on the hub; CLIP and SigLIP include their text encoder."""
    import transformers as tf

    root = tmp_path_factory.mktemp("towers")
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
    tiny |= {"patch_size": 8}
    vision = tiny | {"intermediate_size": 32}
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text |= {"vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1}
    square = {"height": 32, "width": 32}
    cropped = {"size": {"shortest_edge": 32}, "crop_size": square}
    colours = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    clip = tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    siglip = tf.SiglipConfig(text_config=text, vision_config=vision)
    registers = tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**tiny))
    made = {
        "vit": (tf.ViTModel(tf.ViTConfig(**vision)), tf.ViTImageProcessorPil(size=square, **colours)),
        "clip": (tf.CLIPModel(clip), tf.CLIPImageProcessorPil(**cropped)),
        "siglip": (tf.SiglipModel(siglip), tf.SiglipImageProcessorPil(size=square)),
        "dinov2": (tf.Dinov2Model(tf.Dinov2Config(**tiny)), tf.BitImageProcessorPil(**cropped)),
        "registers": (registers, tf.BitImageProcessorPil(**cropped)),
    }
    for name, (model, processor) in made.items():
        for x in model.state_dict().values():
            if x.is_floating_point():
                x.copy_(0.2 * torch.randn_like(x))
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    return {name: root / name for name in made}
