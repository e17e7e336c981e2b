import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from polypool.infra import tracking as module
from polypool.infra.errors import AbsentError, InputError
from polypool.infra.tracking import (
    Artifacts,
    RunRecord,
    Tracker,
    _shortened,
    command_line,
    find_runs,
    provenance,
    to_see,
    tracking_uri,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("my project")


@pytest.fixture(scope="module")
def uri(home) -> str:
    return f"sqlite:///{home}/mlflow.db"


def start(uri, home, *, name="a run", experiment="polypool", **params: object) -> Tracker:
    return Tracker.start(experiment, uri=uri, home=home, name=name, tags={"kind": "train"}, params=params)


def record(uri: str, run_id: str, *, experiment: str = "polypool") -> RunRecord:
    (found,) = [run for run in find_runs(uri, experiment, finished=False) if run.run_id == run_id]
    return found


def test_two_threads_may_start_on_a_new_store_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with ThreadPoolExecutor(2) as threads:
        runs = [*threads.map(lambda name: start(uri, tmp_path, name=name, experiment="race"), ("one", "two"))]
    assert {run.run_id for run in find_runs(uri, "race", finished=False)} == {run.run_id for run in runs}


def test_a_run_is_created_continued_and_ended(uri, home):
    tracker = start(uri, home, name="gpo seed 0", optim={"lr": 1e-3, "milestones": [15]}, text="", none=None)
    tracker.log({"train/loss": 2.0, "whole/i2t/R1": 10}, step=1)
    tracker.finish("FAILED")
    assert record(uri, tracker.run_id).status == "FAILED"
    assert tracker.run_id not in {run.run_id for run in find_runs(uri, "polypool")}

    again = Tracker.attach(uri, tracker.run_id)
    assert (record(uri, again.run_id).status, record(uri, again.run_id).ended) == ("RUNNING", None)
    again.log({"train/loss": 1.0}, step=2)
    again.tags({"seed": "0"})
    again.finish()
    found = record(uri, tracker.run_id)
    assert (found.name, found.status) == ("gpo seed 0", "FINISHED")
    assert {"kind": "train", "seed": "0"}.items() <= found.tags.items()
    assert found.metrics == again.metrics() == {"train/loss": 1.0, "whole/i2t/R1": 10.0}
    assert found.params == {"optim.lr": "0.001", "optim.milestones": "[15]", "text": "", "none": "None"}
    assert found.started <= found.ended <= time.time()
    assert {"python", "torch", "git_commit"} <= set(found.tags)
    assert (again.tag("seed"), again.tag("absent")) == ("0", "")


def test_artifacts_come_back(uri, home, tmp_path):
    tracker = start(uri, home, words="x" * 7000, short="y")
    (tmp_path / "model.bin").write_bytes(b"weights")
    tracker.artifact(tmp_path, "model")
    tracker.artifact(tmp_path / "model.bin", "copy")
    tracker.json("run.json", {"seed": 0})
    tracker.text("notes/a.md", "# é")
    assert (tracker.download("model") / "model.bin").read_bytes() == b"weights"
    assert tracker.download("copy/model.bin").read_bytes() == b"weights"
    assert tracker.read_json("run.json") == {"seed": 0}
    assert tracker.download("notes/a.md").read_text() == "# é"
    assert home / "mlartifacts" in tracker.download("model").parents
    assert tracker.read_json("long_params.json") == {"words": "x" * 7000}
    found = record(uri, tracker.run_id).params
    assert found["short"] == "y"
    assert found["words"].startswith("x" * 200 + "... (7,000 characters in long_params.json, SHA-256 ")
    assert len({*map(_shortened, ("x" * 7000, "x" * 6999 + "y", "x" * 7001))}) == 3, "each is another setting"
    unknown = r"unknown artifact .* 'modle'. Did you mean 'model'\? Choices: copy, long"
    with pytest.raises(InputError, match=unknown):
        tracker.download("modle")
    with pytest.raises(InputError, match="unknown artifact"):
        tracker.download("model/none.bin")
    recorded, artifacts = record(uri, tracker.run_id), Artifacts(uri)
    assert artifacts.path(recorded, "notes/a.md").read_text() == "# é"
    assert artifacts.path(recorded, "copy/model.bin").read_bytes() == b"weights"
    for name in ("notes/b.md", "none"):
        with pytest.raises(InputError, match=f"^run {tracker.run_id} has no artifact {name}$"):
            artifacts.path(recorded, name)


def test_many_params_and_pages_of_runs(uri, home, monkeypatch):
    first = start(uri, home, experiment="pages", **{f"p{i}": i for i in range(250)})
    assert len(record(uri, first.run_id, experiment="pages").params) == 250
    others = [start(uri, home, experiment="pages").run_id for _ in range(4)]
    monkeypatch.setattr(module, "_PAGE", 2)
    assert [run.run_id for run in find_runs(uri, "pages", finished=False)] == [*others[::-1], first.run_id]


def test_unknown_and_deleted_things_are_named(uri, home):
    tracker = start(uri, home, name="the one")
    part = tracker.run_id[:8]
    for run_id, message in (
        (part, f"no run '{part}'.*The nearest runs:\n  {tracker.run_id}  the one$"),
        ("x", r"no run 'x'.*The latest runs:\n  [0-9a-f]{32}  the one\n"),
    ):
        with pytest.raises(InputError, match=message):
            Tracker.attach(uri, run_id)
    with pytest.raises(InputError, match=r"unknown experiment 'polypol'. Did you mean 'polypool'\?"):
        find_runs(uri, "polypol")
    with pytest.raises(InputError, match='Invalid value "i2t/R@1"'):
        tracker.log({"i2t/R@1": 1.0}, step=0)
    tracker._client.delete_run(tracker.run_id)
    with pytest.raises(InputError, match="was deleted; `mlflow runs restore"):
        Tracker.attach(uri, tracker.run_id)
    gone = start(uri, home, experiment="gone")
    tracker._client.delete_experiment(tracker._client.get_run(gone.run_id).info.experiment_id)
    for use in (lambda: start(uri, home, experiment="gone"), lambda: find_runs(uri, "gone")):
        with pytest.raises(InputError, match=r"experiment 'gone' .* was deleted; use another name"):
            use()


def test_stores_that_cannot_be_used_are_refused_at_once(home, tmp_path):
    for bad in ("./mlruns", "file:///tmp/mlruns", "", "sqlite:///:memory:", "ftp://host"):
        with pytest.raises(InputError, match=r"cannot be recorded at .* sqlite:////absolute") as refused:
            start(bad, home)
        hint = f"mlflow migrate-filestore --source {bad.removeprefix('file://')} --target sqlite:////absolute"
        assert (hint in str(refused.value)) == ("mlruns" in bad)
    with pytest.raises(InputError, match=r"no runs are recorded: .*/none.db does not exist; train first"):
        find_runs(f"sqlite:///{tmp_path}/none.db", "polypool")
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one" * 50)
    with pytest.raises(InputError, match="cannot be read as a database: file is not a database"):
        start(f"sqlite:///{tmp_path}/text.db", home)
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(InputError, match="unable to open database file"):
        start(f"sqlite:///{tmp_path}/folder.db", home)


def test_a_server_that_does_not_answer_is_told_within_seconds(home, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        silence = rf"no MLflow server answers at http://127.0.0.1:{port}: Read timed out"
        with pytest.raises(InputError, match=silence):
            start(f"http://127.0.0.1:{port}", home)
    with pytest.raises(InputError, match="Connection refused; start it, or set MLFLOW_TRACKING_URI"):
        find_runs(f"http://127.0.0.1:{port}", "polypool")
    assert time.monotonic() - began < 5
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60", "an answer that takes long is waited for"


def test_the_uri_is_the_variable_or_a_file_in_the_home(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(Path("/home/me")) == "sqlite:////home/me/mlflow.db"
    for given, expected in {
        "sqlite:///runs/a.db": "sqlite:////home/me/runs/a.db",
        "sqlite:////data/a.db": "sqlite:////data/a.db",
        "http://server:5000": "http://server:5000",
    }.items():
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        assert tracking_uri(Path("/home/me")) == expected


def test_where_runs_are_to_be_seen_is_a_command_and_an_address(uri, home, monkeypatch):
    tracker = start(uri, home, experiment="seen")
    number = tracker._client.get_run(tracker.run_id).info.experiment_id
    page = f"http://127.0.0.1:5000/#/experiments/{number}/runs?workflowType=machine_learning"
    why = f"all runs in a browser at {page}&viewStateShareKey=polypool"
    shown = (why, ("$mlflow", "ui", "--backend-store-uri", uri))
    assert to_see(uri, "seen") == shown
    assert to_see(uri, "none")[0].endswith("http://127.0.0.1:5000/#/experiments")
    monkeypatch.setattr(module, "connect", lambda uri: tracker._client)
    at_server = f"http://server:5000/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey=polypool"
    assert to_see("http://server:5000/", "seen")[1] == ("$open", at_server)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_provenance_is_that_of_the_code_wherever_the_home_is(tmp_path, monkeypatch):
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance(tmp_path)["git_commit"] == head
    monkeypatch.setenv("POLYPOOL_COMMIT", "5" * 40)
    assert provenance(tmp_path)["git_commit"] == head, "what runs is a checkout, whatever it is said to be"


def test_provenance_takes_the_commit_of_the_home_where_the_code_is_a_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "copy" / "infra" / "tracking.py"))
    assert provenance(tmp_path)["git_commit"] == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    tags = provenance(tmp_path)
    assert (len(tags["git_commit"]), tags["git_dirty"]) == (40, "false")
    monkeypatch.setenv("POLYPOOL_COMMIT", "5" * 40)
    assert provenance(tmp_path)["git_commit"] == "5" * 40, "of the copy, not of the home beside it"
    monkeypatch.setenv("POLYPOOL_COMMIT", "HEAD")
    with pytest.raises(InputError, match="must be what `git rev-parse HEAD` prints, not 'HEAD'"):
        provenance(tmp_path)
    monkeypatch.delenv("POLYPOOL_COMMIT")
    (tmp_path / "file").write_text("two")
    assert provenance(tmp_path)["git_dirty"] == "true"


@pytest.mark.parametrize(
    ("program", "words", "line"),
    [
        ("polypool train", ["coco", "kmax(k=5)"], "polypool train coco 'kmax(k=5)'"),
        ("/usr/lib/pytest/__main__.py", ["-q"], ""),
        ("", [], ""),
    ],
)
def test_the_command_line_of_a_verb_is_as_one_would_type_it(program, words, line, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, *words])
    assert command_line() == line


