"""A Ray of a process's own: it begins beside other work, and ends with its owner, however that ends."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import begin, end, soon

from polypool.infra.ray import private, session
from polypool.infra.ray.private import PrivateRay, StartError
from polypool.infra.ray.session import Session

pytestmark = pytest.mark.ray

OWNER = """
import os, signal, sys, time
from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.ray.private import started_by
from polypool.infra.ray.session import ray_beside, ray_session

@command
def main():
    with ray_beside(cpus=1):
        {inside}

def tell():
    print(*(each.pid for each in started_by(os.getpid())), flush=True)

main()
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name leaves room for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="pp-", dir="/tmp") as folder:
        yield Path(folder)


def owner(inside: str, **environment: str) -> subprocess.Popen:
    """Start a process that has a private Ray, but for what its environment says, and does something beside it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | environment
    return begin("-c", OWNER.format(inside=inside), env=env)


def alive(pids: list[int]) -> list[int]:
    """Return those of some processes that are there, but for those that have ended and nobody has looked after."""
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return [
        pid
        for pid, state in zip(pids, states, strict=True)
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"
    ]


@pytest.mark.slow
def test_a_session_is_that_which_began_and_leaves_no_process_behind():
    inside = """
        assert "ray" not in sys.modules
        with ray_session() as session:
            import ray
            cores = ray.cluster_resources()["CPU"]
            process, niceness = ray.get(ray.remote(lambda: (os.getpid(), os.nice(0))).remote())
            assert (process != os.getpid(), niceness) == (True, os.nice(0)), "in another process, which is as urgent"
            tell()
        with ray_session() as again:
            assert ray.is_initialized()
        print(session == again, session, cores)
    """
    pids, text = said_by(owner(inside.strip())).splitlines()
    assert text == f"True {Session(private=True, shared=False)} 1.0"
    assert len(pids.split()) > 5
    assert alive([int(pid) for pid in pids.split()]) == []


def said_by(process: subprocess.Popen) -> str:
    """Return what a process printed, which has to succeed."""
    code, said, errors = end(process)
    assert code == 0, errors
    return said


LISTENING = """
        if {early}:
            import ray.train
        with ray_session(shared=True):
            import ray
            ray.get(ray.remote(lambda: None).remote())
            started = started_by(os.getpid())
            all = [type(started[0])(os.getpid()), *started]
            print(*(at.laddr.ip for each in all for at in each.net_connections("tcp") if at.status == "LISTEN"))
        from ray._private import ray_constants
        assert ray_constants.ENABLE_RAY_CLUSTER, "another session may be of a cluster"
