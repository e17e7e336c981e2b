"""Ray Train for one run: begun again while it progresses, without processes that the run has no use for.

The only module that looks into Ray Train. Where a newer one has other names for these parts, it starts them all.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    FixedScalingPolicy,
    NoopDecision,
    ScalingDecision,
)

from infra.process.watching import pause
from infra.ray.session import Session

_DATA_SETS = "DatasetsCallback"
"""The part that starts a process for Ray's own data sets, of which no run has one."""
_CLEANER = "PlacementGroupCleanerCallback"
"""The one that starts a process to free the cores of a run that is ended by force, in a session that goes on."""


_CONTROLLER = "ray.train.v2._internal.execution.controller.controller"
"""The logger of the process that looks after the workers."""


class _CoresThatThereAre(FixedScalingPolicy):
    """Asks nobody for more machines."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class EvenShares(ElasticScalingPolicy):
    """As many workers as there is room for, of the numbers that can share a batch evenly.

    Where there is room for more while they are at work, they are begun anew just after a checkpoint: nothing is lost.

    Args:
        scaling_config: Ray's.
        counts: these numbers, ascending.
        progress: as of `WhileItProgresses`.
    """

    def __init__(self, scaling_config: Any, *, counts: Sequence[int], progress: Callable[[], object]) -> None:
        super().__init__(scaling_config)
        self._counts, self._progress, self._seen = counts, progress, progress()

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ask for room in the name of the run: a controller that was killed has not given back what it asked for.

        Ray keeps that for three minutes, in which whoever goes on with the run would wait in vain, but by its name it
        is theirs.
        """
        named = copy.copy(train_run_context)
        object.__setattr__(named, "run_id", named.run_config.name)  # which Ray makes up for each controller
        super().after_controller_start(named)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        """Decide whether others are to be at work; called every moment, by keyword."""
        seen, self._seen = self._seen, self._progress()
        if self._seen == seen:
            return NoopDecision()
        return super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        room = super()._count_possible_workers(reserved_resources)
        return max((count for count in self._counts if count <= room), default=0)


Refused = Callable[[BaseException], object]
"""Returns what is wrong with the work or its disk where an error says so, so that it would fail again; else None."""


class SaidInOneLine(logging.Filter):
    """Leaves out the tracebacks of what the driver says in one line.

    Args:
        refused: tells it from other errors.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__()
        self._refused = refused

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is shown, which is made while its error is handled."""
        error = sys.exc_info()[1]
        return error is None or not self._refused(error)


class WhileItProgresses(DefaultFailurePolicy):
    """Begins again after faults as long as there is progress: Ray counts all faults, this one those in a row without.

    The first fault after progress is tried again at once, the others after a pause that doubles.

    Args:
        failure_config: how many faults in a row are tried again.
        progress: returns what is another one when there was progress.
        refused: tells what would fail again.
    """

    def __init__(
        self,
        failure_config: Any,
        *,
        progress: Callable[[], object],
        refused: Refused,
    ) -> None:
        super().__init__(failure_config)
        self._progress, self._refused, self._seen = progress, refused, progress()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take it up in the process that decides, which tells of what went wrong there."""
        self.__dict__.update(state)
        logging.getLogger(_CONTROLLER).addFilter(SaidInOneLine(self._refused))

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        """Decide what becomes of a fault, and pause."""
        if (now := self._progress()) != self._seen:
            self._seen, self._worker_group_failures, self._controller_failures = now, 0, 0
        failures = getattr(training_failed_error, "worker_failures", {})
        if any(self._refused(each) for each in (*failures.values(), training_failed_error)):
            return FailureDecision.RAISE
        decision = super().make_decision(training_failed_error)
        if decision == FailureDecision.RETRY:
            row = self._worker_group_failures + self._controller_failures
            seconds = pause(row)
            why = str(next(iter(failures.values()), training_failed_error)).strip().splitlines() or [""]
            then = f"in {seconds:.0f} seconds" if seconds else "now"
            print(
                f"note: training failed ({why[-1]}) and begins again from its last checkpoint, {then}: "
                f"{row} in a row without progress, of which {self.failure_config.max_failures} are tried again",
                file=sys.stderr,
            )
            time.sleep(seconds)
        return decision


class RunTrainer(TorchTrainer):
    """A TorchTrainer that leaves Ctrl-C to us: Ray's would ask its workers to end, wait for them, and exit with 0 or 1.

    Args:
        work: what each worker does.
        session: the open one.
        worker_counts: the numbers of workers that may train, ascending.
        progress, refused: as of `WhileItProgresses`.
        options: those of TorchTrainer.
    """

    def __init__(
        self,
        work: Any,
        *,
        session: Session,
        worker_counts: Sequence[int] = (1,),
        progress: Callable[[], object] = lambda: None,
        refused: Refused = lambda error: None,
        **options: Any,
    ) -> None:
        self._session, self._counts = session, worker_counts
        self._retried = {"progress": progress, "refused": refused}
        super().__init__(work, **options)

    def _register_sigint_handler(self, controller: Any) -> None:
        pass

    def _create_default_callbacks(self) -> list[Any]:
        unused = {_DATA_SETS} if self._session.shared else {_DATA_SETS, _CLEANER}
        return [part for part in super()._create_default_callbacks() if type(part).__name__ not in unused]

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        parts["failure_policy"] = WhileItProgresses(self.run_config.failure_config, **self._retried)
        if len(self._counts) > 1:
            parts["scaling_policy"] = EvenShares(
                self.scaling_config, counts=self._counts, progress=self._retried["progress"]
            )
        elif self._session.private:
            parts["scaling_policy"] = _CoresThatThereAre(self.scaling_config)
        return super()._initialize_and_run_controller(**parts)
