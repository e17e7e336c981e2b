"""Ray: sessions that never join a stray cluster, worker resources, parallel trials, jobs, a private head."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import AwayError, InputError
from polypool.infra.process.output import JSON, mode
from polypool.infra.process.progress import say, waiting
from polypool.infra.process.stopping import handlers_restored, raise_stopped

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_EVERYWHERE = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # errors of tasks that are not awaited after a first error
    "RAY_COLOR_PREFIX": "0",  # colours would be escaped as text (polypool.infra.process.output)
}
"""Default settings of Ray."""
_ON_ONE_MACHINE = {
    "RAY_AUTH_MODE": "token",  # the token file in the user's home, created by Ray and not readable by other users
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on 127.0.0.1 only, as if no other machine could join
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # by default a run waits up to two seconds to start and to end
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a separate process, for clusters with preemptible machines
    "RAY_worker_niceness": "0",  # by default 15: all other processes would have priority
}
"""Default settings of a local Ray, read when it is imported or starts."""
_SHUTDOWN_SECONDS, _INTERRUPTED_SECONDS = 30.0, 10.0  # for Ray's shutdown; an earlier exit has code 1
_LONGEST = 36  # maximum length of Ray's folder in bytes: paths of its sockets have at most 107
_CHECK_SECONDS = 10.0, 30.0  # before the first check for jobs that occupy the cores, and between checks


def on_cluster() -> bool:
    """Whether RAY_ADDRESS names a cluster, as it does in a Ray job."""
    return os.environ.get("RAY_ADDRESS", "local") != "local"


@contextmanager
def ray_session(*, cpus: int | None = None, dashboard: bool = False) -> Iterator[None]:
    """Connect to the cluster of RAY_ADDRESS (set in Ray jobs), or start Ray on this machine.

    A nested session reuses the open one and does not close it.

    Args:
        cpus: cores of a Ray on this machine; all if None.
        dashboard: start the dashboard, which Ray Train queries for the state of actors; takes seconds.

    Raises:
        InputError: RAY_ADDRESS is a job server.
        AwayError: no cluster answers there, or Ray does not start on this machine.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    settings = _EVERYWHERE | ({"RAY_DEDUP_LOGS": "0"} if mode() == JSON else {})
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": cpus, "include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
        settings |= _ON_ONE_MACHINE if "ray" not in sys.modules else {}
        _shorten_folder()
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    if address.startswith("http"):
        raise InputError(
            f"RAY_ADDRESS={address} is a job server: start this command through it with `ray job submit "
            "--working-dir . -- python -m ...`, or unset RAY_ADDRESS to use this machine alone"
        )
    if ":" in address and not _answers(address):
        raise AwayError(f"no Ray cluster answers at RAY_ADDRESS={address}; start it, or unset RAY_ADDRESS")
    try:
        with waiting("Ray to start on this machine" if options else f"Ray at {address}"), handlers_restored():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True, **options)
    except ConnectionError as error:
        raise AwayError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
    except Exception as error:
        if "timed out during startup" not in str(error):  # Ray has no class for it
            raise
        raise AwayError(
            "Ray did not start on this machine within half a minute; probably too many programs run on it: try again "
            "when fewer do"
        ) from error
    except SystemExit:  # Ray's reaction to SIGTERM while it connects
        raise_stopped(signal.SIGTERM)
    seconds = _SHUTDOWN_SECONDS
    try:
        yield
    except KeyboardInterrupt:
        seconds = _INTERRUPTED_SECONDS
        raise
    finally:
        leaving = threading.Thread(target=ray.shutdown, daemon=True)  # Ray's processes may hang
        leaving.start()
        leaving.join(seconds)


def _shorten_folder() -> None:
    """Move Ray's files to /tmp if the temporary folder's path is too long for its sockets."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    if len(os.fsencode(folder)) > _LONGEST:
        print(
            f"note: Ray's files are in /tmp: {folder} is too long for the paths of its sockets",
            file=sys.stderr,
        )
        os.environ["RAY_TMPDIR"] = "/tmp"


def _answers(address: str) -> bool:
    """Whether a server listens at `[ray://]host:port`; Ray would wait for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except (OSError, ValueError):
        return False


