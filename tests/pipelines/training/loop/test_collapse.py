"""A run that has collapsed says so in its first epoch, once, and what to change; one that learns does not."""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from corpora import make_corpus, make_questions
from joint_runs import join
from toy import FolderLog, Toy, toy_run, trainer_of

from polypool.infra.registry import OBJECTIVES, TASKS
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.collapse import CollapseWatch
from polypool.pipelines.training.recording import COLLAPSED
from polypool.tasks.abilities import Collapse, Watchful
from polypool.tasks.adapter import Evaluation, Metric
from polypool.tasks.models.collapse_check import collapse
from polypool.tasks.models.retrieval_model import variance
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.run import Data, Optim, Run


def trained(run: Run, folder: Path, capsys) -> tuple[FolderLog, str]:
    loop = trainer_of(run, folder)
    loop.train()
    return loop.log, capsys.readouterr().err


def captions(folder: Path, **changes: object) -> Run:
    return derive(make_corpus(folder), figures=False, log_every=2, **changes)


@pytest.mark.parametrize(
    ("objective", "lr", "optim"),
    [("triplet(warmup_epochs=0)", 0.3, {}), ("infonce", 1.0, {"clip": 0.0})],
    ids=["hardest negatives at a high rate", "a rate of 1"],
)
def test_a_run_that_collapses_says_so_once_in_its_first_epoch(tmp_path, capsys, objective, lr, optim):
    optim |= {"lr": lr, "epochs": 1, "batch": 8, "warmup_steps": 0}
    run = captions(tmp_path / "data", objective=objective, optim=optim)
    log, said = trained(run, tmp_path / "log", capsys)
    assert said.count("warning: the model has collapsed: ") == 1
    assert log.tagged[COLLAPSED] in said
    assert re.match(
        r"step 12, epoch 1\.00: pairs score .* more than others, scores deviate by .*"
        r"where all scores are equal.* at first\); the embeddings of ",
        log.tagged[COLLAPSED],
    )
    assert f"To do: a smaller learning rate (--optim.lr {lr / 10:.2g}, now {lr:.2g}), or a warm-up" in said


@pytest.mark.parametrize("objective", ["triplet", "infonce(learned=True)", "adopt", "siglip"])
def test_a_run_that_learns_says_nothing(tmp_path, capsys, objective):
    run = captions(tmp_path / "data", objective=objective, optim={"epochs": 2, "batch": 8})
    log, said = trained(run, tmp_path / "log", capsys)
    assert COLLAPSED not in log.tagged
    assert "collapsed" not in said
    assert {"train/score_deviation", "train/visual_variance", "train/text_variance"} <= log.rows[0][1].keys()


def test_questions_that_all_have_one_answer_as_surely_are_a_collapse(tmp_path):
    run = make_questions(tmp_path / "data", train=8, val=4, test=4)
    adapter = TASKS.build(run.task, run)
    assert isinstance(adapter, Watchful)
    model = adapter.model()
    assert adapter.collapse_of(adapter.evaluate(model, "val", "vqa")) is None
    torch.nn.init.zeros_(model.classifier.weight)
    (symptom,) = adapter.collapse_of(adapter.evaluate(model, "val", "vqa")).symptoms
    assert re.fullmatch(r"every question is answered '\w+', each as surely", symptom)


def test_an_evaluation_of_nothing_but_ties_is_a_collapse(tmp_path):
    run = captions(tmp_path)
    adapter = TASKS.build(run.task, run)
    same = adapter.evaluate_scores(lambda items, texts: torch.ones(16, 32)[items, texts], "val", "whole")
    assert adapter.collapse_of(same).symptoms == ("all ranks under whole are tied",)
    random = torch.rand(16, 32)
    assert adapter.collapse_of(adapter.evaluate_scores(lambda i, t: random[i, t], "val", "whole")) is None


@pytest.mark.parametrize(
    ("spec", "epoch", "expected"),
    [
        ("triplet(margin=0.3)", 1.0, 2 * 6 * 0.3),
        ("triplet(margin=0.3, reduction=mean)", 1.0, 2 * 0.3),
        ("triplet(margin=0.3)", 0.0, 2 * 6 * 5 * 0.3),
        ("triplet(margin=0.3, negatives=hard(k=2))", 1.0, 2 * 6 * 2 * 0.3),
        ("infonce", 0.0, math.log(6)),
        ("infonce(learned=True)", 0.0, math.log(6)),
        ("adopt(margin=0)", 0.0, math.log(2)),
    ],
)
@pytest.mark.parametrize("score", [1.0, 0.98])
def test_the_plateau_is_the_loss_of_equal_scores(spec, epoch, expected, score):
    row_T = torch.arange(6)
    plateau = OBJECTIVES.build(spec).plateau(score, row_T, batch_positives(row_T, row_T), epoch=epoch)
    assert plateau == pytest.approx(expected, rel=1e-5)


