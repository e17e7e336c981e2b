"""Moving averages of weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy import FolderReport, same_weights, toy_run, trainer_of

from polypool.pipelines.training.loop.averaging import WeightAverage


def test_weight_average_matches_formula():
    torch.manual_seed(0)
    model = nn.BatchNorm1d(3).double()
    model.bias.requires_grad_(False)
    average, names = WeightAverage(model, decay=0.7), ("weight", "running_mean", "running_var")
    expected = {name: model.state_dict()[name].clone() for name in names}
    for step in range(40):
        for name in names:
            model.state_dict()[name].add_(torch.randn(3))
            decay = min(0.7, (1 + step) / (10 + step))
            expected[name] = decay * expected[name] + (1 - decay) * model.state_dict()[name]
        average.update()
    own = {name: x.clone() for name, x in model.state_dict().items()}
    with average.applied():
        for name in names:
            torch.testing.assert_close(model.state_dict()[name], expected[name])
        assert torch.equal(model.bias, own["bias"])
    assert same_weights(model.state_dict(), own)


def test_run_saves_weight_average_and_resumes_it(tmp_path):
    run, report = toy_run(checkpoint_every=2, optim={"ema": 0.9}), FolderReport(fail_after=3)
    whole = trainer_of(run, tmp_path / "whole")
    whole.train()
    best = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert whole.progress.best_epoch == 3
    assert same_weights(whole.average.state(), {name: best[name] for name in whole.average.state()})
    plain = trainer_of(toy_run(), tmp_path / "plain")
    plain.train()
    assert plain.log.history("train/loss") == whole.log.history("train/loss"), (
        "averaging must not change the steps"
    )
    with pytest.raises(KeyboardInterrupt):
        trainer_of(run, tmp_path / "part", report).train()
    again = trainer_of(run, tmp_path / "part")
    again.resume(report.last)
    again.train()
    assert same_weights(again.average.state(), whole.average.state())
    assert again.progress.best == whole.progress.best
