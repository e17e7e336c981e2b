"""Ray Train for one run: without the processes that it starts for what the run has no use for, and waits for.

The only module that looks into Ray Train. Where a newer one has other names for these parts, it starts them all.
"""

from __future__ import annotations

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

from infra.ray.session import Session

_DATA_SETS = "DatasetsCallback"
"""The part that starts a process for Ray's own data sets, of which no run has one."""
_CLEANER = "PlacementGroupCleanerCallback"
"""The one that starts a process to free the cores of a run that is ended by force, in a session that goes on."""


class _CoresThatThereAre(FixedScalingPolicy):
    """Asks nobody for more machines."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class RunTrainer(TorchTrainer):
    """A TorchTrainer that leaves Ctrl-C to us: Ray's would ask its workers to end, wait for them, and exit with 0 or 1.

    Args:
        work: what each worker does.
        session: the open one.
        options: those of TorchTrainer.
    """

    def __init__(self, work: Any, *, session: Session, **options: Any) -> None:
        self._session = session
        super().__init__(work, **options)

    def _register_sigint_handler(self, controller: Any) -> None:
        pass

    def _create_default_callbacks(self) -> list[Any]:
        unused = {_DATA_SETS} if self._session.shared else {_DATA_SETS, _CLEANER}
        return [part for part in super()._create_default_callbacks() if type(part).__name__ not in unused]

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        if self._session.private:
            parts["scaling_policy"] = _CoresThatThereAre(self.scaling_config)
        return super()._initialize_and_run_controller(**parts)
