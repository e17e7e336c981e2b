"""AdamW as it is, without what torch brings along for its compiler."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import torch
from places import ROOT, SUPPORT
from torch import nn

from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training.optimisers.first_order import AdamW

WORKER = """
import sys
from pathlib import Path
import torch
from toy import FolderReport, SilentBar, Toy, toy_run
from polypool.infra.tracking.journal import Journal
from polypool.pipelines.training.loop import Trainer

def nobody():
    raise AssertionError("a new run has logged nothing before")

log = Journal(Path(sys.argv[1]), nobody)
log.begin()
for optimiser in sys.argv[2:]:
    run, report = toy_run(figures=True, optim={"optimiser": optimiser}), FolderReport()
    Trainer(run, Toy(run), log=log, report=report, device=torch.device("cpu"), bar=SilentBar).train()
    again = Trainer(run, Toy(run), log=log, report=report, device=torch.device("cpu"), bar=SilentBar)
    again.resume(report.last)
print(*sorted(name for name in ("torch._dynamo", "mlflow", "transformers", "ray") if name in sys.modules))
"""


def test_it_takes_the_same_steps():
    torch.manual_seed(0)
    models = [nn.Linear(30, 40)]
    models.append(copy.deepcopy(models[0]))
    options = {"lr": 1e-2, "weight_decay": 0.1}
    ours, theirs = (
        AdamW(models[0].parameters(), **options),
        torch.optim.AdamW(models[1].parameters(), **options, fused=True),
    )
    for step in range(6):
        x_BD = torch.rand(7, 30)
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            optimizer.zero_grad(set_to_none=True)
            model(x_BD).square().sum().backward()
            optimizer.step()
        if step == 2:  # each goes on with the state of the other
            states = [copy.deepcopy(optimizer.state_dict()) for optimizer in (theirs, ours)]
            for optimizer, state in zip((ours, theirs), states, strict=True):
                optimizer.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert models[0].weight.requires_grad
    assert models[0].weight.grad_fn is None


def test_a_worker_imports_neither_the_compiler_nor_mlflow(tmp_path):
    path = os.pathsep.join(map(str, (ROOT, SUPPORT, SUPPORT / "training")))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path), *OPTIMISERS.names()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
