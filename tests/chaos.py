"""`make chaos`: inject faults at random times while the demo's three tasks train; every run must recover.

python tests/chaos.py --faults 20 --seed 0 --workers 2

A run is exact if its weights and losses equal those of an undisturbed run, bit for bit, with each loss logged once.
`train resume` resumes a killed run; Ray restarts a killed worker.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import tyro
from mlflow import MlflowClient

import polypool as pp
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.data.demonstration import PREPARE, DemoOptions

FAULTS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "halted for some seconds": signal.SIGSTOP}
WORKER = "a worker killed"


def train(*words: object) -> subprocess.Popen[str]:
    """Start `polypool train`; its output is appended to `said.txt` in POLYPOOL_HOME."""
    command = [sys.executable, "-m", "polypool", "train", *map(str, words)]
    with open(f"{os.environ['POLYPOOL_HOME']}/said.txt", "a") as said:
        return subprocess.Popen(command, text=True, stdout=said, stderr=said)


def begun(recipe: str, experiment: str, *, epochs: int, workers: int) -> tuple[subprocess.Popen[str], str]:
    """Start a run and wait for its id; return its process and its id."""
    file = Path(os.environ["POLYPOOL_HOME"], f"{experiment}.run")
    settings = ("--optim.epochs", epochs, "--checkpoint-every", 2, "--log-every", 1, "--no-figures")
    on = ("--workers", workers, "--cpus", 1, "--retries", 99) if workers > 1 else ()
    process = train(recipe, *settings, *on, "--experiment", experiment, "--run-id-file", file)
    while not (file.exists() and file.read_text().strip()):
        if process.poll() is not None:
            raise RuntimeError(f"{recipe} did not start: see {file.parent}/said.txt")
        time.sleep(0.1)
    return process, file.read_text().strip()


def traces(run_id: str) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Return the weights of a run, and its losses by step."""
    history = MlflowClient(tracking_uri(Path(os.environ["POLYPOOL_HOME"]))).get_metric_history(
        run_id, "train/loss"
    )
    return pp.load(run_id).model.state_dict(), sorted((each.step, each.value) for each in history)


def workers_of_ray() -> list[int]:
    """Return the process ids of the Ray workers that train in this POLYPOOL_HOME."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            of_ray = (process / "cmdline").read_bytes().startswith(b"ray::RayTrainWorker")
            if of_ray and os.environ["POLYPOOL_HOME"].encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def disturbed(
    process: subprocess.Popen[str], run_id: str, draw: random.Random, *, seconds: float
) -> list[str]:
    """Inject faults into a run until it has ended; return their kinds."""
    kinds: list[str] = []
    while True:
        try:
            code = process.wait(timeout=draw.uniform(0.2, seconds))
        except subprocess.TimeoutExpired:
            workers = workers_of_ray()
            kinds.append(draw.choice([*FAULTS, *([WORKER] if workers else [])]))
            if kinds[-1] == WORKER:
                os.kill(draw.choice(workers), signal.SIGKILL)
                continue
            process.send_signal(FAULTS[kinds[-1]])
            if FAULTS[kinds[-1]] == signal.SIGSTOP:
                time.sleep(draw.uniform(1, 5))
                process.send_signal(signal.SIGCONT)
                continue
            process.wait()
        else:
            if code == 0:
                return kinds
            raise RuntimeError(f"run {run_id} failed: see {os.environ['POLYPOOL_HOME']}/said.txt")
        process = train("resume", run_id)


def main(*, faults: int = 20, seed: int = 0, epochs: int = 16, workers: int = 1) -> None:
    """Inject faults into runs of the demo's tasks in turn; print for each run whether it is exact.

    Args:
        faults: minimum number of faults.
        seed: random seed of their kinds and times.
        epochs: number of epochs of each run.
        workers: number of Ray workers on this machine that train a run together; 1 trains without Ray.
    """
    draw, exact, seen = random.Random(seed), True, 0
    with tempfile.TemporaryDirectory(prefix="polypool-chaos-", ignore_cleanup_errors=True) as name:
        os.environ |= {"POLYPOOL_HOME": name, "OMP_NUM_THREADS": "1"}
        whole, lasted, size = {}, {}, {"epochs": epochs, "workers": workers}
        for recipe, prepare in PREPARE.items():
            prepare(DemoOptions(images=120, videos=80))
            process, run_id = begun(recipe, f"{recipe}-undisturbed", **size)
            began = time.monotonic()
            process.wait()
            whole[recipe], lasted[recipe] = traces(run_id), time.monotonic() - began
        for number, recipe in enumerate(cycle(PREPARE)):
            if seen >= faults:
                break
            kinds = disturbed(*begun(recipe, f"{recipe}-{number}", **size), draw, seconds=lasted[recipe])
            run_id = Path(name, f"{recipe}-{number}.run").read_text().strip()
            (weights, losses), (expected, undisturbed) = traces(run_id), whole[recipe]
            same = losses == undisturbed and all(weights[key].equal(expected[key]) for key in expected)
            exact, seen = exact and same, seen + len(kinds)
            print(
                f"{recipe}: {'exact' if same else 'DIFFERENT'} after {', '.join(kinds) or 'nothing'}",
                flush=True,
            )
    sys.exit(not exact)


if __name__ == "__main__":
    tyro.cli(main)
