import os
import re
import secrets
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import ray.util.state
from places import ROOT
from programs import begin, soon

from polypool.infra import paths
from polypool.infra.errors import InputError
from polypool.infra.ray import JobServer, _core_users, _shorten_folder, free_ports, private_head

pytestmark = pytest.mark.ray

JOB = """
import os, time
from polypool.infra.paths import home
print("home is", home())
time.sleep(2)
print("from", os.getcwd())
print("SAID is", os.environ["SAID"])
print("an end without a newline", end="")
"""


def alive(words: str) -> list[str]:
    """Return the command lines that contain `words`; they have a NUL after each argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


def folder_of(address: str) -> Path:
    """Return the folder of the head with this dashboard address; other tests run other heads."""
    port = address.rpartition(":")[2]
    (folder,) = {part for words in alive(f"--port={port}\0") for part in re.findall(r"/tmp/pp-\w+", words)}
    return Path(folder)


@pytest.mark.slow
def test_private_head_runs_jobs_and_cleans_up():
    with private_head(cpus=1) as head:
        folder = folder_of(head.address)
        assert alive(str(folder))
        shown = job(head, JOB, env={"SAID": "at length"})
        assert shown.count(f"home is {ROOT}") == 1, "a line must be shown once, and the home be the project"
        assert any(line.startswith(f"from {folder}") for line in shown)
        assert shown[-2:] == ["SAID is at length", "an end without a newline"]
        with pytest.raises(InputError, match=r"ended as FAILED \(.*exit code 3\); its output"):
            job(head, "raise SystemExit(3)")
        stopped_by_interrupt(head)
    assert not folder.exists()
    assert soon_gone(str(folder))


def soon_gone(words: str) -> bool:
    """Whether within 30 seconds no process has `words` on its command line."""
    return soon(lambda: not alive(words), seconds=30)


def job(head: JobServer, code: str, *, env: dict[str, str] | None = None) -> list[str]:
    shown: list[str] = []
    head.run(["python", "-c", code], folder=ROOT, env=env or {}, show=shown.append)
    return shown


def stopped_by_interrupt(head: JobServer) -> None:
    endless = f"import time; print('started {(mark := secrets.token_hex(8))}', flush=True); time.sleep(600)"

    def interrupt(line: str) -> None:
        assert alive(mark)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        head.run(["python", "-c", endless], folder=ROOT, env={}, show=interrupt)
    assert soon_gone(mark)


def test_unreachable_job_server_error_names_its_address():
    (port,) = free_ports(1)
    with pytest.raises(InputError, match=f"no job server answers at http://127.0.0.1:{port}"):
        job(JobServer(address=f"http://127.0.0.1:{port}"), "pass")


def test_waiting_message_names_jobs_that_use_the_cores(monkeypatch):
    state, own = ray.util.state, SimpleNamespace(get_job_id=lambda: "03")
    bundles = [{"unit_resources": {"CPU": 2.0}}, {"unit_resources": {"CPU": 1.0}}]
    actors = [
        SimpleNamespace(job_id=job, placement_group_id=group, required_resources={"CPU": 1.0})
        for job, group in (("01", "of the bundles"), ("02", None))
    ]
    jobs = [
        SimpleNamespace(job_id="01", submission_id="raysubmit_1", entrypoint="polypool train coco"),
        SimpleNamespace(job_id="02", submission_id="", entrypoint="python mine.py"),
    ]

    def groups(*, detail, filters):  # Ray lists bundles only with `detail`
        return [SimpleNamespace(creator_job_id="01", bundles=bundles if detail else None)]

    monkeypatch.setattr(state, "list_placement_groups", groups)
    monkeypatch.setattr(state, "list_actors", lambda *, detail, filters: actors if detail else [])
    monkeypatch.setattr(state, "list_jobs", lambda: jobs)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: own)
    assert _core_users(2) == (
        "waiting for 2 cores (1 are free); "
        "`polypool train coco` uses 3 (job raysubmit_1, `ray job stop raysubmit_1` ends it); "
        "`python mine.py` uses 1 (job 02)"
    )
    assert not _core_users(1)
    own.get_job_id = lambda: "02"
    assert not _core_users(2), "a job that has cores must not wait for cores"


@pytest.mark.slow
def test_private_head_ends_when_owner_is_terminated():
    code = (
        "from polypool.infra.process.command import command\n"
        "from polypool.infra.ray import private_head\n@command\ndef main():\n"
        "    with private_head(cpus=1) as head: print(head.address, flush=True); input()\nmain()"
    )
    owner = begin("-c", code, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    folder = folder_of(owner.stdout.readline().rstrip())
    owner.send_signal(signal.SIGTERM)
    assert owner.wait(60) == 128 + signal.SIGTERM
    assert soon_gone(str(folder))


def test_home_in_job_needs_project_folder_or_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("POLYPOOL_HOME", raising=False)
    assert paths.home() == Path.cwd()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert paths.home() == ROOT
    monkeypatch.setattr(paths, "_editable_folder", lambda: None)
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI"):
        paths.home()
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    assert paths.absolute("data/x", paths.here) == tmp_path / "data/x"
    assert paths.absolute("/data/x", paths.here) == Path("/data/x")


@pytest.mark.parametrize(("folder", "ray"), [("/tmp/short", ""), (f"/tmp/{'x' * 40}", "/tmp")])
def test_long_temporary_folder_is_replaced_for_ray(monkeypatch, folder, ray):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", folder)
    _shorten_folder()
    assert os.environ.get("RAY_TMPDIR", "") == ray
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
