"""Checkpoints that are written while training goes on, one at a time, and read back where they are whole."""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
import torch

from polypool.infra.errors import InputError
from polypool.pipelines.training.checkpoints import in_storage
from polypool.pipelines.training.checkpoints.format import Progress, Snapshot, load_checkpoint, snapshot
from polypool.pipelines.training.checkpoints.in_folder import (
    LISTING,
    InFolder,
    ListedByRay,
    last_checkpoint,
    remove_unlisted,
)
from polypool.pipelines.training.checkpoints.in_storage import InStorage


class Held(Snapshot):
    """Is written when somebody lets it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun, self.free, self.fails = threading.Event(), threading.Event(), fails

    def write(self, folder: Path) -> None:
        (folder / "part").touch()
        self.begun.set()
        assert self.free.wait(60)
        if self.fails:
            raise OSError(28, "No space left on device")


class Uploads:
    """Stands in for Ray's: what is asked for is done in threads, under names in order."""

    def __init__(self) -> None:
        self.pool, self.asked = ThreadPoolExecutor(4), list[Future]()

    def __call__(
        self, metrics: dict[str, Any], checkpoint_upload_fn: Callable | None = None, **_: Any
    ) -> None:
        name = f"checkpoint_{len(self.asked)}"
        if checkpoint_upload_fn is not None:
            self.asked.append(self.pool.submit(checkpoint_upload_fn, None, name))


@pytest.fixture
def uploads(monkeypatch) -> Iterator[Uploads]:
    uploads = Uploads()
    monkeypatch.setattr(ray.train, "report", uploads)
    yield uploads
    uploads.pool.shutdown()


def in_folder(folder: Path, kind: type[InFolder] = ListedByRay) -> InFolder:
    return kind(folder=folder, stop=folder / "stop", journal=lambda: None)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_without_ray_each_replaces_the_last_but_one_once_it_is_whole(tmp_path):
    (tmp_path / "checkpoint_2999-01-01").mkdir()  # of a clock that was ahead
    (tmp_path / LISTING).write_text(
        '{"latest_checkpoint_result": {"checkpoint_dir_name": "checkpoint_2999-01-01"}}'
    )
    reported = []
    background, first, second = in_folder(tmp_path, InFolder), Held(), Held()
    background.reported = reported.append
    background.report({"epoch": 1}, first)
    assert first.begun.wait(60)
    assert last_checkpoint(tmp_path).name == "checkpoint_2999-01-01", "until there is a whole one"
    waiting = threading.Thread(target=background.report, args=[{"epoch": 2}, second])
    waiting.start()
    assert not second.begun.wait(0.2)
    assert reported == [{"epoch": 1}]
    first.free.set()
    assert second.begun.wait(60)
    waiting.join()
    assert last_checkpoint(tmp_path).name == "checkpoint_2999-01-01_"
    second.free.set()
    background.close()
    assert names(tmp_path) == ["checkpoint_2999-01-01_", "checkpoint_2999-01-01__"]
    with background.last() as last:
        assert names(last) == ["part"]


def test_without_ray_one_that_cannot_be_written_ends_the_run_and_leaves_the_one_before(tmp_path):
    background, whole, broken = in_folder(tmp_path, InFolder), Held(), Held(fails=True)
    for each in (whole, broken):
        each.free.set()
        background.report({}, each)
    with pytest.raises(OSError, match="No space left"):
        background.close()
    assert [(each.name, names(each)) for each in tmp_path.iterdir()] == [
        (last_checkpoint(tmp_path).name, ["part"])
    ]


def test_training_goes_on_and_the_next_one_waits(tmp_path, uploads):
    background, first, second = in_folder(tmp_path), Held(), Held()
    background.report({}, first)
    assert first.begun.wait(60)
    assert [each.name for each in tmp_path.iterdir()] == [".checkpoint_0"], "which is no name of a checkpoint"
    background.report({}, None)  # of another worker: nothing to wait for
    waiting = threading.Thread(target=background.report, args=[{}, second])
    waiting.start()
    assert not second.begun.wait(0.2)
    first.free.set()
    assert second.begun.wait(60)
    waiting.join()
    assert uploads.asked[0].result().path == str(tmp_path / "checkpoint_0")
    second.free.set()
    uploads.asked[1].result()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint_0", "checkpoint_1"]


def test_one_that_cannot_be_written_leaves_nothing_and_stops_no_other(tmp_path, uploads):
    background, broken, whole = in_folder(tmp_path), Held(fails=True), Held()
    for each in (broken, whole):
        each.free.set()
        background.report({}, each)
    with pytest.raises(OSError, match="No space left"):
        uploads.asked[0].result()
    uploads.asked[1].result()
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint_1"]


def test_what_training_changes_later_is_not_in_it(tmp_path):
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
    assert all(map(torch.equal, model.parameters(), after)), "the optimiser's moments are those of then, too"


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / ".checkpoint_2026-01-01").mkdir()
    (tmp_path / "outbox").mkdir()
    remove_unlisted(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["outbox"]


class Sent:
    """Stands in for what writes a checkpoint to storage."""

    def __init__(self) -> None:
        self.begun, self.free, self.done = threading.Event(), threading.Event(), list[Held]()

    def __call__(self, at: object, snapshot: Held, **_: object) -> str:
        self.begun.set()
        assert self.free.wait(60)
        if snapshot.fails:
            raise OSError(28, "No space left on device")
        self.done.append(snapshot)
        return "checkpoint"


@pytest.fixture
def write(monkeypatch) -> Sent:
    write = Sent()
    monkeypatch.setattr(in_storage, "write", write)
    return write


@pytest.fixture
def storage(monkeypatch) -> InStorage:
    monkeypatch.setattr(InStorage, "_log", SimpleNamespace(note_checkpoint=lambda name: None))
    return InStorage(run_id="1", at=None, token="t", folder=Path(), queue=None)


def test_the_next_one_for_storage_waits_and_ray_is_not_told(uploads, write, storage):
    first, second = Held(), Held()
    storage.report({}, None)
    storage.report({}, first)
    assert write.begun.wait(60)
    waiting = threading.Thread(target=storage.report, args=[{}, second])
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    write.free.set()
    waiting.join()
    storage.close()
    assert (write.done, uploads.asked) == ([first, second], [])


@pytest.mark.parametrize("later", [lambda storage: storage.report({}, Held()), InStorage.close])
def test_one_that_cannot_be_written_to_storage_is_an_error_of_the_run(later, uploads, write, storage):
    write.free.set()
    storage.report({}, Held(fails=True))
    with pytest.raises(OSError, match="No space left"):
        later(storage)


def state(width: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(width, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    snapshot(*state(), Progress(samples=12, best=0.5, best_epoch=1)).write(folder)
    return folder


def test_a_checkpoint_is_read_back(kept):
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
def test_a_damaged_checkpoint_ends_in_one_message(kept, tmp_path, name, change, message):
    folder = shutil.copytree(kept, tmp_path / "folder")
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(InputError, match=f"{name} is damaged: .*SHA-256"):
        load_checkpoint(folder, *state())
    (folder / "digests.json").unlink()  # as older versions wrote it
    with pytest.raises(InputError, match=message):
        load_checkpoint(folder, *state())
