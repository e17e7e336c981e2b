"""`infra/deploy/slurm.sh` with stubs of Slurm, Ray and Python that record their arguments."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT
from programs import soon

SCRIPT = ROOT / "infra/deploy/slurm.sh"
NOTE = 'note() { (flock 9; printf "%q " "$@" >&9; echo >&9) 9>>"$STUBS/log"; }\n'
BLOCK = """trap 'note "$0" TERM; kill %1; exit 143' TERM; sleep 600 & {then}; wait\n"""
STUBS = {
    # runs the command after the flags, with the name of the node in NODE
    "srun": """flags=()
        while [ "$1" != bash ]; do
            case $1 in --nodelist=*) export NODE=${1#*=};; --exclude=*) export NODE=others;; esac
            flags+=("$1")
            shift
        done
        note srun "${flags[@]}"
        exec "$@" """,
    "scontrol": """note scontrol "$@"
        if [ "$1" = show ]; then
            case $3 in
            'n[1-3]') printf 'n1\\nn2\\nn3\\n' ;;
            'node[01-03]') printf 'node01\\nnode02\\nnode03\\n' ;;
            *) exit 1 ;;
            esac
        else [ ! -e "$STUBS/no requeue" ]; fi""",
    "hostname": """[ "${1:-}" = -I ] || { echo name; exit; }
        case ${NODE:-n1} in n1 | node01) echo 127.0.0.1 fd00::2 10.0.0.1;; *) echo 10.0.0.2;; esac""",
    "getent": """sed 's/$/ STREAM name/' "$STUBS/resolves" """,
    "ip": """case "$*" in
        *dev*) echo "3: ib0 inet 10.1.0.1/16 scope global";;
        *) printf '%s inet %s scope global\\n' '1: lo' 127.0.0.1/8 '2: eth7' 10.0.0.1/24 '3: ib0' 10.1.0.1/16;;
        esac""",
    "ray": """if [ "$1" = health-check ]; then
            if [ -e "$STUBS/slow" ]; then exit 1; fi
            [ -e "$STUBS/on n1" ] || [ -e "$STUBS/on node01" ]; exit; fi
        note ray "$NODE" "gloo=${GLOO_SOCKET_IFNAME:-}" "$RAY_AUTH_MODE-${#RAY_AUTH_TOKEN}" "$@"
        if [ -e "$STUBS/no head" ]; then exit 3; fi
        """
    + BLOCK.format(then='touch "$STUBS/on $NODE"'),
    "python": """note python "at=${RAY_ADDRESS:-}" "home=$POLYPOOL_HOME" "$@"
        case $2 in polypool.infra.*)
            until [ "$3" = 1 ] || [ -e "$STUBS/on others" ]; do sleep 0.05; done
            exit 0
        esac
        if [ -e "$STUBS/endless" ]; then """
    + BLOCK.format(then='echo ready >"$STUBS/ready"')
    + """fi
        exit "$(cat "$STUBS/code")" """,
}


class Job:
    """Runs the script as Slurm would, with the stubs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "my env" / "bin"
        self.bin.mkdir(parents=True)
        for name, body in STUBS.items():
            (self.bin / name).write_text(f"#!/usr/bin/env bash\nset -eu\n{NOTE}{body}\n")
            (self.bin / name).chmod(0o755)
        (folder / "code").write_text("0")
        (folder / "resolves").write_text("127.0.1.1")
        os.mkfifo(folder / "ready")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "POLYPOOL_", "SLURM_"))}
        self.env = {
            **clean,
            "STUBS": str(folder),
            "POLYPOOL_ENV": str(self.bin.parent),
            "POLYPOOL_START_SECONDS": "60",
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_CPUS_PER_TASK": "6",
        }
        self.begun: list[subprocess.Popen] = []

    def begin(self, *words: str, **env: str) -> subprocess.Popen:
        with (self.folder / "output").open("ab") as output:
            to = {"stdout": output, "stderr": output, "start_new_session": True}
            process = subprocess.Popen(["bash", SCRIPT, *words], cwd=self.folder, env=self.env | env, **to)
        self.begun.append(process)
        return process

    def end(self, *words: str, **env: str) -> int:
        return self.begin(*words, **env).wait(120)

    def wait_until_it_trains(self) -> None:
        assert (self.folder / "ready").read_text() == "ready\n"

    def log(self, name: str) -> list[list[str]]:
        """Return the arguments of each call of a stub, in order."""
        lines = (self.folder / "log").read_text().splitlines()
        return [words[1:] for line in lines if (words := shlex.split(line))[0] == name]

    @property
    def said(self) -> str:
        return (self.folder / "output").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_job_starts_head_workers_command_then_stops_ray(job):
    words = ["train", "coco", "--aggregator", "kmax(k = 5)", "--name", 'a\'b "c"*']
    assert job.end(*words) == 0, job.said
    head, others = job.log("srun")
    assert head[:3] == ["--nodes=1", "--ntasks=1", "--nodelist=n1"]
    assert others[:4] == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--exclude=n1"]
    assert {"--cpus-per-task=6", "--mem=0", "--kill-on-bad-exit=0"} <= set(head) & set(others)
    first, rest = job.log("ray")
    assert first[:3] == ["n1", "gloo=eth7", "token-64"]
    flags = {"--block", "--head", "--port=25670", "--node-ip-address=10.0.0.1", "--num-cpus=6"}
    assert flags | {"start", "--dashboard-host=127.0.0.1"} <= set(first)
    assert rest[:1] == ["others"]
    assert "--address=10.0.0.1:25670" in rest
    assert "--head" not in rest
    at = ["at=10.0.0.1:25670", f"home={job.folder}", "-m"]
    waits, trains = job.log("python")
    assert waits == [*at, "polypool.infra.deploy.nodes", "3", "60"]
    file = str(job.folder / "slurm-1234567.run")
    assert trains == [*at, "polypool", "train", *words[1:], "--run-id-file", file]
    assert sorted(job.log(str(job.bin / "ray"))) == [["TERM"], ["TERM"]], (
        "head and workers must both receive SIGTERM"
    )
    assert ["requeue", "1234567"] not in job.log("scontrol")


