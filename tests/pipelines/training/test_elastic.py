"""Elastic runs: numbers of workers that may change during training."""

from dataclasses import replace
from typing import Any

import pytest
from toy import toy_run

from polypool.infra.batches import Order
from polypool.infra.errors import InputError
from polypool.tasks.run import Run


def elastic_run(**changes: Any) -> Run:
    """Return a run of 42 samples in batches of 6, for 1, 2 or 3 workers."""
    run = toy_run(**changes)
    return replace(run, workers=3, min_workers=1, optim=replace(run.optim, batch=6, drop_last=False))


def test_worker_counts_divide_batch_evenly():
    run = elastic_run()
    assert (run.worker_counts, run.epoch_unit) == ((1, 2, 3), 6)
    assert replace(run, min_workers=2).worker_counts == (2, 3)
    assert replace(run, workers=2, min_workers=0).worker_counts == (2,)
    with pytest.raises(InputError, match=r"3 workers; choose a batch that .* such as 12"):
        replace(run, workers=4, optim=replace(run.optim, batch=8))
    assert replace(run, optim=replace(run.optim, drop_last=True)).epoch_unit == 6
    with pytest.raises(InputError, match="--min-workers must be at most --workers, which is 3, not 4"):
        replace(run, min_workers=4)
    order = Order(size=41, batch=6, unit=run.epoch_unit, seed=0)
    assert (order.epoch_samples, order.epoch_steps) == (36, 6)
    assert all(len(batch) % count == 0 for batch in order.batches(0) for count in run.worker_counts)
