"""Resuming a run: refused while another process trains it, and where its checkpoints are gone."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState

from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import NAME, HeldError, Holder, holder_of
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training import launch
from polypool.pipelines.training.checkpoints.format import Progress, snapshot
from polypool.pipelines.training.checkpoints.in_folder import LISTING, listed, relist, remove_unlisted
from polypool.pipelines.training.launch import resume, start
from polypool.pipelines.training.recording import tags
from polypool.pipelines.training.run_folder import run_folder, take_run
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    made = make_corpus(home)
    return replace(made, cpus=1, optim=replace(made.optim, epochs=1))


@pytest.fixture
def begun(run: Run, home: Path) -> Tracker:
    """A run that is recorded and has logged nothing."""
    tracker = Tracker.start("e", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(run))
    return tracker


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread, which has no leases of this one."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_a_run_that_is_trained_is_not_gone_on_with(
    run: Run, home: Path, elsewhere: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        assert holder_of(run_folder(home, tracker.run_id) / NAME).process == Holder.this().process
        with pytest.raises(
            HeldError, match=f"run {tracker.run_id} is being trained by another process .process"
        ):
            elsewhere.submit(resume, tracker.run_id).result()
        assert tracker.status() == "RUNNING"

    monkeypatch.setattr(launch, "fit", fit)
    run_id = start(run)
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    assert tracker.status() == "FINISHED"
    assert not (run_folder(home, run_id) / NAME).exists()
    tracker.finish("KILLED")
    assert resume(run_id) == run_id, "it is held there, too"
    assert tracker.status() == "FINISHED"


def test_nothing_of_a_run_is_touched_that_another_machine_trains(begun: Tracker, home: Path) -> None:
    begun.finish("FINISHED")
    folder = run_folder(home, begun.run_id)
    take_run(begun).release()
    far = {"host": "far", "boot": "another", "process": 7, "command": "c", "since": 0.0}
    (folder / NAME).write_text(json.dumps(far))
    with pytest.raises(HeldError, match="process 7 on far since 1970-01-01"):
        resume(begun.run_id, more_tags={"sweep": "other"})
    assert begun.status() == "FINISHED"
    assert begun.tag("sweep") == ""
    assert json.loads((folder / NAME).read_text()) == far


@pytest.fixture
def trained(begun: Tracker, home: Path) -> Callable[[float], Path]:
    """Gives the run's folder, as it is after checkpoints at some step of the first epoch."""

    def make(*names: str) -> Path:
        folder = run_folder(home, begun.run_id)
        (folder / "outbox").mkdir(parents=True)
        for name in names:
            (folder / name).mkdir()
            for file in ("model.safetensors", "state.pt", "progress.json"):
                (folder / name / file).touch()
        latest = {"latest_checkpoint_result": {"checkpoint_dir_name": names[-1]}} if names else {}
        (folder / "checkpoint_manager_snapshot.json").write_text(json.dumps(latest))
        begun.log({"train/loss": 1.0}, step=1)
        return folder

    return make


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no checkpoint in {folder}"),
        (lambda folder: [shutil.rmtree(folder), folder.mkdir()], "there is no checkpoint in {folder}"),
        (
            lambda folder: shutil.rmtree(folder / "checkpoint_2"),
            "{folder}/checkpoint_2 lacks model.safetensors, state.pt, progress.json",
        ),
        (lambda folder: (folder / "checkpoint_2/state.pt").unlink(), "{folder}/checkpoint_2 lacks state.pt"),
        (
            lambda folder: (folder / "checkpoint_manager_snapshot.json").write_text("{"),
            "{folder}/checkpoint_manager_snapshot.json: not valid JSON",
        ),
        (
            lambda folder: (folder / "checkpoint_manager_snapshot.json").write_text("{}"),
            "{folder}/checkpoint_manager_snapshot.json: names no checkpoint",
        ),
    ],
)
def test_what_has_trained_does_not_begin_anew_under_its_old_id(
    lose: Callable[[Path], object], message: str, begun: Tracker, trained: Callable[..., Path]
) -> None:
    folder = trained("checkpoint_1", "checkpoint_2")
    lose(folder)
    there = folder.exists()
    begun.finish("KILLED")
    with pytest.raises(InputError) as refused:
        resume(begun.run_id)
    said = str(refused.value)
    assert said.startswith(f"run {begun.run_id} cannot go on: {message.format(folder=folder)}")
    assert said.endswith(f"`polypool train rerun {begun.run_id}`")
    assert begun.status() == "KILLED"
    assert folder.exists() == there
    assert not (folder / NAME).exists()


