"""Retries after faults of workers, and the private parts of Ray that are used."""

import importlib
import inspect
import logging
import os
import subprocess
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path

import pytest
import ray.train.torch
from places import ROOT
from ray.train import FailureConfig, WorkerGroupError
from ray.train.v2.api import config

from polypool.infra.ray import internals, trainer
from polypool.infra.ray import trainer as module
from polypool.infra.ray.internals import FailureDecision
from polypool.infra.ray.trainer import OneLineErrors, RetryWhileProgressing


class Faults:
    """A policy whose run makes a checkpoint when told to; keeps the pauses it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
        self.checkpoint, self.pauses = "", []
        monkeypatch.setattr(module.time, "sleep", self.pauses.append)
        self.policy = RetryWhileProgressing(
            FailureConfig(max_failures=retries),
            progress=lambda: self.checkpoint,
            refused=lambda error: error if isinstance(error, ValueError) else None,
            whole=Path(os.devnull),
        )

    def fails(self, error: Exception | None = None) -> bool:
        error = WorkerGroupError("a worker failed", {1: error or RuntimeError("gone")})
        return self.policy.make_decision(error) == FailureDecision.RETRY


@pytest.fixture
def faults(monkeypatch) -> Callable[[int], Faults]:
    return partial(Faults, monkeypatch)


def test_faults_in_a_row_are_counted_anew_after_each_checkpoint(faults, capsys):
    run = faults(2)
    for number in range(5):
        run.checkpoint = f"checkpoint_{number}"
        assert [run.fails(), run.fails()] == [True, True]
    assert not run.fails()
    said = capsys.readouterr().err
    again = "(gone) and begins again from its last checkpoint, now: 1 in a row without progress, of"
    assert said.count(again) == 5
    assert said.count("in 2 seconds: 2 in a row without progress, of which 2 are tried again\n") == 5
    assert not faults(0).fails()


def test_pauses_double_up_to_a_limit_and_begin_anew(faults):
    run = faults(10)
    assert all(run.fails() for _ in range(9))
    run.checkpoint = "another"
    assert run.fails()
    assert run.fails()
    assert run.pauses == [0, 2, 4, 8, 16, 32, 64, 120, 120, 0, 2]


def test_what_a_worker_refuses_is_not_tried_again(faults):
    run = faults(5)
    assert not run.fails(ValueError("the loss became nan"))
    assert run.fails()
    assert run.pauses == [0]


def test_errors_are_a_line_and_the_whole_is_in_a_file_but_what_the_driver_reports(caplog, tmp_path):
    logger = logging.getLogger("somebody's")
    whole = tmp_path / "faults.log"
    logger.addFilter(OneLineErrors(lambda error: isinstance(error, ValueError), whole))
    for error in (ValueError("known"), RuntimeError("of this kind\nunknown" + "!" * 999), KeyError()):
        try:
            raise error
        except Exception:
            logger.exception("it failed:\n%s", error)
    logger.error("no error at all\nbut two lines")
    first, second, last = caplog.messages
    assert first == f"it failed: unknown{'!' * 293} ({whole})"
    assert second == f"it failed: KeyError ({whole})"
    assert last == "no error at all\nbut two lines"
    assert "Traceback" not in caplog.text
    assert whole.read_text().count("Traceback") == 2
    assert "!" * 999 in whole.read_text()


def test_of_an_error_of_a_daemon_a_line_is_printed(monkeypatch):
    worker = importlib.import_module("ray._private.worker")
    shown = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data))
    for _ in range(2):
        internals.shorten_daemon_errors()
    died = {
        "lines": ["Raylet is terminated. Last 20 lines:\n    [state-dump] 1\n"],
        "pid": "raylet",
        "is_err": False,
    }
    own = {"lines": ["one\ntwo"], "pid": 1234, "is_err": False}
    for data in (died, own):
        worker.print_to_stdstream(data, ignore_prefix=False)
    assert shown == [died | {"lines": ["Raylet is terminated. Last 20 lines:"]}, own]
    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)


EXECUTION = "ray.train.v2._internal.execution"
PRIVATE = {
    "ray._raylet": ("Config.initialize",),
    "ray._private.ray_constants": ("ENABLE_RAY_CLUSTER", "DASHBOARD_CLIENT_MAX_SIZE"),
    "ray._private.ray_logging": ("global_worker_stdstream_dispatcher.remove_handler",),
    "ray._private.worker": ("print_to_stdstream",),
    "ray.serve._private.replica": ("add_port_to_grpc_server",),
    "ray._private.runtime_env.packaging": ("_dir_travel",),
    f"{EXECUTION}.checkpoint.checkpoint_manager": ("_TrainingResultState", "_CheckpointManagerState"),
    f"{EXECUTION}.failure_handling": ("FailureDecision.RAISE", "FailureDecision.RETRY"),
    f"{EXECUTION}.scaling_policy": (
        *("FixedScalingPolicy.after_controller_start", "FixedScalingPolicy._maybe_send_resource_request"),
        *("ElasticScalingPolicy.after_controller_start", "ElasticScalingPolicy._count_possible_workers"),
        "ElasticScalingPolicy.make_decision_for_running_worker_group",
    ),
    "ray.train.torch": (
        *("TorchTrainer._register_sigint_handler", "TorchTrainer._create_default_callbacks"),
        "TorchTrainer._initialize_and_run_controller",
    ),
    "ray.train.v2._internal.callbacks.datasets": (internals.DATASETS,),
    "ray.train.v2._internal.callbacks.placement_group_callback": (internals.CLEANER,),
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in PRIVATE for name in PRIVATE[module]]
)
def test_ray_has_it(module, name):
    reduce(getattr, name.split("."), importlib.import_module(module))


@pytest.mark.parametrize("policy", internals.__all__)
def test_the_policies_are_rays(policy):
    assert getattr(internals, policy).__module__.startswith(EXECUTION)


def test_what_is_read_and_set_in_a_policy_is_there():
    made = trainer.DefaultFailurePolicy(ray.train.FailureConfig(max_failures=1))
    assert made._worker_group_failures == made._controller_failures == 0
    assert made.failure_config.max_failures == 1
    parts = inspect.signature(trainer.TorchTrainer._initialize_and_run_controller)
    assert [each.kind.name for each in parts.parameters.values()] == ["POSITIONAL_OR_KEYWORD", "VAR_KEYWORD"]
    source = inspect.getsource(trainer.TorchTrainer.fit)
    assert all(f"{policy}=" in source for policy in ("failure_policy", "scaling_policy"))


def test_the_second_version_of_ray_train_is_what_users_import():
    assert ray.train.torch.TorchTrainer is trainer.TorchTrainer
    assert ray.train.RunConfig is config.RunConfig


def test_the_loggers_are_rays():
    import ray.train.v2._internal.callbacks.backend_setup
    import ray.train.v2._internal.execution.context
    import ray.train.v2._internal.execution.controller.controller
    import ray.train.v2._internal.util

    context = str(Path(ray.__file__).parent / internals.CONTEXT_LOGGER)
    loggers = (internals.CONTROLLER_LOGGER, internals.BACKEND_LOGGER, internals.UTIL_LOGGER, context)
    for name in loggers:
        assert name in logging.Logger.manager.loggerDict


def test_no_other_file_names_private_parts_of_ray():
    command = ["git", "grep", "-lE", r"ray[a-z_.]*\._(internal|private|raylet)", "--", "*.py", ":!tests"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert found in (["infra/ray/internals.py"], [])
