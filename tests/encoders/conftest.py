from __future__ import annotations

from pathlib import Path

import pytest
import torch
from i3d_weights import published

from polypool.encoders.backbones.inception import I3D


@pytest.fixture(scope="session")
def weights() -> dict[str, torch.Tensor]:
    """I3D's weights under their published names, with numbers drawn at random."""
    return published()


@pytest.fixture(scope="session")
def path(weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of I3D's weights."""
    path = tmp_path_factory.mktemp("i3d") / "rgb_imagenet.pt"
    torch.save(weights, path)
    return path


@pytest.fixture(scope="session")
def network(path) -> I3D:
    """I3D with the weights of the file."""
    return I3D.load(path)