def test_what_ended_before_its_first_checkpoint_begins_again(begun: Tracker, home: Path) -> None:
    folder = run_folder(home, begun.run_id)
    begun.finish("KILLED")
    assert resume(begun.run_id) == begun.run_id, "nothing is there, and it had done nothing"
    assert begun.status() == "FINISHED"
    steps = [step for step, _ in begun.history("train/loss")]

    shutil.rmtree(folder)
    (folder / "outbox").mkdir(parents=True)
    assert resume(begun.run_id) == begun.run_id
    assert [step for step, _ in begun.history("train/loss")] == steps, "it had finished"
    shutil.rmtree(folder)
    assert resume(begun.run_id) == begun.run_id
    assert not folder.exists()


def test_tags_are_set_where_it_goes_on(begun: Tracker) -> None:
    begun.log({"train/loss": 1.0}, step=1)
    begun.finish("KILLED")
    with pytest.raises(InputError, match="cannot go on"):
        resume(begun.run_id, more_tags={"sweep": "s"})
    assert begun.tag("sweep") == ""


def test_a_run_without_checkpoint_whose_log_is_there_goes_on(begun: Tracker, home: Path) -> None:
    begun.log({"train/loss": 1.0}, step=1)
    (run_folder(home, begun.run_id) / "outbox").mkdir(parents=True)
    assert resume(begun.run_id, more_tags={"sweep": "s"}) == begun.run_id
    assert (begun.status(), begun.tag("sweep")) == ("FINISHED", "s")


def test_checkpoints_that_nobody_took_into_use_are_removed(trained: Callable[..., Path]) -> None:
    folder = trained("checkpoint_1", "checkpoint_2")
    (folder / "checkpoint_3").mkdir()
    remove_unlisted(folder)
    assert sorted(path.name for path in folder.glob("checkpoint_[0-9]*")) == ["checkpoint_2"]
    shutil.rmtree(folder / "checkpoint_2")
    (folder / "checkpoint_3").mkdir()
    remove_unlisted(folder)
    assert (folder / "checkpoint_3").exists(), "it may be all that there is"


def test_a_full_disk_ends_a_run_in_one_line_and_as_failed(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Journal, "_add", full)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "fit", fit)
    with pytest.raises(
        InputError, match=r"^no space left .* bytes free.*make room, and go on with `polypool train"
    ):
        start(replace(run, experiment="full"))
    (record,) = find_runs(tracking_uri(home), "full", finished=False)
    assert record.status == "FAILED"


def test_the_last_whole_checkpoint_is_taken_up_where_ray_could_not_note_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    for name in ("checkpoint_1", "checkpoint_2", "checkpoint_3"):
        (tmp_path / name).mkdir()
        snapshot(model, torch.optim.SGD(model.parameters()), Progress(samples=8)).write(tmp_path / name)
    for file in ("model.safetensors", "state.pt", "progress.json"):
        data = (tmp_path / "checkpoint_3" / file).read_bytes()
        for content in (data[:-1], b"", None):
            (tmp_path / "checkpoint_3" / file).unlink()
            if content is not None:
                (tmp_path / "checkpoint_3" / file).write_bytes(content)
            (tmp_path / LISTING).write_bytes(b"" if content else b"{")
            relist(tmp_path)
            assert listed(tmp_path) == "checkpoint_2", (file, content and len(content))
            (tmp_path / "checkpoint_3" / file).touch()
        (tmp_path / "checkpoint_3" / file).write_bytes(data)
    relist(tmp_path)
    assert listed(tmp_path) == "checkpoint_2", "what is noted counts"
    (tmp_path / LISTING).unlink()
    relist(tmp_path)
    assert listed(tmp_path) == "checkpoint_3"
    state = _CheckpointManagerState.model_validate_json((tmp_path / LISTING).read_text())
    assert [result.checkpoint_dir_name for result in state.checkpoint_results] == ["checkpoint_3"]
