"""Joint runs of several tasks."""

from __future__ import annotations

from polypool.infra.registry import Spec
from polypool.tasks.run import Data, Optim, Run


def join(*, optim: Optim, **members: tuple[float, Run]) -> Run:
    """Return a run that trains several tasks together; `members` maps names to weights and runs."""
    runs = {name: run for name, (_, run) in members.items()}
    return Run(
        task=str(Spec("joint", {name: weight for name, (weight, _) in members.items()})),
        data=Data(dataset="+".join(run.data.dataset for run in runs.values()), corpus=""),
        visual="",
        protocol="joint",
        aggregator=next(iter(runs.values())).aggregator,
        optim=optim,
        members=runs,
    )
