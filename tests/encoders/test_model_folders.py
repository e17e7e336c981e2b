"""Local model folders and files: remembered by digest, found after a move, refused if missing or changed."""

import shutil

import pytest
import torch

from polypool.encoders.backbones import build_backbone, recorded_backbone
from polypool.encoders.backbones.hub import known_as
from polypool.encoders.backbones.inception import I3D
from polypool.encoders.backbones.model_folders import (
    MODELS,
    local_folder,
    remember_model,
)
from polypool.infra.errors import InputError


@pytest.fixture
def folder(towers, tmp_path, monkeypatch):
    """Return a model's folder; use a temporary home and an unreachable hub."""
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return shutil.copytree(towers["dinov2"], tmp_path / "old" / "tiny")


def recorded(described):
    return recorded_backbone(described, where="manifest", store="store")


def test_remembered_model_folder_is_found(folder):
    described = build_backbone(f"dinov2(name={str(folder)!r})").describe()
    assert described["name"] == "tiny"
    assert str(folder.parent) not in str(described)
    remember_model(str(folder), described)
    assert recorded(described).describe() == described


def test_moved_model_is_found_in_listed_folders(folder, tmp_path, monkeypatch):
    described = build_backbone(f"dinov2(name={str(folder)!r})").describe()
    remember_model(str(folder), described)
    shutil.move(folder.parent, tmp_path / "new")
    with pytest.raises(InputError, match=rf"'tiny'.*POLYPOOL_MODELS.* was in {folder} .*no longer exists"):
        recorded(described)
    monkeypatch.setenv(MODELS, f"{tmp_path / 'nowhere'}:{tmp_path / 'new'}")
    assert recorded(described).describe() == described
    assert local_folder(str(folder)) == local_folder("hub/tiny") == tmp_path / "new" / "tiny"
    assert known_as(str(folder)) == "tiny"
    assert local_folder("other") is local_folder("") is None


def test_renamed_model_folder_is_recognised(folder, tmp_path):
    described = build_backbone(f"dinov2(name={str(folder)!r})").describe()
    moved = shutil.move(folder, tmp_path / "renamed")
    remember_model(str(moved), described)
    assert recorded(described).dim == 16


def test_changed_weights_in_remembered_folder_are_refused(folder, towers):
    described = build_backbone(f"dinov2(name={str(folder)!r})").describe()
    remember_model(str(folder), described)
    shutil.copytree(towers["registers"], folder, dirs_exist_ok=True)
    with pytest.raises(InputError, match="cannot be built as it was"):
        recorded(described)


def test_remembered_weights_are_found_under_another_name(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(I3D, "load", lambda path: torch.nn.Identity())
    (old := tmp_path / "rgb_imagenet.pt").write_bytes(b"weights")
    described = build_backbone(f"i3d(weights={str(old)!r})").describe()
    new = old.rename(tmp_path / "renamed.pt")
    remember_model(str(new), described)
    assert recorded(described).describe()["sha256"] == described["sha256"]
    new.write_bytes(b"others")
    with pytest.raises(InputError, match="cannot be built as it was"):
        recorded(described)
