"""Going on with a run, and beginning with the weights of another; refused while another process trains it."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus, make_questions
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState
from safetensors.torch import load_file

from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import NAME, HeldError, Holder, holder_of
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training import launch
from polypool.pipelines.training.checkpoints.best import weights_of
from polypool.pipelines.training.checkpoints.format import Progress, snapshot
from polypool.pipelines.training.checkpoints.in_folder import (
    LISTING,
    choose_last,
    last_checkpoint,
    listed,
    remove_unlisted,
)
from polypool.pipelines.training.launch import resume, start
from polypool.pipelines.training.recording import tags
from polypool.pipelines.training.run_folder import run_folder, take_run
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(home) -> Run:
    made = make_corpus(home, train=16, val=8, test=8)
    return replace(made, cpus=1, optim=replace(made.optim, epochs=1), figures=False)


@pytest.fixture
def begun(run, home) -> Tracker:
    """A run that is recorded and has logged nothing."""
    tracker = Tracker.start("e", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(run))
    return tracker


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread, which has no leases of this one."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_a_run_that_is_trained_is_not_gone_on_with(run, home, elsewhere, monkeypatch):
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        assert holder_of(run_folder(home, tracker.run_id) / NAME).process == Holder.this().process
        held = f"run {tracker.run_id} is being trained by another process .process"
        with pytest.raises(HeldError, match=held):
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


def test_nothing_of_a_run_is_touched_that_another_machine_trains(begun, home):
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
def trained(begun, home) -> Callable[[float], Path]:
    """Gives the run's folder, as it is after checkpoints at some step of the first epoch."""

    def make(*names: str) -> Path:
        folder = run_folder(home, begun.run_id)
        (folder / "outbox").mkdir(parents=True)
        for name in names:
            (folder / name).mkdir()
            for file in FILES:
                (folder / name / file).touch()
        latest = {"latest_checkpoint_result": {"checkpoint_dir_name": names[-1]}}
        (folder / "checkpoint_manager_snapshot.json").write_text(json.dumps(latest))
        begun.log({"train/loss": 1.0}, step=1)
        return folder

    return make


SNAPSHOT = "checkpoint_manager_snapshot.json"


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (shutil.rmtree, "there is no checkpoint in {folder}"),
        (lambda folder: [shutil.rmtree(folder), folder.mkdir()], "there is no checkpoint in {folder}"),
        (
            lambda folder: shutil.rmtree(folder / "checkpoint_2"),
            "{folder}/checkpoint_2 lacks model.safetensors, state.pt, progress.json",
        ),
        (lambda folder: (folder / "checkpoint_2/state.pt").unlink(), "{folder}/checkpoint_2 lacks state.pt"),
        (lambda folder: (folder / SNAPSHOT).write_text("{"), "{folder}/" + SNAPSHOT + ": not valid JSON"),
        (
            lambda folder: (folder / SNAPSHOT).write_text("{}"),
            "{folder}/" + SNAPSHOT + ": names no checkpoint",
        ),
    ],
    ids=["no folder", "nothing in it", "no checkpoint", "no state", "damaged notes", "no notes"],
)
def test_what_has_trained_does_not_begin_anew_under_its_old_id(lose, message, begun, trained):
    folder = trained("checkpoint_1", "checkpoint_2")
    lose(folder)
    there = folder.exists()
    begun.finish("KILLED")
    with pytest.raises(InputError) as refused:
        resume(begun.run_id, more_tags={"sweep": "s"})
    said = str(refused.value)
    assert said.startswith(f"run {begun.run_id} cannot go on: {message.format(folder=folder)}")
    assert said.endswith(f"`polypool train rerun {begun.run_id}`")
    assert (begun.status(), begun.tag("sweep")) == ("KILLED", "")
    assert folder.exists() == there
    assert not (folder / NAME).exists()


def test_what_ended_before_its_first_checkpoint_begins_again(begun, home):
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


def test_a_run_without_checkpoint_whose_log_is_there_goes_on(begun, home):
    begun.log({"train/loss": 1.0}, step=1)
    (run_folder(home, begun.run_id) / "outbox").mkdir(parents=True)
    assert resume(begun.run_id, more_tags={"sweep": "s"}) == begun.run_id
    assert (begun.status(), begun.tag("sweep")) == ("FINISHED", "s")


def test_checkpoints_that_nobody_took_into_use_are_removed(trained):
    folder = trained("checkpoint_1", "checkpoint_2")
    (folder / "checkpoint_3").mkdir()
    remove_unlisted(folder)
    assert sorted(path.name for path in folder.glob("checkpoint_[0-9]*")) == ["checkpoint_2"]
    shutil.rmtree(folder / "checkpoint_2")
    (folder / "checkpoint_3").mkdir()
    remove_unlisted(folder)
    assert (folder / "checkpoint_3").exists(), "it may be all that there is"


def test_a_full_disk_ends_a_run_in_one_line_and_as_failed(run, home, monkeypatch):
    def fit(run: Run, tracker: Tracker, **_: object) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Journal, "_add", full)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "fit", fit)
    said = r"^no space left .* bytes free.*make room, and go on with `polypool train"
    with pytest.raises(InputError, match=said):
        start(replace(run, experiment="full"))
    (record,) = find_runs(tracking_uri(home), "full", finished=False)
    assert record.status == "FAILED"


