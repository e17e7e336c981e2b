"""Resuming a run, and initialising a run with the weights of another."""

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus, make_questions
from safetensors.torch import load_file

from polypool.infra.errors import InputError
from polypool.infra.locks import NAME, HeldError, holder_of
from polypool.infra.tracking import Log, Tracker, find_runs, tracking_uri
from polypool.pipelines.training import train as training
from polypool.pipelines.training.checkpoint import (
    Progress,
    last_whole,
    remove_old,
    snapshot,
    weights_of,
)
from polypool.pipelines.training.record import run_folder, tags
from polypool.pipelines.training.train import resume, start
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(home) -> Run:
    made = make_corpus(home, train=16, val=8, test=8)
    return replace(made, cpus=1, optim=replace(made.optim, epochs=1), figures=False)


@pytest.fixture
def begun(run, home) -> Tracker:
    """A recorded run that has logged nothing."""
    tracker = Tracker.start("e", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(run))
    return tracker


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread, which does not hold this thread's locks."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_resume_is_refused_while_run_is_training(run, home, elsewhere, monkeypatch):
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        assert holder_of(run_folder(home, tracker.run_id) / NAME).startswith(f"process {os.getpid()} on ")
        held = f"run {tracker.run_id} is being trained by another process .process"
        with pytest.raises(HeldError, match=held):
            elsewhere.submit(resume, tracker.run_id).result()
        assert tracker.status() == "RUNNING"

    monkeypatch.setattr(training, "fit", fit)
    run_id = start(run)
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    assert tracker.status() == "FINISHED"
    assert not (run_folder(home, run_id) / NAME).exists()
    tracker.finish("KILLED")
    assert resume(run_id) == run_id, "a killed run must resume, again under a lock"
    assert tracker.status() == "FINISHED"


def write_checkpoints(folder: Path, *names: str) -> None:
    model = torch.nn.Linear(3, 4)
    for name in names:
        (folder / name).mkdir(parents=True)
        snapshot(model, torch.optim.SGD(model.parameters()), Progress(samples=8)).write(folder / name)


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (shutil.rmtree, "no checkpoint in {folder}"),
        (lambda folder: [shutil.rmtree(folder), folder.mkdir()], "no checkpoint in {folder}"),
        (
            lambda folder: [path.unlink() for path in folder.glob("*/state.pt")],
            "damaged: {folder}/checkpoint_2, {folder}/checkpoint_1",
        ),
    ],
    ids=["no folder", "nothing in it", "no state"],
)
def test_trained_run_without_checkpoint_is_not_resumed(lose, message, begun, home):
    folder = run_folder(home, begun.run_id)
    write_checkpoints(folder, "checkpoint_1", "checkpoint_2")
    begun.log({"train/loss": 1.0}, step=1)
    lose(folder)
    there = folder.exists()
    begun.finish("KILLED")
    with pytest.raises(InputError) as refused:
        resume(begun.run_id, more_tags={"sweep": "s"})
    said = str(refused.value)
    assert said.startswith(f"run {begun.run_id} cannot be resumed: {message.format(folder=folder)}")
    assert said.endswith(f"`polypool train rerun {begun.run_id}`")
    assert (begun.status(), begun.tag("sweep")) == ("KILLED", "")
    assert folder.exists() == there
    assert not (folder / NAME).exists()


@pytest.mark.parametrize(("epoch", "again"), [(1, True), (2, False)])
def test_missing_checkpoint_is_tolerated_only_after_epoch_1(epoch, again, begun, home):
    (run_folder(home, begun.run_id) / "log").mkdir(parents=True)
    begun.log({"train/loss": 1.0, "epoch": epoch}, step=1)
    begun.finish("KILLED")
    with nullcontext() if again else pytest.raises(InputError, match="no checkpoint in"):
        resume(begun.run_id)
    assert begun.status() == ("FINISHED" if again else "KILLED")


def test_untrained_run_starts_over_and_finished_run_does_not(begun, home):
    folder = run_folder(home, begun.run_id)
    begun.finish("KILLED")
    assert resume(begun.run_id) == begun.run_id, "an untrained run must start over"
    assert begun.status() == "FINISHED"
    steps = [step for step, _ in begun.history("train/loss")]

    shutil.rmtree(folder)
    (folder / "log").mkdir(parents=True)
    assert resume(begun.run_id) == begun.run_id
    assert [step for step, _ in begun.history("train/loss")] == steps, "a finished run must not train again"
    shutil.rmtree(folder)
    assert resume(begun.run_id) == begun.run_id
    assert not folder.exists()


