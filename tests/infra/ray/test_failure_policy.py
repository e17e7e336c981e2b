"""Retries after faults of workers, as long as there is progress between them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from ray.train import FailureConfig, WorkerGroupError

from polypool.infra.ray import trainer as module
from polypool.infra.ray.internals import FailureDecision
from polypool.infra.ray.trainer import OneLineErrors, RetryWhileProgressing


class Faults:
    """A policy whose run makes a checkpoint when told to; keeps the pauses it makes."""

    def __init__(self, retries: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint, self.pauses = "", []
        monkeypatch.setattr(module.time, "sleep", self.pauses.append)
        self.policy = RetryWhileProgressing(
            FailureConfig(max_failures=retries),
            progress=lambda: self.checkpoint,
            refused=lambda error: error if isinstance(error, ValueError) else None,
        )

    def fails(self, error: Exception | None = None) -> bool:
        """Return whether it is tried again."""
        error = WorkerGroupError("a worker failed", {1: error or RuntimeError("gone")})
        return self.policy.make_decision(error) == FailureDecision.RETRY


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Faults]:
    return lambda retries: Faults(retries, monkeypatch)


def test_faults_in_a_row_are_counted_anew_after_each_checkpoint(faults, capsys):
    run = faults(2)
    for number in range(5):
        run.checkpoint = f"checkpoint_{number}"
        assert [run.fails(), run.fails()] == [True, True]
    assert not run.fails()
    said = capsys.readouterr().err
    assert (
        said.count("(gone) and begins again from its last checkpoint, now: 1 in a row without progress, of")
        == 5
    )
    assert said.count("in 2 seconds: 2 in a row without progress, of which 2 are tried again\n") == 5


def test_nothing_is_tried_again_with_retries_0(faults):
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


def test_what_is_said_in_one_line_has_no_traceback(caplog):
    logger = logging.getLogger("somebody's")
    logger.addFilter(OneLineErrors(lambda error: isinstance(error, ValueError)))
    for error in (ValueError("known"), RuntimeError("unknown")):
        try:
            raise error
        except Exception:
            logger.exception("it failed: %s", error)
    logger.error("no error at all")
    assert caplog.messages == ["it failed: unknown", "no error at all"]