def test_time_limit_requeues_job_and_resumes_run(job):
    file = job.folder / "slurm-1234567.run"
    file.write_text("of an older job")
    (job.folder / "endless").touch()
    process = job.begin("train", "coco")
    job.wait_until_it_trains()
    assert not file.exists()
    file.write_text("id")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 143, job.said
    assert job.log(str(job.bin / "python")) == [["TERM"]]
    assert job.log("scontrol")[-1] == ["requeue", "1234567"]
    before = job.log("python")[-1]

    (job.folder / "endless").unlink()
    for name in ("on n1", "on others"):
        (job.folder / name).unlink()
    assert job.end("train", "coco", SLURM_RESTART_COUNT="1") == 0, job.said
    assert job.log("python")[-1] == before, "the requeued job must run the same command"
    assert file.read_text() == "id", "the requeued job must keep the run id"
    assert job.log("scontrol").count(["requeue", "1234567"]) == 1


@pytest.mark.parametrize(
    ("words", "files", "number", "code"),
    [
        (["sweep", "--recipes", "coco"], ["endless"], signal.SIGTERM, 143),
        (["train", "resume", "12ab"], ["endless", "no requeue"], signal.SIGUSR1, 1),
    ],
    ids=["somebody ends it", "it cannot be queued again"],
)
def test_driver_is_terminated_if_job_is_not_requeued(job, words, files, number, code):
    for name in files:
        (job.folder / name).touch()
    process = job.begin(*words)
    job.wait_until_it_trains()
    process.send_signal(number)
    assert process.wait(120) == code, job.said
    assert job.log("python")[-1][3:] == ["polypool", *words]
    assert job.log(str(job.bin / "python")) == [["TERM"]]
    assert (["requeue", "1234567"] in job.log("scontrol")) == (number == signal.SIGUSR1)
    assert ("cannot be queued again" in job.said) == (code == 1)


def test_requeues_need_a_started_ray_and_are_limited(job):
    (job.folder / "slow").touch()
    process = job.begin("train", "coco")
    assert soon((job.folder / "on n1").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 1, job.said
    assert "the time limit came before Ray had started on all nodes; not queued again" in job.said
    (job.folder / "slow").unlink()
    (job.folder / "endless").touch()
    for name in ("on n1", "on others"):
        (job.folder / name).unlink(missing_ok=True)
    process = job.begin("train", "coco", SLURM_RESTART_COUNT="3", POLYPOOL_REQUEUES="3")
    job.wait_until_it_trains()
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 1, job.said
    assert "not queued again, after 3 times (POLYPOOL_REQUEUES)" in job.said
    assert ["requeue", "1234567"] not in job.log("scontrol")