def test_full_disk_fails_run_with_one_message(run, home, monkeypatch):
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Log, "_add", full)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(training, "fit", fit)
    said = r"^no space left .* bytes free.*make room, and resume with `polypool train"
    with pytest.raises(InputError, match=said):
        start(replace(run, experiment="full"))
    (record,) = find_runs(tracking_uri(home), "full", finished=False)
    assert record.status == "FAILED"


@pytest.fixture
def three(tmp_path) -> Path:
    """A folder of three valid checkpoints, the second and third written by Ray Train."""
    write_checkpoints(tmp_path, "checkpoint_1", "ray-2/checkpoint_2", "ray-2/checkpoint_3")
    return tmp_path


def flipped(data: bytes) -> bytes:
    """Return the bytes with one bit flipped in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("file", "damage"),
    [("state.pt", lambda data: data[:-1]), ("progress.json", None), ("model.safetensors", flipped)],
)
def test_damaged_last_checkpoint_falls_back_to_previous(three, file, damage, capsys):
    path = three / "ray-2" / "checkpoint_3" / file
    data = path.read_bytes()
    path.unlink()
    if damage:
        path.write_bytes(damage(data))
    assert last_whole(three) == str(three / "ray-2" / "checkpoint_2")
    said = f"note: {path.parent} is damaged; training resumes from the previous checkpoint"
    assert said in capsys.readouterr().out
    assert not path.parent.exists()


def test_partly_copied_checkpoint_is_ignored(three, capsys):
    for name in ("checkpoint_3", "checkpoint_2"):
        (three / "ray-2" / name / "digests.json").unlink()
    assert last_whole(three) == str(three / "checkpoint_1")
    (three / "checkpoint_1" / "digests.json").unlink()
    assert last_whole(three) is None, "a run without a complete checkpoint must start over"
    assert "checkpoint_3 is incomplete, and ignored" in capsys.readouterr().out


def test_old_and_unfinished_checkpoints_are_removed(three):
    (three / ".checkpoint_4").mkdir()
    (three / "log").mkdir()
    remove_old(three)
    assert sorted(path.name for path in three.iterdir()) == ["log", "ray-2"]
    write_checkpoints(three, "checkpoint_4", "checkpoint_5")
    remove_old(three)
    assert sorted(path.name for path in three.iterdir()) == ["checkpoint_4", "checkpoint_5", "log"]


TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture
def pairs(tmp_path) -> Run:
    run = make_corpus(tmp_path / "pairs")
    return replace(run, text=TEXT, aggregator="lip", optim=replace(run.optim, epochs=1), figures=False)


def test_init_copies_aggregator_weights_between_tasks(pairs, tmp_path, home, capsys):
    asked = make_questions(tmp_path / "asked")
    asked = replace(asked, text=TEXT, aggregator="lip", optim=replace(asked.optim, epochs=0), figures=False)
    first = training.start(pairs)
    capsys.readouterr()
    second = training.start(replace(asked, init=first))
    said = capsys.readouterr().out
    assert "newly initialised: " in said
    assert "classifier.weight" in said
    assert "note: that run has other data, words or features (visual, feature source, text): " in said
    ours, theirs = (load_file(weights_of(run, tracking_uri(home))) for run in (second, first))
    names = [name for name in theirs if ".aggregator." in name]
    assert len(names) > 4
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    other = {name for name in ours if name in theirs and ours[name].shape != theirs[name].shape}
    assert other <= {name for name in ours if name in said}


def test_init_refuses_missing_or_incompatible_run(pairs, home):
    with pytest.raises(InputError, match="no run 'nobody'"):
        training.start(replace(pairs, init="nobody"))
    first = training.start(replace(pairs, optim=replace(pairs.optim, epochs=0)))
    wide = replace(pairs, init=first, visual="regions(width=24)", text="bigru(width=24, embedding=12)")
    with pytest.raises(InputError, match="no name and shape in common"):
        training.start(replace(wide, aggregator="mean"))
