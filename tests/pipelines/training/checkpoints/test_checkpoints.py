"""Checkpoints are written in the background, one at a time, and verified when loaded."""

import threading
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from polypool.infra.errors import InputError
from polypool.pipelines.training.checkpoint import InFolder, Progress, Snapshot, load_checkpoint, snapshot


class Held(Snapshot):
    """A snapshot whose write waits until `free` is set."""

    progress = MappingProxyType({"samples": 7})

    def __init__(self, *, fails: bool = False) -> None:
        self.begun, self.free, self.fails = threading.Event(), threading.Event(), fails

    def write(self, folder: Path) -> None:
        (folder / "part").touch()
        self.begun.set()
        assert self.free.wait(60)
        if self.fails:
            raise OSError(28, "No space left on device")


def in_folder(folder: Path) -> InFolder:
    return InFolder(folder=folder, stop=folder / "stop", journal=lambda: None)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_checkpoints_are_written_in_background_one_at_a_time(tmp_path):
    reported, background, first, second = [], in_folder(tmp_path), Held(), Held()
    background.reported = reported.append
    background.report({"epoch": 1}, first)
    assert first.begun.wait(60)
    (unfinished,) = names(tmp_path)
    assert unfinished.startswith(".checkpoint_000000000007_"), "an unfinished checkpoint must be hidden"
    waiting = threading.Thread(target=background.report, args=[{"epoch": 2}, second])
    waiting.start()
    assert not second.begun.wait(0.2)
    assert reported == [{"epoch": 1}]
    first.free.set()
    assert second.begun.wait(60)
    waiting.join()
    second.free.set()
    background.close()
    assert len(names(tmp_path)) == 2
    assert names(tmp_path)[0] == unfinished.removeprefix(".")
    assert names(tmp_path / names(tmp_path)[1]) == ["part"]


def test_failed_write_raises_and_keeps_previous_checkpoint(tmp_path):
    background, whole, broken = in_folder(tmp_path), Held(), Held(fails=True)
    for each in (whole, broken):
        each.free.set()
        background.report({}, each)
    with pytest.raises(OSError, match="No space left"):
        background.close()
    assert len(names(tmp_path)) == 1


def test_snapshot_is_isolated_from_later_steps(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer, progress = torch.optim.AdamW(model.parameters(), lr=0.1), Progress(samples=3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    step()
    expected, draws = [x.detach().clone() for x in model.parameters()], torch.get_rng_state()
    taken = snapshot(model, optimizer, progress)
    step()
    progress.samples = 6
    after = [x.detach().clone() for x in model.parameters()]
    torch.rand(5)
    taken.write(tmp_path)
    assert load_checkpoint(tmp_path, model, optimizer) == Progress(samples=3)
    assert all(map(torch.equal, model.parameters(), expected))
    assert torch.equal(torch.get_rng_state(), draws)
    step()
    assert all(map(torch.equal, model.parameters(), after)), "optimiser moments must be restored"


def test_damaged_checkpoint_is_refused_by_checksum(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    snapshot(model, optimizer, Progress(samples=12, best=0.5, best_epoch=1)).write(tmp_path)
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"state\.pt is damaged: .*SHA-256"):
        load_checkpoint(tmp_path, model, optimizer)