def cores(kind: str = "CPU") -> int:
    """Return the number of cores, or of another resource, of the connected cluster."""
    import ray

    return int(ray.cluster_resources().get(kind, 0))


@contextmanager
def waiting_for_cores(count: int) -> Iterator[None]:
    """Print which jobs occupy the cores that the block waits for, until it gets them.

    Args:
        count: number of cores that it needs to start.
    """
    over = threading.Event()

    def tell() -> None:
        started, pause = time.monotonic(), _CHECK_SECONDS[0]
        while not over.wait(pause):
            pause = _CHECK_SECONDS[1]
            with suppress(Exception):  # a cluster without a dashboard, or one that is shutting down
                if not (line := _core_users(count)):
                    return
                say(line, what="cores", seconds=time.monotonic() - started)

    if on_cluster():
        threading.Thread(target=tell, daemon=True, name="cores").start()
    try:
        yield
    finally:
        over.set()


def _core_users(count: int) -> str:
    """Return which jobs occupy the cores that this job needs; empty if it has some, or enough are free."""
    import ray
    from ray.util.state import list_actors, list_jobs, list_placement_groups

    held = Counter[str]()
    for group in list_placement_groups(detail=True, filters=[("state", "=", "CREATED")]):
        held[group.creator_job_id] += sum(
            each["unit_resources"].get("CPU", 0) for each in group.bundles or ()
        )
    for actor in list_actors(detail=True, filters=[("state", "=", "ALIVE")]):
        if not actor.placement_group_id:
            held[actor.job_id] += (actor.required_resources or {}).get("CPU", 0)
    free = int(ray.available_resources().get("CPU", 0))
    if held[ray.get_runtime_context().get_job_id()] or free >= count:
        return ""
    named = {job.job_id: job for job in list_jobs()}
    lines = []
    for id, cpus in held.most_common():
        if cpus and (job := named.get(id)) is not None:
            stop = f", `ray job stop {job.submission_id}` ends it" if job.submission_id else ""
            words = shorten(job.entrypoint or "a driver", 100, placeholder=" ...")
            lines.append(f"`{words}` uses {cpus:.0f} (job {job.submission_id or id}{stop})")
    return f"waiting for {count} cores ({free} are free); {'; '.join(lines) or 'other work uses the others'}"