def test_a_missing_file_of_a_server_is_told_from_a_failure(uri):
    from mlflow.exceptions import MlflowException

    class Server:
        """One that keeps `run.json`, and breaks at `broken.json`."""

        def download_artifacts(self, run_id: str, name: str, target: str) -> str:
            if name != "kept/run.json":
                raise MlflowException("500 Internal Server Error")
            path = Path(target, name)
            path.parent.mkdir()
            path.write_text(run_id)
            return str(path)

        def list_artifacts(self, run_id: str, folder: str | None) -> list[SimpleNamespace]:
            names = {"kept": ["kept/run.json", "kept/broken.json"], None: ["kept", "broken.json"]}
            return [SimpleNamespace(path=name) for name in names[folder]]

    artifacts, root = Artifacts(uri, Server()), "mlflow-artifacts:/0/r1/artifacts"
    assert artifacts.find("r1", root, "kept/run.json").read_text() == "r1"
    for name in ("kept/none.json", "none.json"):
        with pytest.raises(AbsentError, match=f"run r1 has no artifact {name}"):
            artifacts.find("r1", root, name)
    with pytest.raises(InputError, match="500 Internal"):
        artifacts.find("r1", root, "kept/broken.json")


def test_the_history_of_a_metric_is_in_order_and_a_repeated_step_counts_once(uri, home):
    tracker = start(uri, home)
    for step, value in ((10, 5.0), (30, 3.0), (20, 4.0), (30, 2.0)):
        tracker.log({"train/negatives": value}, step=step)
    assert tracker.history("train/negatives") == [(10, 5.0), (20, 4.0), (30, 2.0)]
    assert tracker.history("train/never") == []


def test_reading_a_run_leaves_its_status(uri, home):
    tracker = start(uri, home)
    tracker.finish("KILLED")
    assert Tracker.attach(uri, tracker.run_id, running=False).tag("kind") == "train"
    assert record(uri, tracker.run_id).status == "KILLED"
