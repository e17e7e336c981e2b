"""The supervised process that trains an ensemble, and its replacement when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polypool.infra.lease.on_disk import NAME, free_of_dead
from polypool.infra.paths import home
from polypool.infra.process.watching import Attempt
from polypool.infra.ray.session import ray_beside
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.driver import Driver, Resume, Trained
from polypool.pipelines.training.run_folder import run_folder


@dataclass(frozen=True, kw_only=True)
class EnsembleDriver:
    """As `Driver`, for members that train one after another: a finished one is progress, too.

    Processes leave the ids of the ensemble's run and of its members so far to those after them.
    """

    work: Ensemble

    def do(self, attempt: Attempt) -> Trained:
        """Train the members, or what is left of them, and score them together; raises as `start_ensemble`."""
        with ray_beside():  # Ray starts while torch is imported
            from polypool.pipelines.models.run_evaluation import start_ensemble

            def keep(ids: Sequence[str]) -> None:
                attempt.keep(" ".join(ids))

            return Trained(run_id=start_ensemble(self.work, ids=attempt.note.split(), begun=keep))

    def progress(self, note: str) -> tuple[int, str | None]:
        """Return the number of runs so far, and the last checkpoint of the last one."""
        ids = note.split()
        return len(ids), _driver(ids[-1]).progress(ids[-1]) if ids else None

    def died(self, note: str, process: int) -> str:
        """Release the leases of a dead process; the same command trains an ensemble anew."""
        for run_id in note.split():
            free_of_dead(run_folder(home(), run_id) / NAME, process)
        return ""

    def given_up(self, note: str) -> None:
        """Mark the run of the ensemble and the last member as failed."""
        for run_id in {*note.split()[:1], *note.split()[-1:]}:
            _driver(run_id).given_up(run_id)


def _driver(run_id: str) -> Driver:
    return Driver(work=Resume(run_id=run_id))
