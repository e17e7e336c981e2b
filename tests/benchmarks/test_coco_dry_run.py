"""The dry run at the size of COCO, at a tiny size."""

from __future__ import annotations

import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks import coco_dry_run as dry
from benchmarks.random_data import feature_store
from polypool.infra.errors import InputError


@pytest.fixture(autouse=True)
def threads():
    """The command leaves torch one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


TINY = dry.DryRun(
    steps=7,
    batch=4,
    images=12,
    val=3,
    regions=3,
    dim=8,
    distinct=5,
    words=20,
    visual="regions(width=8)",
    text="bigru(width=8, embedding=4)",
)


def test_sets_are_repeated(tmp_path):
    written = feature_store(tmp_path, np.array([2, 1, 3]), dim=4)
    repeated = dry.Repeated.open(tmp_path)
    repeated.count = 8
    assert len(repeated) == 8
    assert repeated.rows(["7", "0"]).tolist() == [7, 0]
    with pytest.raises(InputError, match="8"):
        repeated.rows(["8"])
    assert repeated.sizes(np.array([7, 5])).tolist() == [1, 3]
    x_BND, mask_BN = repeated.padded(np.array([7, 5]))
    assert x_BND[0][mask_BN[0]].tolist() == written[1].tolist()
    assert x_BND[1][mask_BN[1]].tolist() == written[2].tolist()


def test_it_takes_the_steps_and_validates(tmp_path):
    trainer, steps = dry.trained(TINY.run(tmp_path), steps=TINY.steps)
    assert len(steps.step_S) == len(steps.memory_S) == 7
    assert trainer.step == 7
    assert min(steps.step_S.min(), steps.opened) >= 0
    assert "an epoch of 15 steps and a validation" in dry.epoch(trainer, steps)


def test_too_few_images_end_in_a_message(tmp_path):
    with pytest.raises(InputError, match="ended before 10000 steps"):
        dry.trained(dry.derive(TINY.run(tmp_path), optim={"epochs": 0}), steps=10_000)


def made_up(last: float) -> dry.Steps:
    own = [50.0, 60.0, 70.0, 80.0, 100.0, 400.0, last]
    return dry.Steps(
        opened=9.0,
        step_S=np.array([9.0, 1.0, 2.0, 3.0]),
        memory_S=[{"VmRSS": 2 * x, "RssAnon": x, "RssFile": x} for x in own],
    )


def test_an_epoch_is_its_steps_and_a_validation(monkeypatch):
    steps = made_up(104.0)
    assert "its own memory: 1.040x from step 5 to 7" in str(steps)
    assert "a step: 2.00 core-seconds (1.00-3.00)" in str(steps)
    clock = iter([100.0, 1700.0])
    monkeypatch.setattr(dry.time, "process_time", lambda: next(clock))
    text = dry.epoch(Mock(**{"order.epoch_steps": 1000, "run.optim.epochs": 25}), steps)
    assert "the validation: 1,600 core-seconds" in text
    assert "an epoch of 1,000 steps and a validation: 1.00 core-hours; 25 epochs: 25" in text


@pytest.mark.parametrize(("last", "grows"), [(109.0, False), (111.0, True)])
def test_it_ends_with_one_where_memory_grows(last, grows, monkeypatch):
    monkeypatch.setattr(dry.DryRun, "run", lambda self, folder: None)
    monkeypatch.setattr(dry, "trained", lambda run, steps: (None, made_up(last)))
    monkeypatch.setattr(dry, "epoch", lambda trainer, steps: "")
    monkeypatch.setattr(sys, "argv", ["dry"])
    if not grows:
        dry.main()
        return
    with pytest.raises(SystemExit, match="memory grows"):
        dry.main()