MEANS = {
    "positive_similarity": 0.9901,
    "negative_similarity": 0.99,
    "score_deviation": 0.001,
    "visual_variance": 0.01,
    "text_variance": 0.02,
    "loss": 2 * 8 * 0.2,
}
FIRST = {"visual_variance": 0.05, "text_variance": 0.1}


def found(spec="triplet", *, first=FIRST, items=8, texts_each=1, epoch=1.0, **means) -> Collapse | None:
    model = SimpleNamespace(objective=OBJECTIVES.build(spec), regularisers=[])
    run = Run(
        data=Data(dataset="d", corpus="c"),
        visual="regions",
        text="bigru",
        protocol="whole",
        optim=Optim(batch=items),
    )
    how = {"texts_each": texts_each, "first": first, "epoch": epoch, "modality": "video"}
    return collapse(model, MEANS | means, run, **how)


def test_a_collapse_has_its_symptoms_and_what_to_do():
    assert found().symptoms == (
        "pairs score 0.0001 more than others, scores deviate by 0.001, and the objective strives for differences of "
        "0.2",
        "the loss is 3.2, and 3.2 where all scores are equal",
        "the embeddings of videos vary by 0.01 (0.05 at first)",
        "the embeddings of texts vary by 0.02 (0.1 at first)",
    )
    assert "(0.05" not in found(first={}).symptoms[2]
    assert "; all ranks are tied" in found(score_deviation=0.0, positive_similarity=0.99).symptoms[0]
    first_epochs = "all negatives in the first epochs (triplet(warmup_epochs=2))"
    assert found().advice == (first_epochs, "negatives=semi_hard")
    assert found(epoch=0.0, loss=2 * 8 * 7 * 0.2).advice == ("infonce in its place (--objective infonce)",)


WIDE = {"score_deviation": 0.05}
VISUAL, TEXT = MEANS["visual_variance"], MEANS["text_variance"]


@pytest.mark.parametrize(
    ("collapsed", "changes"),
    [
        (True, {"score_deviation": 0.0099}),
        (False, {"score_deviation": 0.0101}),
        (False, {"score_deviation": math.nan}),
        (False, {"spec": "triplet(margin=0)", "loss": 0.0}),
        (True, {"positive_similarity": 0.99019}),
        (False, {"positive_similarity": 0.99021}),
        (True, {"positive_similarity": 0.98}),  # pairs that are less alike than others have learnt nothing
        (True, {"loss": 3.2 * 0.91}),
        (False, {"loss": 3.2 * 0.89}),
        (True, {"loss": 3.2 * 2}),
        (False, {"loss": math.nan}),
        (True, {"items": 4, "texts_each": 2}),
        (False, {"items": 8, "texts_each": 2}),
        # a side that has shrunk to a point, though the other's scores differ
        (False, WIDE),
        (True, WIDE | {"first": {"visual_variance": VISUAL / 0.14}}),
        (False, WIDE | {"first": {"visual_variance": VISUAL / 0.16}}),
        (True, WIDE | {"first": {"text_variance": TEXT / 0.14}}),
        (False, WIDE | {"first": {"text_variance": TEXT / 0.16}}),
        (False, WIDE | {"first": {}}),
        (
            False,
            WIDE | {"first": {"text_variance": 1.0}, "positive_similarity": 1.01},
        ),  # pairs are told apart
    ],
)
def test_what_tells_pairs_from_others_or_has_left_the_plateau_has_not_collapsed(collapsed, changes):
    assert (found(**changes) is not None) == collapsed


def test_the_variance_is_the_mean_squared_distance_from_the_mean():
    x_BD = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert float(variance(x_BD)) == pytest.approx(0.5)
    assert float(variance(torch.ones(4, 2))) == 0


class Sure(Toy, Watchful):
    """Takes every step, or some, for collapsed."""

    answers = (True,)

    def collapse(self, model, means, *, first, epoch):
        self.seen, self.first = [*getattr(self, "seen", []), epoch], first
        which = self.answers[(len(self.seen) - 1) % len(self.answers)]
        return Collapse(symptoms=("it looks so",), advice=("something else",)) if which else None

    def collapse_of(self, evaluation):
        return None


