"""A collapsed run gives one warning, in its first epoch; a learning run gives none."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import joint_run, make_corpus, make_questions
from toy import FolderLog, Toy, toy_run, trainer_of

from polypool.infra.registry import OBJECTIVES, TASKS
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.collapse import CollapseWatch
from polypool.pipelines.training.record import COLLAPSED
from polypool.tasks.abilities import CollapseCheck
from polypool.tasks.retrieval import Retrieval
from polypool.tasks.run import Run


def trained(run: Run, folder: Path, capsys) -> tuple[FolderLog, str]:
    loop = trainer_of(run, folder)
    loop.train()
    return loop.log, capsys.readouterr().err


def captions(folder: Path, **changes: object) -> Run:
    return derive(make_corpus(folder), figures=False, log_every=2, **changes)


def test_collapsed_run_warns_once_in_first_epoch(tmp_path, capsys):
    optim = {"lr": 0.3, "epochs": 1, "batch": 8, "warmup_steps": 0}
    run = captions(tmp_path / "data", objective="triplet(warmup_epochs=0)", optim=optim)
    log, said = trained(run, tmp_path / "log", capsys)
    assert said.count("warning: the model has collapsed: ") == 1
    assert log.tagged[COLLAPSED] in said
    assert re.fullmatch(
        r"step 12: pairs score .* more than others, scores deviate by .*; try a smaller learning rate .*",
        log.tagged[COLLAPSED],
    )


def test_learning_run_does_not_warn(tmp_path, capsys):
    run = captions(tmp_path / "data", objective="siglip", optim={"epochs": 2, "batch": 8})
    log, said = trained(run, tmp_path / "log", capsys)
    assert COLLAPSED not in log.tagged
    assert "collapsed" not in said
    assert {"train/score_deviation", "train/visual_variance", "train/text_variance"} <= log.rows[0][1].keys()


MEANS = {
    "positive_similarity": 0.9901,
    "negative_similarity": 0.99,
    "score_deviation": 0.001,
    "visual_variance": 0.01,
    "text_variance": 0.02,
}
FIRST = {"visual_variance": 0.05, "text_variance": 0.1}


def found(spec: str = "triplet", *, first=FIRST, **means: float) -> str:
    model = SimpleNamespace(objective=OBJECTIVES.build(spec))
    return Retrieval.collapse(None, model, MEANS | means, first=first)


WIDE = {"score_deviation": 0.05}
VISUAL, TEXT = MEANS["visual_variance"], MEANS["text_variance"]


@pytest.mark.parametrize(
    ("collapsed", "changes"),
    [
        (True, {"score_deviation": 0.0099}),
        (False, {"score_deviation": 0.0101}),
        (False, {"score_deviation": math.nan}),
        (False, {"spec": "triplet(margin=0)"}),
        (True, {"positive_similarity": 0.99019}),
        (False, {"positive_similarity": 0.99021}),
        (True, {"positive_similarity": 0.98}),  # pairs score lower than non-pairs
        # one side has shrunk to a point, although scores vary
        (False, WIDE),
        (True, WIDE | {"first": {"visual_variance": VISUAL / 0.14}}),
        (False, WIDE | {"first": {"visual_variance": VISUAL / 0.16}}),
        (True, WIDE | {"first": {"text_variance": TEXT / 0.14}}),
        (False, WIDE | {"first": {}}),
        (
            False,
            WIDE | {"first": {"text_variance": 1.0}, "positive_similarity": 1.01},
        ),  # pairs are separated
    ],
)
def test_collapse_depends_on_score_gap_and_variance(collapsed, changes):
    assert bool(found(**changes)) == collapsed
    if collapsed:
        assert "the objective aims at differences of 0.2" in found(**changes)


class Sure(Toy, CollapseCheck):
    """Reports every step, or some, as collapsed."""

    answers = (True,)

    seen = 0

    def collapse(self, model, means, *, first):
        self.first = first
        self.seen += 1
        return "it looks so" if self.answers[(self.seen - 1) % len(self.answers)] else ""


def watch(adapter, *, epoch_steps: int = 40) -> CollapseWatch:
    return CollapseWatch(adapter, epoch_steps=epoch_steps)


def steps_of(one: CollapseWatch, *, each: int, times: int, at_end: bool = False) -> list[str]:
    steps = [{"steps": each, "step": each * number} for number in range(1, times + 1)]
    return [one.trained(None, {}, **step, at_end=at_end) for step in steps]


@pytest.mark.parametrize(
    ("epoch_steps", "looks", "said_at"),
    [
        (40, {"each": 5, "times": 8}, 3),  # after half an epoch of collapsed steps, once
        (40, {"each": 9, "times": 1, "at_end": True}, None),
        (40, {"each": 10, "times": 1, "at_end": True}, 0),  # at the end of an epoch, a quarter is enough
        (40, {"each": 0, "times": 1, "at_end": True}, None),
        (2, {"each": 2, "times": 6}, 4),  # short epochs need a minimum number of steps
        (2, {"each": 1, "times": 4, "at_end": True}, 2),
    ],
)
def test_collapse_is_reported_once_after_enough_steps(epoch_steps, looks, said_at):
    said = steps_of(watch(Sure(toy_run()), epoch_steps=epoch_steps), **looks)
    assert [number for number, text in enumerate(said) if text] == ([] if said_at is None else [said_at])


def test_healthy_step_resets_collapse_count():
    adapter = Sure(toy_run())
    adapter.answers = (True, True, True, False)
    assert not any(steps_of(watch(adapter), each=5, times=40))
    assert not watch(Toy(toy_run())).trained(None, {}, steps=100, step=100, at_end=True)


def test_first_and_last_steps_of_epoch_are_checked(tmp_path):
    run = replace(toy_run(figures=False), log_every=1000)
    adapter = Sure(run)
    loop = trainer_of(run, tmp_path, adapter=adapter)
    loop.train()
    assert loop.log.tagged[COLLAPSED].startswith("step 5: it looks so")
    assert adapter.seen == 1
    assert {"loss", "score_deviation"} <= adapter.first.keys()


def test_collapsed_task_of_joint_run_is_named(tmp_path):
    text = "bigru(width=16, embedding=8, min_count=1, ends=False)"
    pairs, asked = (
        replace(make(tmp_path / make.__name__), text=text) for make in (make_corpus, make_questions)
    )
    run = joint_run(pairs=(0.5, pairs), vqa=(0.5, asked), optim=pairs.optim)
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    means = {f"pairs/{name}": value for name, value in MEANS.items()}
    assert adapter.collapse(model, means, first={}).startswith("pairs: pairs score 0.0001 more than others")
    assert adapter.collapse(model, {"vqa/loss": 1.0, "loss": 1.0}, first={}) == ""
