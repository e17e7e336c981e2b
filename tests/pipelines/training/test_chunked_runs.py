"""Runs whose batches pass in chunks end with the weights of runs whose batches pass whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import make_corpus, make_questions
from torch import Tensor
from toy import FolderReport, same_weights, trainer
from workers import run_workers

from polypool.infra.checks import run_checks
from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError
from polypool.pipelines.checks.checking import adapter_checks
from polypool.pipelines.recipes import derive, join
from polypool.pipelines.training.prepare import prepare
from polypool.tasks.abilities import Pass
from polypool.tasks.run import Run
from polypool.tasks.vqa import VQA

TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False, dropout=0.2)"


def captions(folder: Path, **optim: object) -> Run:
    run = make_corpus(folder, train=18, val=6, test=6)
    return derive(
        run,
        visual="frames(width=16, dropout=0.2)",
        text="bigru(width=16, embedding=8, min_count=1, dropout=0.2)",
        figures=False,
        log_every=2,
        optim={"epochs": 2, "batch": 12, "lr": 1e-2, **optim},
    )


def trained(run: Run, folder: Path) -> tuple[dict[str, Tensor], list[float]]:
    whole = trainer(run, folder)
    whole.train()
    return whole.model.state_dict(), [loss for _, loss in whole.log.history("train/loss")]


def run_both(worker: Callable[[str], None], folder: Path) -> Callable[[str], Any]:
    """Run one worker, then two, each with a folder; return what reads the file that one left."""
    for count in (1, 2):
        for number in range(count):
            (folder / f"{count}-{number}").mkdir()
        run_workers(worker, str(folder), world=count)
    return lambda name: torch.load(folder / f"{name}.pt", weights_only=True)


def in_double_precision(folder: str) -> None:
    torch.set_default_dtype(torch.float64)
    here = Path(folder) / f"{world()}-{rank()}"
    found = {}
    for chunk in (5, 2) if world() > 1 else (0, 5):
        run = replace(captions(here / f"data{chunk}", chunk=chunk), workers=world())
        found[chunk] = trained(run, here / f"log{chunk}")
    torch.save(found, f"{folder}/{world()}-{rank()}.pt")


@pytest.mark.slow
def test_chunks_and_workers_change_nothing_but_rounding(tmp_path):
    read = run_both(in_double_precision, tmp_path)
    one = read("1-0")
    weights, losses = one[0]
    assert len(losses) == 3
    others = [one[5], *read("2-0").values(), read("2-1")[2]]
    for found, found_losses in others:
        assert found_losses == pytest.approx(losses, rel=1e-7)
        # zeros that Adam divides by the root of zeros are taken apart by rounding
        torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-6)


def together(folder: Path, *, chunk: int) -> Run:
    """Captions and questions, trained together."""
    pairs = replace(captions(folder / "pairs"), text=TEXT)
    asked = replace(make_questions(folder / "asked", train=8, val=4, test=4), text=TEXT)
    asked = derive(asked, visual="frames(width=16, dropout=0.2)")
    optim = replace(pairs.optim, epochs=1, batch=12, chunk=chunk)
    run = join(pairs=(0.5, pairs), vqa=(0.5, asked), optim=optim)
    return replace(run, recipe="tiny_joint", aggregator="mean", log_every=1, figures=False)


def joint_in_double_precision(folder: str) -> None:
    torch.set_default_dtype(torch.float64)
    here = Path(folder) / f"{world()}-{rank()}"
    run = replace(together(here / "data", chunk=4 if world() > 1 else 0), workers=world())
    torch.save(trained(run, here / "log")[0], f"{folder}/{world()}-{rank()}.pt")


def test_tasks_trained_together_in_chunks_by_two_workers_learn_as_whole_by_one(tmp_path):
    read = run_both(joint_in_double_precision, tmp_path)
    for name in ("2-0", "2-1"):
        torch.testing.assert_close(read(name), read("1-0"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["captions", pytest.param("questions", marks=pytest.mark.slow)])
def test_a_run_in_chunks_that_was_killed_goes_on_to_the_same_weights(tmp_path, kind):
    run = captions(tmp_path / "data", chunk=5)
    if kind == "questions":
        run = make_questions(tmp_path / "questions", train=8, val=4, test=4)
        run = derive(run, optim={"chunk": 5, "epochs": 1, "batch": 8}, figures=False)
        run = derive(run, visual="frames(width=16, dropout=0.2)")
    run = replace(run, checkpoint_every=1)
    whole = trainer(run, tmp_path / "whole")
    whole.train()
    report = FolderReport(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        trainer(run, tmp_path / "part", report).train()
    torch.manual_seed(123)
    again = trainer(run, tmp_path / "part")
    again.resume(report.last)
    again.train()
    assert same_weights(again.model.state_dict(), whole.model.state_dict())


def test_what_normalises_by_the_batch_or_cannot_be_cut_is_refused_before_it_starts(tmp_path):
    run = captions(tmp_path, chunk=4)
    assert prepare(run).run == run
    with pytest.raises(InputError) as error:
        prepare(derive(run, visual="regions(width=16)"))
    assert str(error.value).startswith(
        "--optim.chunk 4: visual.encoder.norm normalise by statistics of the batch"
    )
    assert "--visual grid" in str(error.value)
    assert prepare(derive(run, visual="grid(width=16)"))
    assert prepare(derive(run, visual="regions(width=16)", optim={"chunk": 0}))
    with pytest.raises(
        InputError, match=r"--optim.chunk 4: CaptionWord has no `passes` that cut its batches"
    ):
        prepare(
            derive(run, task="template_task:CaptionWord", visual="grid(width=16)", protocol="caption_word")
        )
    with pytest.raises(InputError, match=r"--optim.chunk must be at least 0, not -1"):
        derive(run, optim={"chunk": -1})


class InHalves(VQA):
    """Forgets that a chunk has a part of the questions."""

    def passes(self, model, batch, *, epoch, chunk):
        for first in range(0, len(batch["target"]), chunk):
            terms = self.loss(
                model, {name: x[first : first + chunk] for name, x in batch.items()}, epoch=epoch
            )
            yield Pass(loss=terms["loss"], terms=terms)


def test_check_says_where_chunks_have_another_gradient(tmp_path, monkeypatch):
    what = "a batch in chunks has the gradient of the whole (polypool.tasks.abilities.Chunked)"
    run = make_questions(tmp_path, train=8, val=4, test=4)
    (right,) = [o for o in run_checks(adapter_checks(run)) if o.what == what]
    assert (right.passed, right.message) == (True, "in chunks of 3")
    monkeypatch.setattr(VQA, "passes", InHalves.passes)
    (wrong,) = [o for o in run_checks(adapter_checks(run)) if o.what == what]
    assert wrong.passed is False
    assert "in chunks of 3, and" in wrong.message
