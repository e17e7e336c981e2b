"""Training with one and two workers agrees up to rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus
from toy import trainer_of
from workers import run_workers

from polypool.infra.compute.dist import rank, world
from polypool.pipelines.recipes.load import derive


def trained(folder: str, objective: str) -> None:
    """Train 40 steps in float64, with dropout; rank 0 saves losses and weights."""
    torch.set_default_dtype(torch.float64)
    (here := Path(folder) / f"{world()}-{rank()}").mkdir()
    text = "bigru(width=32, embedding=16, min_count=1, dropout=0.2)"
    run = derive(
        make_corpus(here, train=64, val=8, test=8), visual="frames(width=32, dropout=0.2)", text=text
    )
    optim = {"epochs": 5, "batch": 16, "lr": 2e-3, "drop_last": True}
    run = derive(run, objective=objective, aggregator="gpo", optim=optim)
    trainer = trainer_of(replace(run, workers=world(), figures=False, test=False, log_every=1), here / "log")
    trainer.train()
    if rank() == 0:
        losses = [loss for _, loss in trainer.log.history("train/loss")]
        torch.save((losses, trainer.model.state_dict()), f"{folder}/{world()}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["triplet", "infonce"])
def test_two_workers_match_one_up_to_rounding(tmp_path, objective):
    for count in (1, 2):
        run_workers(trained, str(tmp_path), objective, world=count)
    (one, weights), (two, others) = (torch.load(tmp_path / f"{count}.pt") for count in (1, 2))
    assert len(one) == 40
    assert one[-1] < 0.9 * one[0]
    np.testing.assert_allclose(two, one, rtol=1e-12)
    torch.testing.assert_close(others, weights, rtol=1e-10, atol=1e-12)