FILES = ("model.safetensors", "state.pt", "progress.json")


@pytest.fixture
def three(tmp_path) -> Path:
    """The folder of three whole checkpoints that Ray could not note."""
    model = torch.nn.Linear(3, 4)
    for number in (1, 2, 3):
        (folder := tmp_path / f"checkpoint_{number}").mkdir()
        snapshot(model, torch.optim.SGD(model.parameters()), Progress(samples=8)).write(folder)
    return tmp_path


def flipped(data: bytes) -> bytes:
    """Return the bytes with one bit changed, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", None, flipped])
def test_a_checkpoint_that_is_not_whole_is_not_taken_up(three, file, damage):
    path = three / "checkpoint_3" / file
    data = path.read_bytes()
    path.unlink()
    if damage:
        path.write_bytes(damage(data))
    (three / LISTING).write_bytes(b"{")
    choose_last(three, for_ray=True)
    assert listed(three) == "checkpoint_2"
    path.write_bytes(data)
    choose_last(three, for_ray=True)
    assert listed(three) == "checkpoint_2", "what is noted counts"


@pytest.mark.parametrize("for_ray", [True, False])
def test_of_a_damaged_last_checkpoint_the_one_before_is_taken_up_with_a_note(three, for_ray, capsys):
    choose_last(three, for_ray=for_ray)
    state = three / "checkpoint_3" / "state.pt"
    state.write_bytes(flipped(state.read_bytes()))
    choose_last(three, for_ray=for_ray)
    assert last_checkpoint(three) == three / "checkpoint_2"
    assert f"note: {three / 'checkpoint_3'} is damaged; training goes on from" in capsys.readouterr().out
    remove_unlisted(three)
    assert last_checkpoint(three) == three / "checkpoint_2"


def test_without_ray_what_is_not_whole_is_removed_and_a_damaged_list_with_it(three):
    (three / "checkpoint_3" / "state.pt").unlink()
    (three / LISTING).write_bytes(b"{")
    choose_last(three, for_ray=False)
    assert listed(three) is None
    assert last_checkpoint(three) == three / "checkpoint_2"
    (three / "checkpoint_2" / "state.pt").unlink()
    (three / LISTING).write_bytes(b"{")
    for path in (three / "checkpoint_1").iterdir():
        path.unlink()
    choose_last(three, for_ray=False)
    assert (three / LISTING).read_bytes() == b"{", "with nothing whole all stays, and is refused"


@pytest.mark.parametrize("noted", [None, b""])
def test_the_last_whole_checkpoint_is_taken_up_where_ray_could_not_note_it(three, noted):
    if noted is not None:
        (three / LISTING).write_bytes(noted)
    choose_last(three, for_ray=True)
    assert listed(three) == "checkpoint_3"
    state = _CheckpointManagerState.model_validate_json((three / LISTING).read_text())
    assert [result.checkpoint_dir_name for result in state.checkpoint_results] == ["checkpoint_3"]


TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture
def pairs(tmp_path) -> Run:
    run = make_corpus(tmp_path / "pairs")
    return replace(run, text=TEXT, aggregator="lip", optim=replace(run.optim, epochs=1), figures=False)


def test_a_run_begins_where_another_ended(pairs, home, capsys):
    first = launch.start(pairs)
    again = launch.start(replace(pairs, init=first, optim=replace(pairs.optim, epochs=0)))
    assert "weights are those of run " + first in capsys.readouterr().out
    uri = tracking_uri(home)
    ours, theirs = (load_file(weights_of(run, uri)) for run in (again, first))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_one_tasks_aggregator_starts_anothers(pairs, tmp_path, home, capsys):
    asked = make_questions(tmp_path / "asked")
    asked = replace(asked, text=TEXT, aggregator="lip", optim=replace(asked.optim, epochs=0), figures=False)
    first = launch.start(pairs)
    capsys.readouterr()
    second = launch.start(replace(asked, init=first))
    said = capsys.readouterr().out
    assert "anew begin " in said
    assert "classifier.weight" in said
    assert (
        "note: that run was made from other data, words or features (visual, feature source, text), so"
        in said
    )
    ours, theirs = (load_file(weights_of(run, tracking_uri(home))) for run in (second, first))
    names = [name for name in theirs if ".aggregator." in name]
    assert len(names) > 4
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    other = {name for name in ours if name in theirs and ours[name].shape != theirs[name].shape}
    assert other <= {name for name in ours if name in said}


def test_a_run_that_is_not_there_or_has_nothing_alike_is_refused(pairs, home):
    with pytest.raises(InputError, match="no run 'nobody'"):
        launch.start(replace(pairs, init="nobody"))
    first = launch.start(replace(pairs, optim=replace(pairs.optim, epochs=0)))
    wide = replace(pairs, init=first, visual="regions(width=24)", text="bigru(width=24, embedding=12)")
    with pytest.raises(InputError, match="no name and shape in common"):
        launch.start(replace(wide, aggregator="mean"))
