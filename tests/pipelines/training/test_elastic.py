"""Numbers of workers that change while a run is trained."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.backend import BackendConfig
from ray.train.v2._internal.execution.context import TrainRunContext
from toy import toy_run

from polypool.infra.batches import Order
from polypool.infra.errors import InputError
from polypool.infra.ray.session import cores, ray_session
from polypool.infra.ray.trainer import EvenScalingPolicy
from polypool.tasks.run import Run, from_json, to_json


def elastic_run(**changes: Any) -> Run:
    """Return one of 42 samples in batches of 6, for 1, 2 or 3 workers."""
    run = toy_run(**changes)
    return replace(run, workers=3, min_workers=1, optim=replace(run.optim, batch=6, drop_last=False))


def test_the_numbers_of_workers_are_those_that_share_a_batch_evenly():
    run = elastic_run()
    assert (run.worker_counts, run.epoch_unit) == ((1, 2, 3), 6)
    assert replace(run, min_workers=2).worker_counts == (2, 3)
    assert replace(run, workers=2, min_workers=0).worker_counts == (2,)
    four = replace(run, workers=4, optim=replace(run.optim, batch=8))
    assert (four.worker_counts, four.epoch_unit) == ((1, 2, 4), 4)
    assert replace(four, optim=replace(four.optim, drop_last=True)).epoch_unit == 8
    with pytest.raises(InputError, match="--min-workers must be at most --workers, which is 3, not 4"):
        replace(run, min_workers=4)
    older = {
        name: value for name, value in json.loads(json.dumps(to_json(run))).items() if name != "min_workers"
    }
    assert from_json(older).min_workers == 0
    order = Order(size=41, batch=6, unit=run.epoch_unit, seed=0)
    assert (order.epoch_samples, order.epoch_steps) == (36, 6)
    assert all(len(batch) % count == 0 for batch in order.batches(0) for count in run.worker_counts)


def policy(progress=lambda: 0) -> EvenScalingPolicy:
    config = ScalingConfig(
        num_workers=(1, 4), resources_per_worker={"CPU": 1}, elastic_resize_monitor_interval_s=0
    )
    return EvenScalingPolicy(config, counts=(1, 2, 4), progress=progress)


@pytest.mark.parametrize(
    ("cores", "workers"), [((1, 1, 1), 2), ((4,), 4), ((0.5,), 0), ((1,), 1), ((9, 9), 4)]
)
def test_as_many_train_as_there_is_room_for_and_can_share_a_batch(cores, workers):
    room = {f"node {number}": {"CPU": of} for number, of in enumerate(cores)}
    assert policy()._count_possible_workers(room) == workers


def test_more_workers_begin_just_after_a_checkpoint(monkeypatch):
    """Ray's own policy decides; what it asks of a cluster is answered here: there is room for three."""
    checkpoints = ["", "", "first", "first", "second"]
    of = policy(progress=lambda: checkpoints.pop(0))
    monkeypatch.setattr(of, "_maybe_send_resource_request", lambda: None)
    monkeypatch.setattr(of, "_get_reserved_resources", lambda: {"node": {"CPU": 3.0}})
    at_work = SimpleNamespace(start_time=0.0, num_workers=1)
    # by keyword, as Ray's controller does
    state = {"worker_group_state": at_work, "worker_group_status": None}
    decided = [of.make_decision_for_running_worker_group(**state) for _ in range(4)]
    assert [getattr(decision, "num_workers", None) for decision in decided] == [None, 2, None, 2]


@pytest.mark.slow
@pytest.mark.ray
def test_who_goes_on_with_a_run_has_the_room_that_its_dead_controller_asked_for():
    def begun(name: str) -> EvenScalingPolicy:
        of = policy()
        config = {"run_config": RunConfig(name=name), "scaling_config": of.scaling_config}
        config |= {"backend_config": BackendConfig(), "dataset_config": DataConfig()}
        context = TrainRunContext(train_loop_config=None, **config)
        of.after_controller_start(context)
        return of

    def room(of: EvenScalingPolicy) -> int:
        return of._count_possible_workers(of._get_reserved_resources())

    with ray_session(shared=True):
        dead = begun("a run")
        before = room(dead)
        again, other = begun("a run"), begun("another run")
        assert room(again) == before > 0
        assert room(other) <= cores() - before
        for of in (again, other):
            of.before_controller_abort()
