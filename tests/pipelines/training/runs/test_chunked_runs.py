"""Runs with batches in chunks end with the weights of runs with whole batches."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import joint_run, make_corpus, make_questions
from torch import Tensor
from toy import trainer_of
from workers import run_workers

from polypool.infra.checks import run_checks
from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.train import prepare
from polypool.tasks.abilities import PartialLoss
from polypool.tasks.run import Run
from polypool.tasks.vqa import VQA
from polypool.testing import task_checks

TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False, dropout=0.2)"


def captions(folder: Path, **optim: object) -> Run:
    run = make_corpus(folder, train=18, val=6, test=6)
    text = "bigru(width=16, embedding=8, min_count=1, dropout=0.2)"
    run = derive(run, visual="frames(width=16, dropout=0.2)", text=text, figures=False, log_every=2)
    return derive(run, optim={"epochs": 2, "batch": 12, "lr": 1e-2, **optim})


def trained(run: Run, folder: Path) -> tuple[dict[str, Tensor], list[float]]:
    whole = trainer_of(run, folder)
    whole.train()
    return whole.model.state_dict(), [loss for _, loss in whole.log.history("train/loss")]


def together(folder: Path, *, chunk: int) -> Run:
    pairs = replace(captions(folder / "pairs"), text=TEXT)
    asked = replace(make_questions(folder / "asked", train=8, val=4, test=4), text=TEXT)
    asked = derive(asked, visual="frames(width=16, dropout=0.2)")
    optim = replace(pairs.optim, epochs=1, batch=12, chunk=chunk)
    run = joint_run(pairs=(0.5, pairs), vqa=(0.5, asked), optim=optim)
    return replace(run, recipe="tiny_joint", aggregator="mean", log_every=1, figures=False)


KINDS = {"captions": (captions, (0, 5), (5, 2)), "joint": (together, (0,), (4,))}
"""Function that makes a run, chunk sizes for one worker, chunk sizes for two."""


def in_double_precision(folder: str, kind: str) -> None:
    torch.set_default_dtype(torch.float64)
    here = Path(folder) / f"{world()}-{rank()}"
    make, *chunks = KINDS[kind]
    found = {}
    for chunk in chunks[world() - 1]:
        run = replace(make(here / f"data{chunk}", chunk=chunk), workers=world())
        found[chunk] = trained(run, here / f"log{chunk}")
    torch.save(found, f"{folder}/{world()}-{rank()}.pt")


@pytest.mark.parametrize("kind", [pytest.param("captions", marks=pytest.mark.slow), "joint"])
def test_chunks_and_workers_change_only_rounding(tmp_path, kind):
    for count in (1, 2):
        for number in range(count):
            (tmp_path / f"{count}-{number}").mkdir()
        run_workers(in_double_precision, str(tmp_path), kind, world=count)
    one, *two = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1"))
    weights, losses = one.pop(0)
    for found, found_losses in [*one.values(), *two[0].values(), *two[1].values()]:
        assert found_losses == pytest.approx(losses, rel=1e-7)
        # Adam divides near-zero gradients by near-zero roots, which magnifies rounding
        torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-6)
    assert len(losses) == (4 if kind == "captions" else len(losses))  # an epoch of three steps logs two


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"visual": "grid(width=16)"}, ""),
        ({"visual": "regions(width=16)", "optim": {"chunk": 0}}, ""),
        (
            {"visual": "regions(width=16)"},
            "--optim.chunk 4: visual.encoder.norm normalise by statistics of the batch.*--visual grid",
        ),
        (
            {"task": "template_task:CaptionWord", "visual": "grid(width=16)", "protocol": "caption_word"},
            "--optim.chunk 4: CaptionWord has no `passes` that cut its batches",
        ),
        ({"optim": {"chunk": -1}}, "--optim.chunk must be at least 0, not -1"),
    ],
)
def test_chunks_refuse_batch_norm_and_tasks_without_passes(tmp_path, changes, message):
    run = captions(tmp_path, chunk=4)
    with pytest.raises(InputError, match=message) if message else nullcontext():
        prepare(derive(run, **changes))


class InHalves(VQA):
    """Does not scale a chunk's loss by its share of the questions."""

    def passes(self, model, batch, *, epoch, chunk):
        for first in range(0, len(batch["target"]), chunk):
            part = {name: x[first : first + chunk] for name, x in batch.items()}
            terms = self.loss(model, part, epoch=epoch)
            yield PartialLoss(loss=terms["loss"], terms=terms)


def test_check_detects_wrong_gradient_of_chunks(tmp_path, monkeypatch):
    what = "a batch in chunks has the gradient of the whole (polypool.tasks.abilities.Chunked)"
    run = make_questions(tmp_path, train=8, val=4, test=4)
    (right,) = [o for o in run_checks(task_checks(run)) if o.what == what]
    assert (right.passed, right.message) == (True, "in chunks of 3")
    monkeypatch.setattr(VQA, "passes", InHalves.passes)
    (wrong,) = [o for o in run_checks(task_checks(run)) if o.what == what]
    assert wrong.passed is False
    assert "in chunks of 3, and" in wrong.message