def local_cores() -> int:
    """Return the number of cores available to this process, as a local Ray counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of each worker of a run: cores, and whether it has a GPU."""

    cpus: int
    gpu: bool

    @classmethod
    def plan(cls, workers: int, *, fewest: int = 0, cpus: int) -> Resources:
        """Divide the cluster among the workers: a GPU each if there are enough, and up to `cpus` cores.

        Args:
            workers: maximum number of workers.
            fewest: minimum number of workers; 0 for all.
            cpus: cores requested per worker.

        Raises:
            AwayError: the cluster has fewer cores than the minimum number of workers.
        """
        all_cores, fewest = cores(), fewest or workers
        if all_cores < fewest:
            raise AwayError(
                f"{fewest} workers need as many cores, and the cluster has {all_cores}; use fewer (--workers)"
            )
        now = min(workers, all_cores)
        return cls(cpus=max(1, min(cpus, all_cores // now)), gpu=cores("GPU") >= fewest)


_TUNE_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output engine prints a table even at verbosity 0
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is handled by the command
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial has no score
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Asynchronous successive halving (ASHA, Li et al. 2020): after 1, 2, 4, ... epochs the worse half is stopped.

    Attributes:
        metric: name in the reports.
        higher_is_better: direction of the metric.
        epochs: of a complete trial; none is stopped at the last epoch.
    """

    metric: str
    higher_is_better: bool
    epochs: int


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A finished trial: its number, its last report, and its error or its process's, if any."""

    number: int
    result: Mapping[str, Any]
    error: str


def run_side_by_side(
    work: Callable[[int], Mapping[str, Any]],
    count: int,
    *,
    concurrent: int,
    folder: Path,
    resources: Mapping[str, float],
    retries: int = 0,
    halving: Halving | None = None,
    on_end: Callable[[TrialResult], None],
) -> None:
    """Call `work(0)` to `work(count - 1)` in processes of the Ray session, one trial per process at a time.

    Args:
        work: returns a report; an error ends only that trial.
        count: number of trials.
        concurrent: maximum number of parallel trials.
        folder: for Tune's state.
        resources: reserved per trial, such as `{"CPU": 2}`; empty if the trial's workers reserve them.
        retries: number of retries of a trial whose process died.
        halving: early stopping of poor trials, or None; stopped trials end with their last report.
        on_end: callback in this process after each trial.
    """
    os.environ.update(_TUNE_SETTINGS)
    from ray import tune

    # Tune rejects an empty request; by default it reserves a core
    reserved = {"CPU": 0, "memory": 1, **resources}

    def trial(config: dict[str, Any]) -> dict[str, Any]:  # Ray prefixes each output line with its name
        return dict(work(config["number"]))

    tuner = tune.Tuner(
        tune.with_resources(trial, reserved),
        param_space={"number": tune.grid_search(list(range(count)))},
        tune_config=tune.TuneConfig(
            scheduler=_scheduler(halving) if halving else None,
            max_concurrent_trials=concurrent,
            # end the process of a trial that is stopped early
            reuse_actors=halving is None,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            verbose=0,
            callbacks=[_end_callback(on_end)],
            failure_config=tune.FailureConfig(max_failures=retries),
        ),
    )
    tuner.fit()


def _scheduler(halving: Halving) -> Any:
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="epoch",
        metric=halving.metric,
        mode="max" if halving.higher_is_better else "min",
        max_t=max(1, halving.epochs - 1),
        reduction_factor=2,
        stop_last_trials=False,  # the last trials may still be scoring the test split
    )


def _end_callback(on_end: Callable[[TrialResult], None]) -> Any:
    """Return the Tune callback that reports the end of each trial."""
    from ray.tune import Callback

    def report(trial: Any, error: str = "") -> None:
        result = dict(trial.last_result or {})
        on_end(
            TrialResult(number=trial.config["number"], result=result, error=error or result.get("error", ""))
        )

    class EndCallback(Callback):
        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            report(trial)

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            lines = str(trial.get_error() or "").strip().splitlines()
            report(trial, lines[-1] if lines else "its process ended")

        def __reduce__(self) -> tuple[type, tuple]:
            return Callback, ()  # Tune stores its settings on disk, which are not restored

    return EndCallback()


def report(metric: str, values: Mapping[str, Any]) -> None:
    """Report `metric` and the epoch to the scheduler, from a trial's process."""
    if metric in values:  # not for a checkpoint within an epoch
        from ray import tune

        tune.report(_of_epoch(metric, values))


def reporter(metric: str) -> Any:
    """Return a Ray Train callback that reports like `report`, for a trial with separate workers."""
    from ray.tune.integration.ray_train import TuneReportCallback

    class Reporter(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metric in metrics[0]:
                super().after_report(run_context, [_of_epoch(metric, metrics[0])], None)

    return Reporter()


def _of_epoch(metric: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch": values["epoch"], metric: values[metric]}


_START_SECONDS, _END_SECONDS, _POLL_SECONDS = 120, 30, 0.5
_PORTS = (
    "--port",
    "--dashboard-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--metrics-export-port",
    "--ray-client-server-port",
)


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """A server that accepts Ray jobs.

    Attributes:
        address: of a head's dashboard (`http://host:8265`), or of its cluster (`ray://host:10001`, `host:6379`).
        token: authentication token; if empty, Ray's own setting (RAY_AUTH_TOKEN).
        environment: variables with which other processes on this machine connect to the cluster; empty if unknown.
    """

    address: str
    token: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> JobSubmissionClient:
        """Return a connected client.

        Raises:
            ConnectionError: the server does not answer.
        """
        from ray.job_submission import JobSubmissionClient

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.ERROR)  # it logs each excluded file, and the end of each connection
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        return JobSubmissionClient(self.address, headers=headers)

    def run(
        self, words: Sequence[str], *, folder: Path, env: Mapping[str, str], show: Callable[[str], None]
    ) -> None:
        """Run a command as a job and wait for its end; an exception meanwhile, such as Ctrl-C, stops the job.

        Args:
            words: of the command; `python` is the first on the head's PATH.
            folder: the job's working directory, without the files in `.rayignore`.
            env: environment variables of the job, in addition to the head's.
            show: called with each line of the job's output.

        Raises:
            InputError: the server does not answer, or the job failed.
        """
        from ray.job_submission import JobStatus

        command = shlex.join(words)
        try:
            client = self.client()
        except ConnectionError as error:
            raise InputError(f"no job server answers at {self.address}; start the cluster first") from error
        limit = time.monotonic() + _START_SECONDS
        while True:
            try:
                job = client.submit_job(
                    entrypoint=command, runtime_env={"working_dir": str(folder), "env_vars": dict(env)}
                )
                break
            except RuntimeError as error:  # a head answers before it accepts jobs
                if "No available agent" not in str(error) or time.monotonic() > limit:
                    raise
                time.sleep(1)
        shown = 0
        try:
            while True:
                status = client.get_job_status(job)
                *lines, rest = client.get_job_logs(job).split("\n")
                for line in lines[shown:]:
                    show(line)
                shown = len(lines)
                if status.is_terminal():
                    break
                time.sleep(_POLL_SECONDS)
        except BaseException:
            client.stop_job(job)
            raise
        if rest:
            show(rest)
        if status != JobStatus.SUCCEEDED:
            details = client.get_job_info(job)
            assert details is not None
            why = (details.message or "").partition(", last available logs")[0]
            raise InputError(f"the Ray job `{command}` ended as {status} ({why}); its output above says more")


def free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback address."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


@contextmanager
def private_head(*, cpus: int | None = None) -> Iterator[JobServer]:
    """Start a Ray head with private ports, folder and token; at the end, stop it with all its processes.

    It listens on 127.0.0.1 only, so that no other node can join.

    Args:
        cpus: number of cores; all of this machine if None.

    Raises:
        RuntimeError: it did not answer in time; the message has the end of its log.
    """
    folder = Path(tempfile.mkdtemp(prefix="pp-", dir="/tmp"))  # short, because Ray's sockets are in it
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
    ]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--include-dashboard=true"]
    command += [f"--temp-dir={folder}", f"--num-cpus={cpus or local_cores()}"]
    command += [f"{name}={port}" for name, port in ports.items()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # a job's `python` is the first on PATH
    token, cluster = secrets.token_hex(32), f"127.0.0.1:{ports['--port']}"
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    server = JobServer(
        address=f"http://127.0.0.1:{ports['--dashboard-port']}",
        token=token,
        environment={"RAY_ADDRESS": cluster, **env},
    )
    log = folder / "head.log"
    defaults = {
        name: value for name, value in _ON_ONE_MACHINE.items() if name.startswith(("RAY_TRAIN", "RAY_worker"))
    }
    with log.open("wb") as output:
        head = subprocess.Popen(
            command,
            env={**defaults, **os.environ, **env, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + _START_SECONDS
        while True:
            try:
                server.client()
                break
            except ConnectionError:
                if time.monotonic() > limit or head.poll() is not None:
                    end = log.read_text()[-2000:]
                    raise RuntimeError(
                        f"the Ray head did not answer at {server.address}; its log ends with:\n{end}"
                    ) from None
                time.sleep(0.3)
        yield server
    finally:
        head.terminate()  # `ray start --block` then ends its child processes
        try:
            head.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            head.kill()
        shutil.rmtree(folder, ignore_errors=True)
