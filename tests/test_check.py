from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import template_task
import torch
from corpora import make_questions
from tiny_models import save_bert, save_vit
from torch import nn

from aggregators.mean import Mean
from encoders.bigru import BiGRU
from encoders.grid import Grid
from infra.checks import Check, run_checks
from infra.errors import InputError
from pipelines import check as module
from pipelines.check import check, listing
from pipelines.checks.adapter import adapter_checks
from pipelines.checks.kinds import kind_of
from tasks.base import Evaluation
from tasks.objectives.infonce import InfoNCE
from tasks.similarities.cosine import Cosine


def failures(name: str, **options) -> list[str]:
    return [f"{o.what}: {o.message}" for o in check(name, **options) if not o.kept]


@pytest.mark.parametrize(
    "name",
    [
        "kmax(k=3)",
        "slots(k=2, heads=2, head_width=4)",
        "bigru(width=16, embedding=8)",
        "words(embedding=8)",
        "regions(width=16, standardise=True)",
        "pooled_grid",
        "smooth_chamfer",
        "cosine",
        "aligned_mean",
        "triplet",
        "adopt",
        "mmd(weight=1.0)",
        "coco_mini",
        "coco_wsl_bert_x2",
        "hgr(verbs=3)",
        "rules",
        "image_text",
        "video_text",
        "vqa",
        "template_task:CaptionWord",
    ],
)
def test_what_is_built_in_keeps_its_promises(name):
    assert failures(name) == []


def test_encoders_of_transformers_are_checked_from_a_folder(tmp_path):
    bert, vit = save_bert(tmp_path / "bert"), save_vit(tmp_path / "vit")
    assert failures(f"bert(width=6, name={bert!r})") == []
    assert failures(f"patches(width=6, size=32, name={vit!r})") == []
    (missing, *rest) = check(f"bert(name={str(tmp_path / 'none')!r})")
    assert "Give the name of a model on the hub" in missing.message
    assert {outcome.kept for outcome in rest} == {None}


def test_a_task_is_tried_with_the_parts_of_a_recipe_on_its_data(tmp_path):
    run = make_questions(tmp_path)
    assert [o for o in run_checks(adapter_checks(run)) if not o.kept] == []
    wrong = replace(run, optim=replace(run.optim, batch=4), aggregator="gpo(tempreature=1)")
    outcomes = [*run_checks(adapter_checks(wrong))]
    assert [o.kept for o in outcomes] == [True] * 4 + [False] + [None] * 7
    assert "Did you mean 'temperature'" in outcomes[4].message


class Summing(Mean):
    """Forgets the mask."""

    def forward(self, x_BND, mask_BN):
        return x_BND.sum(dim=1)


class Padded(Grid):
    """Centres over the padded set."""

    def forward(self, x_BNF, mask_BN):
        x_BND, mask_BN = super().forward(x_BNF, mask_BN)
        return x_BND - x_BND.mean(dim=1, keepdim=True), mask_BN


class Mates(BiGRU):
    """Adds the batch's mean, and has a weight that nothing reads."""

    def __init__(self, assets, *, width: int = 8):
        super().__init__(assets, width=width, embedding=8)
        self.idle = nn.Linear(2, 2)

    def forward(self, token_BL, mask_BL):
        x_BLD, mask_BL = super().forward(token_BL, mask_BL)
        return x_BLD + x_BLD.mean(dim=(0, 1)), mask_BL


class Tensors(BiGRU):
    @classmethod
    def prepare(cls, captions, **params):
        return super().prepare(captions, **params) | {"sizes": torch.ones(2)}


class Relative(Cosine):
    def forward(self, query, gallery):
        sim_QG = super().forward(query, gallery)
        return sim_QG - sim_QG.mean()


class Backwards(InfoNCE):
    def forward(self, sim_QG, row_G, positive_QG, *, epoch):
        loss = super().forward(sim_QG, row_G, positive_QG, epoch=epoch)["loss"]
        return {"loss": 2 * loss.detach() - loss}


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        (
            "Summing",
            [
                "neither padding nor what lies under the mask counts: more padding changes the result. To do: fill"
            ],
        ),
        (
            "Padded",
            [
                "neither padding nor what lies under the mask counts: more padding changes the set. To do: hide"
            ],
        ),
        (
            "Mates",
            [
                "batch mates do not count: batch mates change",
                "gradients are .*: no gradient reaches idle.weight, idle.bias. To do",
            ],
        ),
        (
            "Tensors",
            [
                "assets are plain JSON: TypeError: Object of type Tensor is not JSON .* To do: make them of dicts"
            ],
        ),
        ("Relative", ["each pair is scored by itself: a block of the scores differs"]),
        ("Backwards", ["steps against its gradient lower it: 20 steps took the loss from .* To do"]),
    ],
)
def test_a_broken_part_is_told_what_is_broken_and_what_to_do(name, broken):
    found = "\n".join(failures(f"test_check:{name}"))
    for message in broken:
        assert re.search(message, found), found


class Rolling(template_task.Labelled):
    """Draws from a generator that goes on."""

    rng = np.random.default_rng(0)

    def batch(self, index_B, *, seed, epoch):
        batch = super().batch(index_B, seed=seed, epoch=epoch)
        noise = self.rng.normal(size=batch["visual"].shape).astype(np.float32)
        return batch | {"visual": batch["visual"] + torch.from_numpy(noise)}


class Task(template_task.CaptionWord):
    """The template with something changed for the worse."""

    def data(self, split):
        data = super().data(split)
        data.__class__ = getattr(self, "dataset", data.__class__)
        return data


