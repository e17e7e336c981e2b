"""Models on disk: exported folders, checkpoints of an unfinished run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from corpora import make_corpus

from fuzz.cases import Kind, expect
from polypool.infra.registry import TASKS
from polypool.pipelines.models.trained import load
from polypool.pipelines.training.checkpoints.best import ASSETS, RUN, WEIGHTS, write_model
from polypool.pipelines.training.checkpoints.format import Progress, load_checkpoint, save_weights

_EXPORTED = {f"model/{WEIGHTS}": "safetensors", f"model/{RUN}": "json", f"model/{ASSETS}": "json"}


def _exported(folder: Path) -> None:
    run = make_corpus(folder / "made", train=8, val=2, test=2)
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, run)
    (folder / "model").mkdir()
    write_model(folder / "model", adapter.model(), run, adapter)


def _embed(folder: Path) -> int:
    trained = load(folder / "model")
    codes = trained.encode_text(["a dog and a cat", "unheard of"])
    expect(len(codes) == 2, f"{len(codes)} embeddings of two texts")
    return 0


def _checkpoint(folder: Path) -> None:
    """Write what `Snapshot` does, without an optimiser: the first use of one takes torch seconds."""
    (folder / "last").mkdir()
    model = torch.nn.Linear(3, 2)
    save_weights(model, folder / "last" / "model.safetensors")
    moments = {
        number: {"step": torch.tensor(3.0), "exp_avg": torch.ones_like(x), "exp_avg_sq": torch.ones_like(x)}
        for number, x in enumerate(model.parameters())
    }
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "params": [0, 1]}]
    state = {
        "optimizer": {"state": moments, "param_groups": groups},
        "random": [{"cpu": torch.get_rng_state()}],
    }
    torch.save(state, folder / "last" / "state.pt")
    (folder / "last" / "progress.json").write_text(json.dumps(asdict(Progress(samples=12, best=0.5))))


def _resume(folder: Path) -> int:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    progress = load_checkpoint(folder / "last", model, optimizer)
    expect(progress.samples >= 0 and progress.best_epoch >= 0, f"{progress}")
    return 0


_LAST = {"last/model.safetensors": "safetensors", "last/state.pt": "raw", "last/progress.json": "json"}

KINDS = [
    Kind(name="exported model", make=_exported, read=_embed, damaged=_EXPORTED),
    Kind(name="checkpoint", make=_checkpoint, read=_resume, damaged=_LAST),
]