def watch(adapter, *, epoch_steps: int = 40, **optim: object) -> CollapseWatch:
    return CollapseWatch(adapter, Optim(lr=0.1, **optim), epoch_steps=epoch_steps)


def steps_of(one: CollapseWatch, *, each: int, times: int, at_end: bool = False) -> list[str]:
    steps = [{"steps": each, "step": each * number} for number in range(1, times + 1)]
    return [one.trained(None, {}, **step, at_end=at_end) for step in steps]


@pytest.mark.parametrize(
    ("epoch_steps", "looks", "said_at"),
    [
        (40, {"each": 5, "times": 8}, 3),  # half an epoch of steps in a row, and never again
        (40, {"each": 9, "times": 1, "at_end": True}, None),
        (40, {"each": 10, "times": 1, "at_end": True}, 0),  # of which the last quarter is enough
        (40, {"each": 0, "times": 1, "at_end": True}, None),
        (2, {"each": 2, "times": 6}, 4),  # few steps are no evidence, however short an epoch
        (2, {"each": 1, "times": 4, "at_end": True}, 2),
    ],
)
def test_a_collapse_is_said_once_after_enough_steps(epoch_steps, looks, said_at):
    said = steps_of(watch(Sure(toy_run()), epoch_steps=epoch_steps), **looks)
    assert [number for number, text in enumerate(said) if text] == ([] if said_at is None else [said_at])


def test_what_is_said_of_a_collapse_names_the_step_and_what_to_change():
    assert steps_of(watch(Sure(toy_run())), each=20, times=1) == [
        "step 20, epoch 0.50: it looks so. To do: a smaller learning rate (--optim.lr 0.01, now 0.1), or a warm-up "
        "(--optim.warmup-steps 500), or something else"
    ]
    assert "warm-up" not in steps_of(watch(Sure(toy_run()), warmup_steps=3), each=20, times=1)[0]
    one = watch(Sure(toy_run()))
    assert not one.trained(None, {}, steps=10, step=40, at_end=False)
    assert one.trained(None, {}, steps=0, step=40, at_end=True), "logged just now"


def test_steps_between_that_look_well_begin_the_count_anew():
    adapter = Sure(toy_run())
    adapter.answers = (True, True, True, False)
    one = watch(adapter)
    assert not any(steps_of(one, each=5, times=40))
    adapter.seen = adapter.seen[:3]
    assert not one.trained(None, {}, steps=40, step=240, at_end=True), "the last of them looked well"


def test_a_task_that_knows_no_collapse_is_not_watched():
    empty = Evaluation(protocol="dev", metrics={}, primary=Metric(name="score"))
    one = watch(Toy(toy_run()))
    assert one.trained(None, {}, steps=100, step=100, at_end=True) == ""
    assert one.evaluated(empty, step=100) == ""


def test_the_first_step_and_the_last_ones_of_an_epoch_are_looked_at(tmp_path):
    run = replace(toy_run(figures=False), log_every=1000)
    adapter = Sure(run)
    loop = trainer_of(run, tmp_path, adapter=adapter)
    loop.train()
    assert loop.log.tagged[COLLAPSED].startswith("step 5, epoch 1.00: it looks so")
    assert adapter.seen == [pytest.approx(0.8)]
    assert {"loss", "score_deviation", "gradient_norm"} - adapter.first.keys() == {"gradient_norm"}


def test_a_task_of_several_that_has_collapsed_is_named(tmp_path):
    text = "bigru(width=16, embedding=8, min_count=1, ends=False)"
    pairs, asked = (
        replace(make(tmp_path / make.__name__), text=text) for make in (make_corpus, make_questions)
    )
    run = join(pairs=(0.5, pairs), vqa=(0.5, asked), optim=pairs.optim)
    adapter = TASKS.build(run.task, run)
    model = adapter.model()
    means = {f"pairs/{name}": value for name, value in MEANS.items()}
    means |= {"pairs/loss": math.log(pairs.optim.batch), "loss": 1.0}
    found = partial(adapter.collapse, model, first={}, epoch=0.0)
    assert found(means).symptoms[0].startswith("pairs: pairs score 0.0001 more than others")
    assert found({"vqa/loss": 1.0, "loss": 1.0}) is None
    assert found(means | {"pairs/loss": 0.1}) is None
    torch.nn.init.zeros_(model.members["vqa"].classifier.weight)
    (symptom,) = adapter.collapse_of(adapter.evaluate(model, "val", "joint")).symptoms
    assert symptom.startswith("vqa: every question is answered")
