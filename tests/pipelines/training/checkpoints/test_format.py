from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polypool.infra.errors import InputError
from polypool.pipelines.training.checkpoints.format import Progress, load_checkpoint, snapshot


def state(width: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(width, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    snapshot(*state(), Progress(samples=12, best=0.5, best_epoch=1)).write(folder)
    return folder


def test_a_checkpoint_is_read_back(kept: Path) -> None:
    assert load_checkpoint(kept, *state()) == Progress(samples=12, best=0.5, best_epoch=1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "progress.json",
            lambda data: data.replace(b"12", b'"12"'),
            "progress.json: samples must be a whole",
        ),
        (
            "progress.json",
            lambda data: data.replace(b"12", b"-12"),
            "progress.json: samples must be at least 0",
        ),
        ("progress.json", lambda data: data[:9], "not valid JSON"),
        (
            "state.pt",
            lambda data: data[: len(data) // 2],
            "state.pt: is damaged, or the state of another model",
        ),
        ("state.pt", lambda data: b"", "state.pt: is damaged, or the state of another model"),
        ("model.safetensors", lambda data: data[:50], "cannot read the weights"),
    ],
)
def test_a_damaged_checkpoint_ends_in_one_message(
    kept: Path, tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    folder = shutil.copytree(kept, tmp_path / "folder")
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(InputError, match=message):
        load_checkpoint(folder, *state())
