import math
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException
from mlflow.store.fs2db.cli import migrate_filestore
from mlflow.utils import mlflow_tags, validation
from places import ROOT

from polypool.infra import tracking as module
from polypool.infra.errors import AbsentError, InputError
from polypool.infra.tracking import (
    Artifacts,
    RunRecord,
    Tracker,
    command_line,
    find_runs,
    provenance,
    resolve_run,
    to_see,
    tracking_uri,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("100% of #runs")


@pytest.fixture(scope="module")
def uri(home) -> str:
    return f"sqlite:///{home}/mlflow.db"


def start(uri, home, *, name="a run", experiment="polypool", tags=(), **params: object) -> Tracker:
    tags = {"kind": "train", **dict(tags)}
    return Tracker.start(experiment, uri=uri, home=home, name=name, tags=tags, params=params)


def record(tracker: Tracker, *, experiment: str = "polypool") -> RunRecord:
    (found,) = [
        run for run in find_runs(tracker.uri, experiment, finished=False) if run.run_id == tracker.run_id
    ]
    return found


def test_two_threads_can_create_a_store_concurrently(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with ThreadPoolExecutor(2) as threads:
        runs = [*threads.map(lambda name: start(uri, tmp_path, name=name, experiment="race"), ("one", "two"))]
    assert {run.run_id for run in find_runs(uri, "race", finished=False)} == {run.run_id for run in runs}


def test_table_replaces_earlier_table(uri, home):
    tracker = start(uri, home)
    for score in (1.5, math.nan):
        tracker.table("trials.json", {"state": ["trained", "new"], "score": [score, 2.0]})
    rows = [["trained", None], ["new", 2.0]]
    assert tracker.read_json("trials.json") == {"columns": ["state", "score"], "data": rows}


def test_run_is_created_resumed_finished_and_found(uri, home):
    tracker = start(uri, home, name="gpo seed 0", optim={"lr": 1e-3, "milestones": [15]}, text="", none=None)
    tracker.log({"train/loss": 2.0, "whole/i2t/R1": 10}, step=1)
    tracker.finish("FAILED")
    assert Tracker.attach(uri, tracker.run_id, running=False).tag("kind") == "train"
    assert record(tracker).status == "FAILED", "attaching with running=False must keep the status"
    assert tracker.run_id not in {run.run_id for run in find_runs(uri, "polypool")}
    again = Tracker.attach(uri, tracker.run_id)
    assert (record(again).status, record(again).ended) == ("RUNNING", None)
    for step, value in ((10, 5.0), (30, 3.0), (20, 4.0), (30, 2.0)):
        again.log({"train/loss": value, "nan": math.nan, "high": 1e300}, step=step)
    again.tags({"é": "ü\n'\""})
    again.finish()
    found = record(tracker)
    assert (found.name, found.status) == ("gpo seed 0", "FINISHED")
    assert {"kind": "train", "é": "ü\n'\""}.items() <= found.tags.items()
    expected = {"train/loss": 2.0, "whole/i2t/R1": 10.0, "high": 1e300, "nan": math.nan}
    assert found.metrics == pytest.approx(expected, nan_ok=True)
    assert found.params == {"optim.lr": "0.001", "optim.milestones": "[15]", "text": "", "none": "None"}
    assert found.started <= found.ended <= time.time()
    assert (again.tag("kind"), again.tag("absent")) == ("train", "")
    assert again.history("train/loss") == [(1, 2.0), (10, 5.0), (20, 4.0), (30, 2.0)]
    assert again.history("never") == []


def test_artifacts_round_trip(uri, home, tmp_path):
    tracker = start(uri, home, words="x" * 7000, short="y")
    (tmp_path / "model.bin").write_bytes(b"weights")
    tracker.artifact(tmp_path, "model")
    tracker.artifact(tmp_path / "model.bin", "copy")
    tracker.text("notes/a.md", "# é")
    assert home / "mlartifacts" in tracker.download("model").parents
    assert tracker.download("notes/a.md").read_text() == "# é"
    assert tracker.read_json("long_params.json") == {"words": "x" * 7000}
    found = record(tracker)
    assert found.params["short"] == "y"
    assert found.params["words"].startswith("x" * 200 + "... (7,000 characters in long_params.json, SHA-256 ")
    for name in ("modle", "model/none.bin"):
        with pytest.raises(InputError, match=r"unknown artifact .* Choices: copy, long"):
            tracker.download(name)
    artifacts = Artifacts(uri)
    for name in ("model/model.bin", "copy/model.bin"):
        assert artifacts.path(found, name).read_bytes() == b"weights"
    for name in ("notes/b.md", "none"):
        with pytest.raises(InputError, match=f"^run {tracker.run_id} has no artifact {name}$"):
            artifacts.path(found, name)


def test_many_params_and_pages_of_runs_are_read(uri, home, monkeypatch):
    first = start(uri, home, experiment="pages", **{f"p{i}": i for i in range(250)})
    assert len(record(first, experiment="pages").params) == 250
    others = [start(uri, home, experiment="pages").run_id for _ in range(2)]
    monkeypatch.setattr(module, "_PAGE", 2)
    assert [run.run_id for run in find_runs(uri, "pages", finished=False)] == [*others[::-1], first.run_id]


def test_unknown_and_deleted_runs_and_experiments_are_refused(uri, home):
    tracker = start(uri, home, name="the one")
    part = tracker.run_id[:8]
    for run_id, message in (
        (part, f"no run '{part}'.*The nearest runs:\n  {tracker.run_id}  the one$"),
        ("x", r"no run 'x'.*The latest runs:\n  [0-9a-f]{32}  the one\n"),
    ):
        with pytest.raises(InputError, match=message):
            Tracker.attach(uri, run_id)
    with pytest.raises(AbsentError, match=r"unknown experiment 'polypol'. Did you mean 'polypool'\?"):
        find_runs(uri, "polypol")
    with pytest.raises(InputError, match='Invalid value "i2t/R@1"'):
        tracker.log({"i2t/R@1": 1.0}, step=0)
    tracker._client.delete_run(tracker.run_id)
    with pytest.raises(InputError, match="was deleted; `mlflow runs restore"):
        Tracker.attach(uri, tracker.run_id)
    assert tracker.run_id not in {run.run_id for run in find_runs(uri, "polypool", finished=False)}
    gone = start(uri, home, experiment="gone")
    tracker._client.delete_experiment(tracker._client.get_run(gone.run_id).info.experiment_id)
    for use in (lambda: start(uri, home, experiment="gone"), lambda: find_runs(uri, "gone")):
        with pytest.raises(InputError, match=r"experiment 'gone' .* was deleted; use another name"):
            use()


def test_unusable_tracking_stores_are_refused(home, tmp_path):
    for bad in ("./mlruns", "file:///tmp/mlruns", "", "sqlite:///:memory:", "ftp://host"):
        with pytest.raises(InputError, match=r"cannot be recorded at .* sqlite:////absolute") as refused:
            start(bad, home)
        hint = f"mlflow migrate-filestore --source {bad.removeprefix('file://')} --target sqlite:////absolute"
        assert (hint in str(refused.value)) == ("mlruns" in bad)
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one" * 50)
    (tmp_path / "folder.db").mkdir()
    for name, use, message in (
        ("none", find_runs, "no runs are recorded: .*/none.db does not exist; train first"),
        ("none", resolve_run, "no runs are recorded"),
        ("text", find_runs, "cannot be read as a database: file is not a database"),
        ("folder", find_runs, "unable to open database file"),
    ):
        with pytest.raises(InputError, match=message):
            use(f"sqlite:///{tmp_path}/{name}.db", "latest")


def test_unresponsive_server_is_reported_within_seconds(home, monkeypatch):
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
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60", (
        "the long timeout must be restored after the first request"
    )


def test_tracking_uri_is_variable_or_database_in_home(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(Path("/home/me")) == "sqlite:////home/me/mlflow.db"
    for given, expected in {
        "sqlite:///runs/a.db": "sqlite:////home/me/runs/a.db",
        "sqlite:////data/a.db": "sqlite:////data/a.db",
        "http://server:5000": "http://server:5000",
    }.items():
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        assert tracking_uri(Path("/home/me")) == expected


def test_to_see_returns_command_and_url(uri, home, monkeypatch):
    tracker = start(uri, home, experiment="seen")
    number = tracker._client.get_run(tracker.run_id).info.experiment_id
    page = f"/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey=polypool"
    shown = to_see(uri, "seen")
    assert shown[0].endswith(f" http://127.0.0.1:5000{page}")
    assert shown[1] == ("$mlflow", "ui", "--backend-store-uri", uri)
    assert to_see(uri, "none")[0].endswith("http://127.0.0.1:5000/#/experiments")
    monkeypatch.setattr(module, "connect", lambda uri: tracker._client)
    assert to_see("http://server:5000/", "seen")[1] == ("$open", f"http://server:5000{page}")


def test_provenance_is_commit_of_code_variable_or_home(tmp_path, monkeypatch):
    def git(folder: Path, *words: str) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    given = "5" * 40
    if (ROOT / ".git").exists():
        monkeypatch.setenv("POLYPOOL_COMMIT", given)
        assert provenance(tmp_path)["git_commit"] == git(ROOT, "rev-parse", "HEAD"), (
            "the commit of the code's checkout must precede POLYPOOL_COMMIT"
        )
        monkeypatch.delenv("POLYPOOL_COMMIT")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "copy" / "infra" / "tracking.py"))
    assert provenance(tmp_path)["git_commit"] == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    tags = provenance(tmp_path)
    assert (tags["git_commit"], tags["git_dirty"]) == (git(tmp_path, "rev-parse", "HEAD"), "false")
    (tmp_path / "file").write_text("two")
    assert provenance(tmp_path)["git_dirty"] == "true"
    monkeypatch.setenv("POLYPOOL_COMMIT", given)
    assert provenance(tmp_path)["git_commit"] == given, "POLYPOOL_COMMIT must precede the commit of the home"
    monkeypatch.setenv("POLYPOOL_COMMIT", "HEAD")
    with pytest.raises(InputError, match="must be what `git rev-parse HEAD` prints, not 'HEAD'"):
        provenance(tmp_path)


