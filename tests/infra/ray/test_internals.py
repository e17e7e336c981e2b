"""The private parts of Ray that are used: each is named here, and where a new Ray lacks one, this says which."""

from __future__ import annotations

import importlib
import inspect
import logging
import subprocess
from functools import reduce
from pathlib import Path

import pytest
import ray.train.torch
from places import ROOT
from ray.train.v2.api import config

from polypool.infra.ray import internals, trainer

EXECUTION = "ray.train.v2._internal.execution"
PRIVATE = [
    ("ray._raylet", "Config.initialize"),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTER"),
    ("ray._private.ray_constants", "DASHBOARD_CLIENT_MAX_SIZE"),
    ("ray._private.ray_logging", "global_worker_stdstream_dispatcher.remove_handler"),
    ("ray._private.runtime_env.packaging", "_dir_travel"),
    (f"{EXECUTION}.checkpoint.checkpoint_manager", "_TrainingResultState"),
    (f"{EXECUTION}.checkpoint.checkpoint_manager", "_CheckpointManagerState"),
    (f"{EXECUTION}.failure_handling", "FailureDecision.RAISE"),
    (f"{EXECUTION}.failure_handling", "FailureDecision.RETRY"),
    (f"{EXECUTION}.failure_handling", "DefaultFailurePolicy.make_decision"),
    (f"{EXECUTION}.scaling_policy", "NoopDecision"),
    (f"{EXECUTION}.scaling_policy", "FixedScalingPolicy.after_controller_start"),
    (f"{EXECUTION}.scaling_policy", "FixedScalingPolicy._maybe_send_resource_request"),
    (f"{EXECUTION}.scaling_policy", "ElasticScalingPolicy.after_controller_start"),
    (f"{EXECUTION}.scaling_policy", "ElasticScalingPolicy.make_decision_for_running_worker_group"),
    (f"{EXECUTION}.scaling_policy", "ElasticScalingPolicy._count_possible_workers"),
    ("ray.train.torch", "TorchTrainer._register_sigint_handler"),
    ("ray.train.torch", "TorchTrainer._create_default_callbacks"),
    ("ray.train.torch", "TorchTrainer._initialize_and_run_controller"),
    ("ray.train.v2._internal.callbacks.datasets", internals.DATASETS),
    ("ray.train.v2._internal.callbacks.placement_group_callback", internals.CLEANER),
]


@pytest.mark.parametrize(("module", "name"), PRIVATE)
def test_ray_has_it(module, name):
    reduce(getattr, name.split("."), importlib.import_module(module))


@pytest.mark.parametrize("policy", internals.__all__)
def test_the_policies_are_rays(policy):
    assert getattr(internals, policy).__module__.startswith(EXECUTION)


def test_what_is_read_and_set_in_a_policy_is_there():
    made = trainer.DefaultFailurePolicy(ray.train.FailureConfig(max_failures=1))
    assert (made._worker_group_failures, made._controller_failures, made.failure_config.max_failures) == (
        0,
        0,
        1,
    )
    parts = inspect.signature(trainer.TorchTrainer._initialize_and_run_controller)
    assert [each.kind.name for each in parts.parameters.values()] == ["POSITIONAL_OR_KEYWORD", "VAR_KEYWORD"]
    source = inspect.getsource(trainer.TorchTrainer.fit)
    assert all(f"{policy}=" in source for policy in ("failure_policy", "scaling_policy"))


def test_the_second_version_of_ray_train_is_what_users_import():
    assert ray.train.torch.TorchTrainer is trainer.TorchTrainer
    assert ray.train.RunConfig is config.RunConfig


def test_the_loggers_are_rays():
    import ray.train.v2._internal.execution.context
    import ray.train.v2._internal.execution.controller.controller
    import ray.train.v2._internal.util

    context = str(Path(ray.__file__).parent / internals.CONTEXT_LOGGER)
    for name in (internals.CONTROLLER_LOGGER, internals.UTIL_LOGGER, context):
        assert name in logging.Logger.manager.loggerDict


def test_no_other_file_names_private_parts_of_ray():
    command = ["git", "grep", "-lE", r"ray[a-z_.]*\._(internal|private|raylet)", "--", "*.py", ":!tests"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert found in (["infra/ray/internals.py"], [])
