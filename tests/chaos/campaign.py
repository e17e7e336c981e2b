"""`make chaos`: faults drawn by a seed while the demo's three tasks train, and a table of the outcomes.

python tests/chaos/campaign.py --faults 50 --seed 0

All of it runs on this machine: two Ray nodes, a server of MLflow, and a job that a fault hits each time it has made a
new checkpoint. A fault is exact where its run ends with the weights and the losses of one that nothing disturbed, bit
for bit, as one run in MLflow that has every number once.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import tyro

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from places import PATHS

sys.path[:0] = PATHS
from mlflow_server import Server  # noqa: E402 (found where the line above looks)
from safetensors.torch import load_file  # noqa: E402

from chaos.cluster import Cluster, Job, two_nodes  # noqa: E402
from polypool.infra.process.command import command  # noqa: E402
from polypool.infra.tracking import Tracker, find_runs  # noqa: E402
from polypool.pipelines.data.demonstration import PREPARE, DemoOptions  # noqa: E402

_SETTINGS = ("--workers", "2", "--cpus", "1", "--retries", "5", "--log-every", "1", "--checkpoint-every", "2")
_LONGEST_DELAY = 2.0  # seconds between a checkpoint and the fault after it


@dataclass(frozen=True, kw_only=True)
class Place:
    """What can go wrong: the cluster, the run on it, the server that records it; and what decides how."""

    cluster: Cluster
    job: Job
    server: Server
    random: Random


def worker_killed(at: Place) -> None:
    worker_of(at).kill()


def driver_killed(at: Place) -> None:
    os.kill(at.job.driver(), signal.SIGKILL)


def node_lost(at: Place) -> None:
    at.cluster.lose_node()
    at.cluster.add_node()


def job_stopped(at: Place) -> str:
    at.job.stop()
    at.job.wait_for(lambda: False, "the end of a job that was stopped")
    at.job.submit()
    return "the same command again"


def mlflow_away(at: Place) -> None:
    at.server.kill()
    time.sleep(at.random.uniform(2, 8))
    at.server.start()


def worker_halted(at: Place) -> None:
    worker = worker_of(at)
    worker.suspend()
    time.sleep(at.random.uniform(2, 8))
    worker.resume()


def worker_of(at: Place) -> Any:
    """Return a worker, of which there are none where the run has just ended."""
    if workers := at.cluster.workers():
        return at.random.choice(workers)
    raise ProcessLookupError


KINDS: dict[str, Callable[[Place], str | None]] = {
    "a worker killed": worker_killed,
    "the driver killed": driver_killed,
    "a node lost, another comes": node_lost,
    "the job stopped (SIGTERM), submitted again": job_stopped,
    "MLflow's server away for 2 to 8 seconds": mlflow_away,
    "a worker halted for 2 to 8 seconds": worker_halted,
}
"""Each does its harm, and returns what a person has typed, if anything."""


def meet(kind: str, at: Place) -> str | None:
    """Let a fault happen; return what was typed, None where nothing was there any more."""
    with suppress(ProcessLookupError):
        return KINDS[kind](at) or ""
    return None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much chaos."""

    faults: int = 50
    """How many faults."""
    seed: int = 0
    """What decides their order, and when each comes."""
    each: int = 5
    """How many faults a run has."""
    epochs: int = 16
    """Epochs of a run."""
    minutes: float = 0
    """After how many no further run begins; 0 for all faults."""


@dataclass(kw_only=True)
class Fault:
    """One that happened.

    Attributes:
        kind: of it.
        typed: what a person had to type.
        pause: the longest time in seconds without a step, from the fault to the next checkpoint; None if unknown.
        exact: whether its run ended as if nothing had been.
    """

    kind: str
    typed: str
    pause: float | None
    exact: bool = False