"""


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_nobody_on_another_machine_reaches_any_part_of_it(early):
    places = said_by(owner(LISTENING.format(early=early).strip())).split()
    assert len(places) > 5
    assert set(places) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.slow
def test_a_cluster_that_runs_here_is_named(short_folder):
    """It is not joined unasked: what runs there may be of another user, or of another environment."""
    note = short_folder / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    for answers in (True, False):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            if answers:
                listening.listen()
            note.write_text(address)
            process = owner('raise InputError("such is the input")', RAY_TMPDIR=str(short_folder))
            _, _, errors = end(process)
            told = f"note: a Ray runs at {address}; RAY_ADDRESS={address} makes a command use it"
            assert (told in errors, errors.count("\n")) == (answers, 1 + answers)


@pytest.mark.slow
def test_an_error_beside_its_start_leaves_no_process_behind():
    process = owner('time.sleep(1.5); tell(); raise InputError("such is the input")')
    code, said, errors = end(process)
    assert code == 2
    assert errors == "error: such is the input\n"
    pids = [int(pid) for pid in said.split()]
    assert pids
    assert alive(pids) == []


@pytest.mark.slow
def test_it_ends_though_its_owner_is_killed():
    process = owner("with ray_session(): tell(); time.sleep(600)")
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(alive(pids)) > 5, process.communicate()[1]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert soon(lambda: not alive(pids))


def test_one_that_does_not_begin_says_why(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no room for ' + __import__('sys').argv[1])")
    monkeypatch.setattr(private, "_PROGRAM", program)
    begun = PrivateRay(cpus=3, dashboard=True)
    why = r"(?s)Ray did not start; its output ends with:\nno room for (.*)"
    with pytest.raises(StartError, match=why) as error:
        _ = begun.address
    options = json.loads(str(error.value).partition("no room for ")[2])
    assert options == {"num_cpus": 3, "include_dashboard": True, "dashboard_host": "127.0.0.1"}
    begun.end()


SLOW = """
import sys
from pathlib import Path
tries = Path(__file__).with_suffix(".tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) < {needed}:
    raise SystemExit("Exception: The current node timed out during startup. This could happen")
print("10.0.0.1:6379", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("needed", [3, 4])
def test_one_that_is_slow_is_started_again(tmp_path, monkeypatch, capsys, needed):
    program = tmp_path / "program.py"
    program.write_text(SLOW.format(needed=needed))
    monkeypatch.setattr(private, "_PROGRAM", program)
    begun = PrivateRay(cpus=1, dashboard=False)
    if needed == 3:
        assert begun.address == "10.0.0.1:6379"
    else:
        with pytest.raises(StartError, match="took too long to start, 3 times"):
            _ = begun.address
    assert capsys.readouterr().err.count("is started again") == 2
    assert program.with_suffix(".tries").read_text() == "xxx"
    begun.end()


@pytest.mark.slow
def test_nothing_begins_where_there_is_a_cluster():
    """In a process of its own: others of this one may have left a session open."""
    inside = """
        assert started_by(os.getpid()) == []
        with ray_session(): pass
    """
    code, said, errors = end(owner(inside.strip(), RAY_ADDRESS="127.0.0.1:9"))
    assert (code, said) == (2, "")
    assert errors.startswith("error: no Ray cluster answers at RAY_ADDRESS=127.0.0.1:9")


@pytest.mark.parametrize(("folder", "used"), [("/tmp/short", "/tmp/short"), (f"/tmp/{'long' * 10}", "/tmp")])
def test_sockets_of_a_private_ray_have_short_paths(folder, used, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(private.subprocess, "Popen", lambda *_, env, **__: begun.append(env["RAY_TMPDIR"]))
    monkeypatch.setattr(private, "free_bytes", lambda folder: 1 << 30)
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    private.PrivateRay(cpus=1, dashboard=False)
    assert begun == [used]
    assert (f"{folder} is too long" in capsys.readouterr().err) == (used != folder)


def test_a_full_folder_of_temporary_files_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(private, "free_bytes", lambda folder: 4096)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/full")
    with pytest.raises(private.StartError, match=r"/tmp/full has 4,096 bytes free .* set RAY_TMPDIR"):
        private.PrivateRay(cpus=1, dashboard=False)


def test_who_holds_the_cores_is_said_until_there_are_some(monkeypatch, capsys):
    import ray
    from ray.util import state

    groups = [SimpleNamespace(creator_job_id="01", bundles=[{"unit_resources": {"CPU": 1.0}}] * 2)]
    actors = [
        SimpleNamespace(job_id="01", placement_group_id="p", required_resources={"CPU": 1.0}),
        SimpleNamespace(job_id="02", placement_group_id=None, required_resources={"CPU": 1.0}),
    ]
    jobs = [
        SimpleNamespace(job_id="01", submission_id="raysubmit_a", entrypoint="polypool train\n  coco"),
        SimpleNamespace(job_id="02", submission_id=None, entrypoint="python x.py"),
    ]
    free, own = [0.0], ["03"]
    monkeypatch.setattr(state, "list_placement_groups", lambda **_: groups)
    monkeypatch.setattr(state, "list_actors", lambda **_: actors)
    monkeypatch.setattr(state, "list_jobs", lambda: jobs)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": free[0]})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: own[0]))
    line = (
        "waiting for 2 cores, of which 0 are free; 2 are held by `polypool train coco` (job raysubmit_a, `ray job stop "
        "raysubmit_a` ends it); 1 are held by `python x.py` (job 02)"
    )
    assert session._cores_held(2) == line
    monkeypatch.setattr(session, "_LOOKS", (0.01, 0.01))
    with session.waiting_for_cores(2, session=session.Session(private=False, shared=True)):
        time.sleep(0.2)
        own[0] = "02"
        time.sleep(0.1)
        capsys.readouterr()
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
    own[0], free[0] = "03", 2.0
    assert session._cores_held(2) == ""
