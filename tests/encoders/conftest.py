from pathlib import Path

import pytest
import torch

from polypool.encoders.backbones.inception import I3D

# the published channels of each block: its input, then its units' outputs (b0; b1a, b1b; b2a, b2b; b3b)
I3D_BLOCKS = {
    "3b": (192, 64, 96, 128, 16, 32, 32),
    "3c": (256, 128, 128, 192, 32, 96, 64),
    "4b": (480, 192, 96, 208, 16, 48, 64),
    "4c": (512, 160, 112, 224, 24, 64, 64),
    "4d": (512, 128, 128, 256, 24, 64, 64),
    "4e": (512, 112, 144, 288, 32, 64, 64),
    "4f": (528, 256, 160, 320, 32, 128, 128),
    "5b": (832, 256, 160, 320, 32, 128, 128),
    "5c": (832, 384, 192, 384, 48, 128, 128),
}


def i3d_units() -> dict[str, tuple[int, int, int]]:
    """Return input channels, output channels and kernel size of every I3D unit with batch norm, by published name."""
    found = {"Conv3d_1a_7x7": (3, 64, 7), "Conv3d_2b_1x1": (64, 64, 1), "Conv3d_2c_3x3": (64, 192, 3)}
    for block, (inputs, b0, b1a, b1b, b2a, b2b, b3b) in I3D_BLOCKS.items():
        found |= {
            f"Mixed_{block}.b0": (inputs, b0, 1),
            f"Mixed_{block}.b1a": (inputs, b1a, 1),
            f"Mixed_{block}.b1b": (b1a, b1b, 3),
            f"Mixed_{block}.b2a": (inputs, b2a, 1),
            f"Mixed_{block}.b2b": (b2a, b2b, 3),
            f"Mixed_{block}.b3b": (inputs, b3b, 1),
        }
    return found


@pytest.fixture(scope="session")
def weights() -> dict[str, torch.Tensor]:
    """Random I3D weights with the names and shapes of `rgb_imagenet.pt`; feature maps keep their magnitude."""
    draw = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, (inputs, outputs, kernel) in i3d_units().items():
        shape = (outputs, inputs, kernel, kernel, kernel)
        weights[f"{name}.conv3d.weight"] = (
            torch.randn(shape, generator=draw) * (2 / inputs / kernel**3) ** 0.5
        )
        weights[f"{name}.bn.weight"] = torch.rand(outputs, generator=draw) + 0.5
        weights[f"{name}.bn.bias"] = torch.randn(outputs, generator=draw) * 0.3
        weights[f"{name}.bn.running_mean"] = torch.randn(outputs, generator=draw) * 0.3
        weights[f"{name}.bn.running_var"] = torch.rand(outputs, generator=draw) + 0.5
        weights[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)
    weights["logits.conv3d.weight"] = torch.randn((400, 1024, 1, 1, 1), generator=draw) * 0.03
    weights["logits.conv3d.bias"] = torch.randn(400, generator=draw)
    return weights


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
