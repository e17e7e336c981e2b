"""Random I3D weights under the published names."""

from __future__ import annotations

import torch

# the published channels of each block: its input, then its units' outputs (b0; b1a, b1b; b2a, b2b; b3b)
BLOCKS = {
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


def units() -> dict[str, tuple[int, int, int]]:
    """Return input channels, output channels and kernel size of every unit with batch norm, by published name."""
    found = {"Conv3d_1a_7x7": (3, 64, 7), "Conv3d_2b_1x1": (64, 64, 1), "Conv3d_2c_3x3": (64, 192, 3)}
    for block, (inputs, b0, b1a, b1b, b2a, b2b, b3b) in BLOCKS.items():
        found |= {
            f"Mixed_{block}.b0": (inputs, b0, 1),
            f"Mixed_{block}.b1a": (inputs, b1a, 1),
            f"Mixed_{block}.b1b": (b1a, b1b, 3),
            f"Mixed_{block}.b2a": (inputs, b2a, 1),
            f"Mixed_{block}.b2b": (b2a, b2b, 3),
            f"Mixed_{block}.b3b": (inputs, b3b, 1),
        }
    return found


def published(*, classes: int = 400, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return weights with the names and shapes of `rgb_imagenet.pt`; feature maps keep their magnitude."""
    draw = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, (inputs, outputs, kernel) in units().items():
        shape = (outputs, inputs, kernel, kernel, kernel)
        weights[f"{name}.conv3d.weight"] = (
            torch.randn(shape, generator=draw) * (2 / inputs / kernel**3) ** 0.5
        )
        weights[f"{name}.bn.weight"] = torch.rand(outputs, generator=draw) + 0.5
        weights[f"{name}.bn.bias"] = torch.randn(outputs, generator=draw) * 0.3
        weights[f"{name}.bn.running_mean"] = torch.randn(outputs, generator=draw) * 0.3
        weights[f"{name}.bn.running_var"] = torch.rand(outputs, generator=draw) + 0.5
        weights[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)
    weights["logits.conv3d.weight"] = torch.randn((classes, 1024, 1, 1, 1), generator=draw) * 0.03
    weights["logits.conv3d.bias"] = torch.randn(classes, generator=draw)
    return weights