class Unseeded(Task):
    dataset = Rolling


class Short(Task):
    class dataset(template_task.Labelled):
        def batch(self, index_B, *, seed, epoch):
            batch = super().batch(index_B, seed=seed, epoch=epoch)
            return batch | {"visual_mask": batch["visual_mask"].long()}


class Idle(Task):
    def model(self, *, pretrained=True):
        model = super().model(pretrained=pretrained)
        model.idle = nn.Linear(2, 2)
        return model


class NotANumber(Task):
    def loss(self, model, batch, *, epoch):
        return {"loss": super().loss(model, batch, epoch=epoch)["loss"] * float("nan")}


class Uphill(Task):
    def loss(self, model, batch, *, epoch):
        loss = super().loss(model, batch, epoch=epoch)["loss"]
        return {"loss": 2 * loss.detach() - loss}


class At(Task):
    def evaluate(self, model, split, protocol):
        found = super().evaluate(model, split, protocol)
        return replace(found, metrics=found.metrics | {"R@1": 1.0})


class Unjoined(Task):
    def evaluate(self, model, split, protocol):
        found = super().evaluate(model, split, protocol)
        return replace(found, per_query={"accuracy": found.per_query["accuracy"]})


class Nameless(Task):
    def evaluate(self, model, split, protocol):
        return Evaluation(protocol=protocol, metrics={"recall": 1.0})


class Hungry(Task):
    def __init__(self, run, assets=None, *, place=1):
        super().__init__(run, assets, place=place)
        self.corpus.items("train")


class Raising(Task):
    def describe(self):
        raise KeyError("digest")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unseeded", r"alone: the same samples gave another `visual`.*infra\.randomness"),
        ("Short", r"fit together: `visual_mask` is torch\.int64, expected torch\.bool"),
        ("Idle", r"reach every weight: no gradient reaches idle\.weight, idle\.bias\. To do: leave out"),
        ("NotANumber", r"finite scalars: `loss` is nan"),
        ("Uphill", r"lower its loss: it went from \d"),
        ("At", r"can be kept: the metric 'R@1' has characters that MLflow refuses"),
        ("Unjoined", r"none of accuracy has a different value for each query"),
        ("Nameless", r"accuracy is not among its metrics recall"),
        ("Hungry", r"without its data: .*nowhere/corpus"),
        ("Raising", r"is text: KeyError: 'digest' \(.*test_check\.py, line \d+\)\. To do: return a dict"),
    ],
)
def test_a_broken_task_is_told_what_is_broken_and_what_to_do(name, message):
    found = "\n".join(failures(f"test_check:{name}"))
    assert re.search(message, found), found


def test_after_a_vital_promise_nothing_is_looked_at():
    def fails() -> None:
        raise AssertionError("so it is")

    checks = [
        Check(what="a", run=lambda: "seen"),
        Check(what="b", run=fails, vital=True),
        Check(what="c", run=fails),
    ]
    assert [str(o).split() for o in run_checks(checks)] == [
        ["ok", "a:", "seen"],
        ["FAILED", "b:", "so", "it", "is"],
        ["not", "checked", "c"],
    ]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("gpo", "", "aggregator"),
        ("regions(width=4)", "", "encoder"),
        ("test_check:Summing", "", "aggregator"),
        ("test_check:Mates", "", "encoder"),
        ("test_check:Task(place=2)", "", "task"),
        ("tasks.objectives.infonce:InfoNCE", "", "objective"),
        ("collections:Counter", "parser", "parser"),
    ],
)
def test_the_kind_of_a_name_is_found(name, kind, expected):
    assert kind_of(name, kind) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpoo", {}, "unknown name 'gpoo'. Did you mean 'gpo'"),
        ("gpo", {"kind": "agregator"}, "Did you mean 'aggregator'"),
        ("collections:Counter", {}, "--kind"),
        ("no_such_package:Thing", {}, "cannot load"),
        ("gpo", {"recipe": "coco_mini"}, "leave --recipe out"),
        ("image_text", {"recipe": "coco_mni"}, "Did you mean 'coco_mini'"),
        ("image_text", {"recipe": "coco_wsl_bert_x2"}, "is an ensemble"),
        ("gpo", {"kind": "encoder"}, "unknown encoder 'gpo'"),
    ],
)
def test_what_cannot_be_checked_is_said(name, options, message):
    with pytest.raises(InputError, match=message):
        list(check(name, **options))


def test_the_verb_prints_a_line_a_promise_and_ends_with_0_or_2(monkeypatch, capsys):
    def verb(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["check", *words])
        module.main()

    verb("mean")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("ok ") for line in lines)
    with pytest.raises(SystemExit) as ended:
        verb("test_check:Summing")
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert "FAILED       neither padding" in captured.out
    assert "of its promises are broken" in captured.err
    for words, message in (([], "--list"), (["mean", "--seed", "1"], "'--seed' is no option")):
        with pytest.raises(SystemExit):
            verb(*words)
        assert message in capsys.readouterr().err
    verb("--list", "--kind", "fusion")
    assert capsys.readouterr().out == "fusions (--kind fusion)\n  concat   built in\n  product  built in\n"


def test_the_list_has_every_kind():
    found = listing()
    for name in (
        "image_text",
        "bigru",
        "gpo",
        "cosine",
        "adopt",
        "mmd",
        "drop",
        "hgr",
        "rules",
        "coco_mini",
        "vit",
    ):
        assert f"\n  {name} " in found
    assert "CANNOT BE USED" not in found
    with pytest.raises(InputError, match="Did you mean 'parser'"):
        listing("parsers")