def test_command_line_is_recorded_as_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["polypool train", "coco", "kmax(k=5)"])
    assert command_line() == "polypool train coco 'kmax(k=5)'"
    for argv in (["/usr/lib/pytest/__main__.py", "-q"], [""]):
        monkeypatch.setattr(sys, "argv", argv)
        assert command_line() == ""


def test_missing_artifact_differs_from_server_failure(uri):
    class Server:
        """Serves `run.json` and fails on `broken.json`."""

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


def test_run_resolves_by_id_prefix_name_or_latest(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mine, quoted, *twice = [start(uri, tmp_path, name=name) for name in ("mine", "it's", "twice", "twice")]
    start(uri, tmp_path, tags={"joint": mine.run_id})
    last = start(uri, tmp_path, tags={"kind": "transfer"}).run_id
    assert resolve_run(uri, "latest") == twice[1].run_id, "latest must skip joint members and other kinds"
    assert [resolve_run(uri, name) for name in ("mine", "it's")] == [mine.run_id, quoted.run_id]
    for length in (8, 32):
        assert resolve_run(uri, mine.run_id[:length]) == mine.run_id
    with pytest.raises(
        InputError, match=r"^'twice' means 2 runs at .*; write more of the id of one:\n"
    ) as of:
        resolve_run(uri, "twice")
    assert all(f"\n  {run.run_id}  twice" in str(of.value) for run in twice)
    for named in ("", "none", "12%", "a'b\"c", "latest "):
        message = (
            f"no run {named!r} at" if named else "no run is named: give an id, its beginning, or 'latest'"
        )
        with pytest.raises(InputError, match=f"^{re.escape(message)}(.|\n)*{last}"):
            resolve_run(uri, named)


def test_limits_and_names_match_mlflow():
    for ours, theirs in (
        (module.DIGEST_LENGTH, validation.MAX_DATASET_DIGEST_SIZE),
        (module.PARAM_LENGTH, validation.MAX_PARAM_VAL_LENGTH),
        (module.PARAMS_AT_ONCE, validation.MAX_PARAMS_TAGS_PER_BATCH),
        (module.METRICS_AT_ONCE, validation.MAX_METRICS_PER_BATCH),
    ):
        assert ours <= theirs
    names = (mlflow_tags.MLFLOW_DATASET_CONTEXT, mlflow_tags.MLFLOW_MODEL_VERSIONS)
    assert names == (module.DATASET_CONTEXT, module.MODEL_VERSIONS)
    assert {"source", "target"} <= {option.name for option in migrate_filestore.params}


def test_machine_lists_processors_and_gpus_without_host(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("model name\t: Fast  CPU @ 3 GHz\nflags: a\n" * 2)
    for number, model in enumerate(("NVIDIA H100", "NVIDIA H100", "NVIDIA T4")):
        (tmp_path / f"driver/nvidia/gpus/{number}").mkdir(parents=True)
        (tmp_path / f"driver/nvidia/gpus/{number}/information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    monkeypatch.setattr(module, "_PROC", tmp_path)
    cores = len(os.sched_getaffinity(0))
    assert module.machine().endswith(f", {cores} x Fast CPU @ 3 GHz, 2 x NVIDIA H100, 1 x NVIDIA T4")
    assert os.uname().nodename not in module.machine()
    monkeypatch.setattr(module, "_PROC", tmp_path / "none")
    assert module.machine().count(",") == 1