@dataclass
class Campaign:
    """What is there, and what has happened."""

    options: Options
    cluster: Cluster
    server: Server
    home: Path
    random: Random
    faults: list[Fault] = field(default_factory=list)
    undisturbed: dict[str, Tracker] = field(default_factory=dict)

    def job(self, recipe: str, experiment: str) -> Job:
        """Submit a run, and return it once it has begun."""
        file = self.home / f"{experiment}.run"
        words = ["python", "-m", "polypool", "train", recipe, *_SETTINGS, "--no-figures"]
        words += [
            "--optim.epochs",
            str(self.options.epochs),
            "--experiment",
            experiment,
            "--run-id-file",
            str(file),
        ]
        env = {"MLFLOW_TRACKING_URI": self.server.uri}
        job = Job(cluster=self.cluster, words=words, home=self.home, env=env)
        job.wait_for(file.exists, "a run that begins")
        job.run_id = file.read_text().strip()
        return job

    def train_undisturbed(self, recipe: str) -> None:
        """Train what the others are held against."""
        job = self.job(recipe, f"{recipe}-undisturbed")
        job.wait_for(lambda: False, "its end")
        if job.state != "SUCCEEDED":
            raise RuntimeError(f"{recipe} failed, and nothing disturbed it:\n{job.log()}")
        self.undisturbed[recipe] = self._tracker(job)
        print(f"{recipe}, undisturbed: done", flush=True)

    def disturb(self, recipe: str, number: int, kinds: Iterator[str]) -> None:
        """Train a run with some faults, and note whether they left a trace."""
        job = self.job(recipe, f"{recipe}-{number}")
        at = Place(cluster=self.cluster, job=job, server=self.server, random=self.random)
        mine, last = [], job.wait_for_checkpoint(after=None)
        left = min(self.options.each, self.options.faults - len(self.faults))
        while last and len(mine) < left:
            time.sleep(self.random.uniform(0, _LONGEST_DELAY))
            if job.ended:
                break
            kind, began = next(kinds), time.time()
            typed = meet(kind, at)
            last = job.wait_for_checkpoint(after=job.checkpoint())  # one that was made since
            if typed is not None:
                mine.append(Fault(kind=kind, typed=typed, pause=longest_pause(job, began)))
                print(
                    f"{recipe} {number}: {kind}; {mine[-1].pause or 0:.0f} seconds without a step", flush=True
                )
        job.wait_for(lambda: False, "its end")
        if mine and "are not in MLflow yet" in job.log():  # it ended while the server was away
            job.submit()
            job.wait_for(lambda: False, "what is left to be sent")
            mine[-1].typed = "the same command again"
        why = "it failed" if job.state != "SUCCEEDED" else self.difference(recipe, number, job)
        for fault in mine:
            fault.exact = not why
        self.faults += mine
        print(f"{recipe} {number}: {why or 'exact'}, after {len(mine)} faults", flush=True)
        if why:
            print(job.log()[-6000:], flush=True)

    def difference(self, recipe: str, number: int, job: Job) -> str:
        """Return in what a run differs from the undisturbed one; empty where in nothing."""
        ours, theirs = self._tracker(job), self.undisturbed[recipe]
        if len(find_runs(self.server.uri, f"{recipe}-{number}", finished=False)) != 1:
            return "it is several runs"
        weights = [load_file(each.download("model") / "model.safetensors") for each in (ours, theirs)]
        if not all(weights[0][name].equal(weights[1][name]) for name in weights[1]):
            return "its weights differ"
        losses = [
            [(step, value) for _, value, _, step in each.points_of("train/loss")] for each in (ours, theirs)
        ]
        return "" if losses[0] == losses[1] else "its losses differ, or are there twice"

    def table(self) -> str:
        """Return what came of each kind, as Markdown."""
        lines = [
            "| fault | tried | exact | typed by a person | seconds without a step: median | most |",
            "|---|---:|---:|---|---:|---:|",
        ]
        for kind in [*KINDS, "all"]:
            of = [fault for fault in self.faults if kind in (fault.kind, "all")]
            pauses = [fault.pause for fault in of if fault.pause is not None]
            typed = ", ".join(sorted({fault.typed for fault in of} - {""})) or "nothing"
            times = f"{median(pauses):.0f} | {max(pauses):.0f}" if pauses else " | "
            exact = sum(fault.exact for fault in of)
            lines.append(f"| {kind} | {len(of)} | {exact} | {typed if kind != 'all' else ''} | {times} |")
        return "\n".join(lines)

    def _tracker(self, job: Job) -> Tracker:
        return Tracker.attach(self.server.uri, job.run_id, running=False)


def longest_pause(job: Job, began: float) -> float | None:
    """Return the longest time without a step since a fault; None where the run has ended, and keeps no journal."""
    try:
        times = [at for at, _ in job.steps()]
    except FileNotFoundError:
        return None
    after = [began, *(at for at in times if at > began)]
    return max((later - at for at, later in pairwise(after)), default=None)


def kinds_of(random: Random) -> Iterator[str]:
    """Yield kinds of faults, each once, then each once again, in an order that is drawn every time."""
    while True:
        yield from random.sample(list(KINDS), len(KINDS))


@command
def main() -> None:
    """Prepare, let faults happen, and print the table; the exit code is 1 where one was not exact."""
    options = tyro.cli(Options, prog="make chaos", description=__doc__)
    random, began = Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="polypool-chaos-") as folder:
        home = Path(folder)
        os.environ |= {"POLYPOOL_HOME": folder, "OMP_NUM_THREADS": "1"}
        for prepare in PREPARE.values():
            prepare(DemoOptions(images=120, videos=80))
        server = Server(home)
        server.start()
        try:
            with two_nodes() as cluster:
                campaign = Campaign(options, cluster, server, home, random)
                for recipe in PREPARE:
                    campaign.train_undisturbed(recipe)
                kinds = kinds_of(random)
                for number, recipe in enumerate(cycle(PREPARE)):
                    late = options.minutes and time.monotonic() - began > 60 * options.minutes
                    if late or len(campaign.faults) >= options.faults:
                        break
                    campaign.disturb(recipe, number, kinds)
        finally:
            server.kill()
    print(f"\nseed {options.seed}, {len(campaign.faults)} faults\n\n{campaign.table()}")
    sys.exit(not all(fault.exact for fault in campaign.faults))


if __name__ == "__main__":
    main()
