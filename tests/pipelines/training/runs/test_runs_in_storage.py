"""Runs in object storage: it is tried first, and the lease is seen by all machines."""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from corpora import make_corpus
from object_storage import Fault
from toy import Taken

from polypool.infra.errors import InputError
from polypool.infra.lease.in_bucket import BucketLease, holder_in_bucket
from polypool.infra.lease.on_disk import HeldError
from polypool.infra.storage import conditional, remote
from polypool.infra.storage.places import place
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import train as verb
from polypool.pipelines.comparison.run_list import list_runs, mark_dead
from polypool.pipelines.training import driver, launch
from polypool.pipelines.training import run_folder as folders
from polypool.pipelines.training.checkpoints.format import FILES
from polypool.pipelines.training.checkpoints.in_folder import LAST_STORED
from polypool.pipelines.training.checkpoints.in_storage import write
from polypool.pipelines.training.driver import Driver, Resume
from polypool.pipelines.training.launch import resume, start
from polypool.pipelines.training.recording import tags
from polypool.pipelines.training.run_folder import AT, RunLease, run_folder
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(home) -> Run:
    made = make_corpus(home, train=16, val=8, test=8)
    return replace(made, cpus=1, optim=replace(made.optim, epochs=1), figures=False)


@pytest.fixture(autouse=True)
def tried_out_anew(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # no Ray is begun
    folders._try_out.cache_clear()


@pytest.fixture
def begun(run, home, bucket) -> Tracker:
    """A run that is recorded, whose checkpoints are to lie in a bucket, and that has logged nothing."""
    of = tags(run) | {AT: f"{bucket.url}/runs"}
    tracker = Tracker.start("begun", uri=tracking_uri(home), home=home, name="n", tags=of, params={})
    tracker.json("run.json", to_json(run))
    return tracker


def test_a_run_is_held_in_storage_and_remembers_where(run, home, bucket, monkeypatch):
    monkeypatch.setenv("POLYPOOL_RUNS", f"{bucket.url}/team/runs/")
    seen = []

    def fit(run: Run, tracker: Tracker, *, lease: RunLease, **_: object) -> None:
        seen.append(holder_in_bucket(lease.there.folder))
        assert str(lease.there.folder) == f"{bucket.url}/team/runs/{tracker.run_id}"
        (row,) = [row for row in list_runs(tracking_uri(home), "stored", home=home) if row.state == "RUNNING"]
        assert row.behind == "alive"

    monkeypatch.setattr(launch, "fit", fit)
    run_id = start(replace(run, experiment="stored"))
    (record,) = find_runs(tracking_uri(home), "stored")
    assert record.tags[AT] == f"{bucket.url}/team/runs"
    assert seen[0].process
    assert holder_in_bucket(place(f"{bucket.url}/team/runs/{run_id}")) is None
    assert bucket.keys() == [f"team/runs/{run_id}/lease.json"], "what was tried out is gone"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_storage_that_refuses_is_said_before_ray_and_before_there_is_a_run(method, run, bucket, monkeypatch):
    @contextmanager
    def no_ray():
        raise AssertionError("Ray was begun")

    def by_verb(run: Run) -> None:
        verb.watched(Driver(work=run), retries=0)

    monkeypatch.setattr(driver, "ray_beside", no_ray)
    monkeypatch.setattr(launch, "ray_beside", no_ray)
    monkeypatch.setenv("POLYPOOL_RUNS", f"{bucket.url}/runs")
    bucket.server.faults.append(Fault(method=method, status="403 Forbidden", times=100))
    for begin in (start, by_verb):
        with pytest.raises(InputError, match=rf"{bucket.url}/runs/trial-\w+\.json: may not be"):
            begin(replace(run, experiment="refused"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"tried 6 times.*AWS_ENDPOINT_URL") as said:
        by_verb(replace(run, experiment="refused"))
    assert len(str(said.value).splitlines()) == 1


def test_the_client_that_leases_need_is_asked_for_at_once(run, bucket, monkeypatch):
    monkeypatch.setenv("POLYPOOL_RUNS", f"{bucket.url}/runs")
    monkeypatch.setitem(sys.modules, "boto3", None)
    conditional._client.cache_clear()
    with pytest.raises(InputError, match=r"boto3.*polypool\[s3\]"):
        start(replace(run, experiment="refused"))


@pytest.mark.parametrize("named", ["hf://datasets/me/runs", "s3://", "ftp://host/runs"])
def test_what_no_runs_can_lie_at_is_refused(named, run, monkeypatch):
    monkeypatch.setenv("POLYPOOL_RUNS", named)
    with pytest.raises(InputError, match=named.partition(":")[0]):
        start(run)


def test_runs_may_lie_in_another_folder(run, home, tmp_path, monkeypatch):
    named = {f"{tmp_path}/a": tmp_path / "a", f"file://{tmp_path}/b": tmp_path / "b", "c": home / "c"}
    for name, there in named.items():
        monkeypatch.setenv("POLYPOOL_RUNS", name)
        assert run_folder(home, "1") == there / "1"
    monkeypatch.delenv("POLYPOOL_RUNS")
    assert run_folder(home, "1") == home / "runs" / "1"


def test_one_that_another_machine_trains_is_left_as_it_is(begun, bucket, home):
    at = place(f"{bucket.url}/runs/{begun.run_id}")
    with BucketLease.take(at, of="it") as theirs:
        with pytest.raises(HeldError, match=f"run {begun.run_id} is being trained by another process"):
            resume(begun.run_id)
        found = list_runs(tracking_uri(home), "begun", home=home)
        assert mark_dead(tracking_uri(home), found, home=home) == {}
        assert theirs.token
    assert begun.status() == "RUNNING"
    found = [row for row in list_runs(tracking_uri(home), "begun", home=home) if row.run_id == begun.run_id]
    assert mark_dead(tracking_uri(home), found, home=home) == {begun.run_id: "KILLED"}


def test_nobody_knows_who_is_behind_a_run_whose_storage_is_away(begun, home, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (row,) = [row for row in list_runs(tracking_uri(home), "begun", home=home) if row.run_id == begun.run_id]
    assert row.behind == "unknown"


def test_what_was_trained_and_is_lost_does_not_begin_anew(begun, bucket):
    at = place(f"{bucket.url}/runs/{begun.run_id}")
    begun.log({"train/loss": 1.0}, step=1)
    for _ in range(2):  # the first try leaves nothing that the second takes for the run's own
        lost = f"cannot go on: there is no checkpoint in {at}.*AWS_ENDPOINT_URL"
        with pytest.raises(InputError, match=lost):
            resume(begun.run_id)
    assert bucket.keys() == []
    name = write(at, Taken(96, dict.fromkeys(FILES, b"part")))
    remote.delete(at / name / "state.pt")
    with pytest.raises(InputError, match=rf"{name} lacks state\.pt.*polypool train rerun {begun.run_id}`"):
        resume(begun.run_id)
    assert begun.status() == "RUNNING"


def test_what_ended_before_its_first_checkpoint_begins_again(begun, bucket, monkeypatch):
    monkeypatch.setattr(launch, "fit", lambda *_, **__: None)
    BucketLease.take(place(f"{bucket.url}/runs/{begun.run_id}"), of="it").release()
    begun.log({"train/loss": 1.0}, step=1)
    assert resume(begun.run_id) == begun.run_id
    assert begun.status() == "FINISHED"


def test_a_run_that_is_lost_meanwhile_is_not_ended_here(begun, bucket, monkeypatch):
    def fit(run: Run, tracker: Tracker, *, lease: RunLease, **_: object) -> None:
        lease.there.lost = True
        raise HeldError("another has it")

    monkeypatch.setattr(launch, "fit", fit)
    with pytest.raises(HeldError):
        resume(begun.run_id)
    assert begun.status() == "RUNNING"


def test_who_watches_a_driver_sees_progress_by_what_was_told(begun, home):
    watched = Driver(work=Resume(run_id=begun.run_id))
    here = run_folder(home, begun.run_id)
    here.mkdir(parents=True)
    assert watched.progress(begun.run_id) is None
    (here / LAST_STORED).write_text("checkpoint_7")
    assert watched.progress(begun.run_id) == "checkpoint_7"
    watched.given_up(begun.run_id)
    assert begun.status() == "FAILED"


def test_a_tag_that_names_no_storage_is_refused(begun):
    begun.tags({AT: "/a/folder"})
    with pytest.raises(InputError, match="its tag checkpoints_at is not a URL of object storage"):
        resume(begun.run_id)
