"""Adaptations of published weights: trained weights, contents of checkpoints, and merging."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus
from safetensors.torch import load_file
from tiny_models import save_bert, save_clip, save_vit
from toy import FolderReport, same_weights, trainer_of

from polypool.encoders.adaptations import adapt, left_out, merge
from polypool.encoders.adaptations.lora import Lora
from polypool.encoders.encoder import recompute
from polypool.infra.checks import run_checks
from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.errors import InputError
from polypool.infra.registry import ADAPTATIONS, ENCODERS, TASKS
from polypool.pipelines.training.checkpoint import load_weights
from polypool.tasks.models.parts import is_adapted, without_adaptation
from polypool.tasks.run import Run
from polypool.testing.parts import AdaptationChecks


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


def built(name: str):
    encoder = ENCODERS.get("bert")(ENCODERS.get("bert").prepare((), name=name), name=name, width=6)
    encoder.load_pretrained()
    return encoder.eval()


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[1, 5, 7, 2], [1, 6, 2, 0]]), torch.tensor([[True] * 4, [True] * 3 + [False]])


def random_updates(encoder) -> None:
    torch.manual_seed(1)
    for name, weight in encoder.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(weight)


def test_lora_starts_unchanged_and_follows_its_formula(bert):
    plain, encoder = built(bert), built(bert)
    adapt(encoder, ADAPTATIONS.build("lora(r=3, alpha=6, parts='query dense')"))
    encoder.linear.load_state_dict(plain.linear.state_dict())
    assert torch.equal(encoder(*tokens())[0], plain(*tokens())[0]), "LoRA must start as the published model"
    random_updates(encoder)
    encoder, plain, changed = encoder.double(), plain.double(), 0
    for name, part in encoder.bert.named_modules():
        if hasattr(part, "base_layer"):
            a_RI, b_OR = part.lora_A["default"].weight, part.lora_B["default"].weight
            assert a_RI.shape[0] == b_OR.shape[1] == 3
            plain.bert.get_submodule(name).weight.data += 6 / 3 * b_OR @ a_RI
            changed += 1
    assert changed == 4, "expected query and three dense maps of one layer"
    torch.testing.assert_close(encoder(*tokens())[0], plain(*tokens())[0], rtol=1e-12, atol=1e-12)


@pytest.fixture
def run(tmp_path, bert) -> Run:
    made = make_corpus(tmp_path, train=16, val=8, test=8)
    data = replace(made.data, text_augment="", max_words=0)
    text = f"bert(name={bert!r}, width=16)"
    return replace(made, text=text, data=data, figures=False, optim=replace(made.optim, epochs=2, batch=8))


def test_frozen_weights_are_left_out_of_checkpoints(bert):
    encoder = built(bert)
    adapt(encoder, ADAPTATIONS.build("frozen"))
    trained = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert trained == {"linear.weight", "linear.bias"}
    assert left_out(encoder) == {f"bert.{name}" for name in encoder.bert.state_dict()}
    merge(encoder)
    assert all(weight.requires_grad for weight in encoder.parameters())


def test_lora_run_trains_saves_and_resumes_only_added_weights(run, bert, tmp_path):
    run = replace(run, adapt="lora(r=2)", checkpoint_every=1, optim=replace(run.optim, ema=0.9))
    whole = trainer_of(run, tmp_path / "whole")
    before = {name: x.clone() for name, x in whole.model.state_dict().items()}
    whole.train()
    published = left_out(whole.model)
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, before[name]) == (name in published), name
    kept = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert kept.keys() == before.keys() - published
    assert any(".lora_" in name for name in kept)

    report = FolderReport(fail_after=1)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(run, tmp_path / "part", report).train()
    again = trainer_of(run, tmp_path / "part")
    again.resume(report.last)
    again.train()
    assert same_weights(again.model.state_dict(), whole.model.state_dict())

    assets = json.loads((tmp_path / "whole" / "model" / "assets.json").read_text())
    adapter = TASKS.build(run.task, run, assets=assets)
    model = adapter.model()
    load_weights(model, tmp_path / "whole" / "model" / "model.safetensors")
    scored = adapter.evaluate(model, "test", run.protocol)
    assert scored.metrics["rsum"] == pytest.approx(whole.log.rows[-1][1]["whole/rsum"])
    merge(model)
    assert is_adapted(run)
    bare = without_adaptation(run)
    assert not is_adapted(bare)
    alone = TASKS.build(run.task, bare, assets=assets).model(pretrained=False)
    alone.load_state_dict(model.state_dict())
    found = adapter.evaluate(alone, "test", run.protocol)
    assert found.metrics["rsum"] == pytest.approx(scored.metrics["rsum"])

    torch.manual_seed(9)
    save_bert(Path(bert))
    with pytest.raises(InputError, match=r"trained on other weights of .*tiny-bert"):
        load_weights(adapter.model(), tmp_path / "whole" / "model" / "model.safetensors")
    torch.manual_seed(0)
    save_bert(Path(bert))


@pytest.mark.parametrize("kind", ["patches", "clip_text", "bert"])
def test_activation_recomputation_keeps_gradients(kind, tmp_path):
    torch.manual_seed(0)
    name = {"patches": save_vit, "clip_text": save_clip, "bert": save_bert}[kind](tmp_path / "model")
    part = ENCODERS.get(kind)
    assets = part.prepare(**({"name": name} if kind == "patches" else {"captions": (), "name": name}))
    encoder = part(assets, name=name, width=6, **({"size": 32} if kind == "patches" else {})).train()
    given = (torch.rand(2, 3, 32, 32), torch.ones(2, 4, dtype=torch.bool)) if kind == "patches" else tokens()
    gradients = []
    for again in (False, True):
        if again:
            recompute(encoder)
        encoder.zero_grad()
        torch.manual_seed(1)  # for dropout in transformers' attention
        with drawn(Draws(seed=0, step=0, first=0, samples=2)):
            encoder(*given)[0].square().sum().backward()
        gradients.append({name: weight.grad.clone() for name, weight in encoder.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


class Unmerged(Lora):
    """Broken: does not merge its updates."""

    def merge(self, model):
        """Do nothing."""


class Unkept(Lora):
    """Broken: marks none of its weights as added."""

    def is_added(self, name):
        return False


class Random(Lora):
    """Broken: does not start as the published model."""

    def change(self, model):
        super().change(model)
        random_updates(model)


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        (Lora, []),
        (Unmerged, ["a merged model gives the same output under the published names"]),
        (Unkept, ["it adds weights and freezes all others"]),
        (Random, ["an adapted model starts as the published one"]),
    ],
)
def test_adaptation_checks_detect_violations(part, broken):
    checks = AdaptationChecks("lora")
    checks.part = part()
    outcomes = [*run_checks(checks.checks())]
    assert [outcome.what for outcome in outcomes if outcome.passed is False] == broken
