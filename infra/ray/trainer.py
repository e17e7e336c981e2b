"""Ray Train for one run: retried as long as it progresses, and without processes that a run does not use."""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.train.v2.torch.torch_trainer import TorchTrainer

from polypool.infra.process.watching import pause
from polypool.infra.ray.internals import (
    BACKEND_LOGGER,
    CLEANER,
    CONTROLLER_LOGGER,
    DATASETS,
    DefaultFailurePolicy,
    ElasticScalingPolicy,
    FailureDecision,
    FixedScalingPolicy,
    NoopDecision,
    ScalingDecision,
)
from polypool.infra.ray.session import Session

_SHOWN = 300  # characters of an error


class _NoRequests(FixedScalingPolicy):
    """A fixed number of workers, without requests for more machines."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class EvenScalingPolicy(ElasticScalingPolicy):
    """As many workers as there is room for, of the numbers that share a batch evenly.

    While training, more workers are started only just after a checkpoint, so that no step is lost.

    Args:
        scaling_config: Ray's.
        counts: the allowed numbers, ascending.
        progress: as of `RetryWhileProgressing`.
    """

    def __init__(self, scaling_config: Any, *, counts: Sequence[int], progress: Callable[[], object]) -> None:
        super().__init__(scaling_config)
        self._counts, self._progress, self._seen = counts, progress, progress()

    def after_controller_start(self, train_run_context: Any) -> None:
        """Request resources under the run's name instead of Ray's id of the controller.

        Ray keeps the request of a killed controller for three minutes; by this name its successor takes it over.
        """
        named = copy.copy(train_run_context)
        object.__setattr__(named, "run_id", named.run_config.name)
        super().after_controller_start(named)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        """Decide on the number of workers after a new checkpoint; called often, by keyword."""
        seen, self._seen = self._seen, self._progress()
        if self._seen == seen:
            return NoopDecision()
        return super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        room = super()._count_possible_workers(reserved_resources)
        return max((count for count in self._counts if count <= room), default=0)


Refused = Callable[[BaseException], object]
"""Returns the reason where another try would fail in the same way, else None."""


class OneLineErrors(logging.Filter):
    """Shortens records of errors to one line, and drops those that the driver reports itself.

    Args:
        refused: returns a reason for the errors that the driver reports.
        whole: the file that keeps what is left out of a line.
    """

    def __init__(self, refused: Refused, whole: Path) -> None:
        super().__init__()
        self._refused, self._whole = refused, whole

    def filter(self, record: logging.LogRecord) -> bool:
        error = sys.exc_info()[1]
        if error is None:
            return True
        if self._refused(error):
            return False
        with suppress(OSError), self._whole.open("a") as file:
            file.write(f"{logging.Formatter().format(record)}\n")
        first, *_ = record.getMessage().splitlines()
        *_, last = str(error).strip().splitlines() or [type(error).__name__]
        record.msg, record.args = f"{first} {last:.{_SHOWN}} ({self._whole})", ()
        record.exc_info = record.exc_text = None
        return True


class RetryWhileProgressing(DefaultFailurePolicy):
    """Retries after faults, of which only those in a row without progress count (Ray counts all).

    The first fault after progress is retried at once, the others after a pause that doubles.

    Args:
        failure_config: how many faults in a row are retried.
        progress: returns another value once there was progress.
        refused: returns a reason for faults that are not retried.
        whole: as of `OneLineErrors`.
    """

    def __init__(
        self, failure_config: Any, *, progress: Callable[[], object], refused: Refused, whole: Path
    ) -> None:
        super().__init__(failure_config)
        self._progress, self._refused, self._seen = progress, refused, progress()
        self._whole = whole

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Filter the log of the process of the controller, where this is unpickled."""
        self.__dict__.update(state)
        for name in (CONTROLLER_LOGGER, BACKEND_LOGGER):
            logging.getLogger(name).addFilter(OneLineErrors(self._refused, self._whole))

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        """Decide whether a fault is retried, and pause before that."""
        if (now := self._progress()) != self._seen:
            self._seen, self._worker_group_failures, self._controller_failures = now, 0, 0
        failures = getattr(training_failed_error, "worker_failures", {})
        if any(self._refused(each) for each in (*failures.values(), training_failed_error)):
            return FailureDecision.RAISE
        decision = super().make_decision(training_failed_error)
        if decision == FailureDecision.RETRY:
            row = self._worker_group_failures + self._controller_failures
            seconds = pause(row)
            *_, why = str(next(iter(failures.values()), training_failed_error)).strip().splitlines() or [""]
            then = f"in {seconds:.0f} seconds" if seconds else "now"
            print(
                f"note: training failed ({why:.{_SHOWN}}) and begins again from its last checkpoint, {then}: "
                f"{row} in a row without progress, of which {self.failure_config.max_failures} are tried again",
                file=sys.stderr,
            )
            time.sleep(seconds)
        return decision


class RunTrainer(TorchTrainer):
    """A TorchTrainer with the policies above, which leaves Ctrl-C to this process.

    Args:
        work: function of each worker.
        session: the open session.
        worker_counts: allowed numbers of workers, ascending.
        progress, refused, whole: as of `RetryWhileProgressing`.
        options: of TorchTrainer.
    """

    def __init__(
        self,
        work: Any,
        *,
        session: Session,
        worker_counts: Sequence[int] = (1,),
        progress: Callable[[], object] = lambda: None,
        refused: Refused = lambda error: None,
        whole: Path = Path(os.devnull),
        **options: Any,
    ) -> None:
        self._session, self._counts = session, worker_counts
        self._progress, self._refused, self._whole = progress, refused, whole
        super().__init__(work, **options)

    def _register_sigint_handler(self, controller: Any) -> None:
        pass

    def _create_default_callbacks(self) -> list[Any]:
        unused = {DATASETS} if self._session.shared else {DATASETS, CLEANER}
        return [part for part in super()._create_default_callbacks() if type(part).__name__ not in unused]

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        scaling: Any = self.scaling_config
        parts["failure_policy"] = RetryWhileProgressing(
            self.run_config.failure_config,
            progress=self._progress,
            refused=self._refused,
            whole=self._whole,
        )
        if len(self._counts) > 1:
            parts["scaling_policy"] = EvenScalingPolicy(scaling, counts=self._counts, progress=self._progress)
        elif self._session.private:
            parts["scaling_policy"] = _NoRequests(scaling)
        return super()._initialize_and_run_controller(**parts)
