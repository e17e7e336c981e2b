"""Limits and names of MLflow, as the installed version has them, and what provenance names of a machine."""

import os

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.fs2db.cli import migrate_filestore
from mlflow.utils import mlflow_tags, validation

from polypool.infra import tracking
from polypool.infra.errors import InputError


def test_limits_and_names_are_those_of_mlflow():
    assert tracking.DIGEST_LENGTH == validation.MAX_DATASET_DIGEST_SIZE
    assert tracking.PARAM_LENGTH <= validation.MAX_PARAM_VAL_LENGTH
    assert tracking.PARAMS_AT_ONCE <= validation.MAX_PARAMS_TAGS_PER_BATCH
    assert tracking.METRICS_AT_ONCE <= validation.MAX_METRICS_PER_BATCH
    assert tracking.DATASET_CONTEXT == mlflow_tags.MLFLOW_DATASET_CONTEXT
    assert tracking.MODEL_VERSIONS == mlflow_tags.MLFLOW_MODEL_VERSIONS
    assert {"source", "target"} <= {option.name for option in migrate_filestore.params}


def test_names_that_mlflow_refuses_are_refused_before_anything_is_written(tmp_path):
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    for name in (" ", "a/b", "a:b"):
        with pytest.raises(InputError, match="--registered-name"):
            tracking.check_names(name, "")
        with pytest.raises(MlflowException, match="name"):
            client.create_registered_model(name)
    client.create_registered_model("a")
    client.create_model_version("a", source=str(tmp_path))
    for alias in ("a b", "a!", "latest", "Latest", "v1", "V20"):
        with pytest.raises(InputError, match="--alias"):
            tracking.check_names("a", alias)
        with pytest.raises(MlflowException, match="alias name"):
            client.set_registered_model_alias("a", alias, "1")


def test_an_alias_needs_a_registered_model():
    with pytest.raises(InputError, match="--alias best needs a registered model"):
        tracking.check_names("", "best")
    tracking.check_names("", "")
    for name, alias in (("a b", ""), ("a", "best"), ("a", "v1-b"), ("a", "latest_2")):
        tracking.check_names(name, alias)


def test_processors_and_gpus_are_counted_and_no_host_is_named(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(
        "model name\t: Fast  CPU @ 3 GHz\nflags: a\nmodel name\t: Fast  CPU @ 3 GHz\n"
    )
    for number, model in enumerate(("NVIDIA H100", "NVIDIA H100", "NVIDIA T4")):
        (tmp_path / f"driver/nvidia/gpus/{number}").mkdir(parents=True)
        (tmp_path / f"driver/nvidia/gpus/{number}/information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    monkeypatch.setattr(tracking, "_PROC", tmp_path)
    cores = len(os.sched_getaffinity(0))
    assert tracking.machine().endswith(f", {cores} x Fast CPU @ 3 GHz, 2 x NVIDIA H100, 1 x NVIDIA T4")
    assert os.uname().nodename not in tracking.machine()
    monkeypatch.setattr(tracking, "_PROC", tmp_path / "none")
    assert tracking.machine().count(",") == 1
