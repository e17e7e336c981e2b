"""What an objective learns is trained: in the optimiser, in checkpoints, in the model's file, after a restart too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from toy import WORDS, FolderReport, Toy, toy_run, trainer_of

from polypool.encoders.text.bigru import BiGRU
from polypool.infra.errors import InputError
from polypool.infra.spec import trust_specs
from polypool.pipelines.training.checkpoints.format import load_weights, save_weights
from polypool.pipelines.training.loop import Trainer
from polypool.tasks.models.branch import Branch
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts, retrieval_model, text_inputs
from polypool.tasks.models.retrieval_model import TRAINING_ONLY
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Cosine
from polypool.tasks.similarities.vectors import Embeddings


class Margin(Objective):
    """One part of a stranger's: a learned weight of each direction, and what was drawn so far in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, sim_VT, row_T, positive_VT, *, epoch):
        self.seen += len(row_T)
        sides = torch.stack([-sim_VT.logsumexp(dim).mean() for dim in (0, 1)])
        return {"loss": (self.weight.softmax(dim=0) * sides).sum()}


class Offset(Regulariser):
    name = "offset"

    def __init__(self, *, weight: float = 2.0) -> None:
        super().__init__(weight=weight)
        self.offset = nn.Parameter(torch.tensor(0.25))

    def forward(self, visual, text):
        return (visual.vectors.mean() - text.vectors.mean() - self.offset).square()


def trainer(run, folder, report=None) -> Trainer:
    return trainer_of(run, folder, adapter=Toy(run), report=report)


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        ("infonce(temperature=0.07, learned=True)", {"log_scale"}),
        ("siglip", {"log_scale", "bias"}),
        ("pcmepp", {"scale", "bias"}),
        (f"{__name__}:Margin", {"weight", "seen"}),
    ],
)
def test_it_is_trained_saved_and_goes_on_after_a_restart(tmp_path, objective, names):
    trust_specs(objective)
    run = toy_run(objective=objective, checkpoint_every=2)
    whole = trainer(run, tmp_path / "whole")
    first = {name: x.clone() for name, x in whole.model.state_dict().items()}
    whole.train()
    last = whole.model.objective.state_dict()
    assert last.keys() == names
    assert not any(torch.equal(first[f"objective.{name}"], x) for name, x in last.items())
    saved = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert {f"objective.{name}" for name in names} <= saved.keys()

    report = FolderReport(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        trainer(run, tmp_path / "part", report).train()
    again = trainer(run, tmp_path / "part")
    again.resume(report.last)
    again.train()
    for name, x in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], x), name


def test_its_learning_rate_can_be_chosen(tmp_path):
    run = toy_run(objective="siglip", optim={"lr_factors": (("objective.bias", 0.0), ("objective", 0.5))})
    trained = trainer(run, tmp_path)
    factor = {id(p): group["factor"] for group in trained.optimizer.param_groups for p in group["params"]}
    assert factor[id(trained.model.objective.log_scale)] == 0.5
    trained.train()
    assert trained.model.objective.bias.item() == -10
    assert trained.model.objective.log_scale.item() != pytest.approx(math.log(10), abs=1e-4)


@pytest.mark.parametrize(
    "objective", ["infonce(temperature=0.07, learned=True)", "siglip", "adopt", "triplet"]
)
def test_under_autocast_scores_loss_and_what_is_learnt_are_in_single_precision(objective):
    run = toy_run(objective=objective)
    torch.manual_seed(0)
    model, batch = Toy(run).model(), Toy(run).data("train").batch(np.arange(8), seed=0, epoch=0)
    seen: list[Tensor] = []
    model.objective.register_forward_hook(lambda _, inputs, terms: seen.extend([inputs[0], terms["loss"]]))
    model.objective.register_forward_pre_hook(lambda *_: seen.append(torch.ones(2, 2) @ torch.ones(2, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        model(batch, epoch=0.0)["loss"].backward()
    assert [x.dtype for x in seen] == [torch.float32] * 3  # products too: autocast is off
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.objective.parameters())


def test_regularisers_are_weighted_parts_of_the_loss_and_learn():
    toy = Toy(toy_run())
    plain = toy.model()
    model = DualEncoder(plain.visual, plain.text, Cosine(), plain.objective, [Offset()])
    batch = toy.data("train").batch(np.arange(8), seed=0, epoch=0)
    model.eval()
    terms, without = model(batch, epoch=0.0), plain.eval()(batch, epoch=0.0)
    torch.testing.assert_close(terms["loss"], without["loss"] + 2.0 * terms["offset"])
    terms["loss"].backward()
    assert model.regularisers[0].offset.grad.abs() > 0
    assert "regularisers.0.offset" in model.state_dict()
    assert "offset" not in without


def test_a_file_without_what_only_training_needs_is_loaded_where_that_is_allowed(tmp_path):
    run = toy_run(objective="siglip")
    old, file = Toy(toy_run()).model(), tmp_path / "old.safetensors"
    save_weights(old, file)
    model = Toy(run).model()
    with pytest.raises(InputError, match=r"missing objective.bias, objective.log_scale; unexpected none"):
        load_weights(model, file)
    load_weights(model, file, optional=TRAINING_ONLY)
    assert model.objective.bias.item() == -10
    for name, x in old.state_dict().items():
        assert torch.equal(model.state_dict()[name], x)
    bare = nn.Module()
    bare.objective = model.objective
    save_weights(bare, file)
    with pytest.raises(InputError, match=r"missing \['text\."):
        load_weights(model, file, optional=TRAINING_ONLY)


class Weighed(DualEncoder):
    """A model of a stranger's: it reads the words of captions, and learns how much its scores count."""

    def __init__(self, parts: Parts, *, gain: float = 1.0) -> None:
        visual, text = parts.visual(), parts.text()
        branches = (
            Branch(visual, parts.visual_aggregator(visual.width)),
            Branch(text, parts.text_aggregator(text.width)),
        )
        similarity = parts.similarity(*(branch.aggregator for branch in branches))
        super().__init__(*branches, similarity, parts.objective(), parts.regularisers())
        self.gain = nn.Parameter(torch.tensor(gain))

    def score(self, visual: Embeddings, text: Embeddings) -> Tensor:
        return self.gain * super().score(visual, text)


def test_a_model_of_ones_own_is_named_by_a_run():
    toy = Toy(toy_run(objective="siglip"))
    run = replace(toy.run, model=f"{__name__}:Weighed(gain=3.0)")
    trust_specs(run.model)
    torch.manual_seed(0)
    plain = toy.model().eval()
    parts = Parts(run, visual=lambda: plain.visual.encoder, text=lambda: plain.text.encoder)
    torch.manual_seed(0)
    model = retrieval_model(run, parts)
    assert isinstance(model, Weighed)
    model.load_state_dict(plain.state_dict(), strict=False)
    batch = toy.data("train").batch(np.arange(8), seed=0, epoch=0)
    torch.testing.assert_close(
        model.eval().score_batch(batch).sim_VT, 3 * plain.eval().score_batch(batch).sim_VT
    )
    model(batch, epoch=0.0)["loss"].backward()
    assert model.gain.grad.abs() > 0
    captions = text_inputs(run, ["w1 w2 w3", "w4"], BiGRU.tokenizer({"words": WORDS}))
    assert captions.batch(np.arange(2))["text_mask"].sum(dim=1).tolist() == [5, 3]
    limited = replace(run, data=replace(run.data, max_words=1))
    captions = text_inputs(limited, ["w1 w2 w3", "w4"], BiGRU.tokenizer({"words": WORDS}))
    assert captions.batch(np.arange(2))["text_mask"].sum(dim=1).tolist() == [3, 3]


def test_what_is_no_retrieval_model_is_refused():
    run = toy_run(model=f"{__name__}:Margin")
    trust_specs(run.model)
    for build in (
        lambda: retrieval_model(run, Parts(run, visual=None, text=None)),
        lambda: text_inputs(run, [], None),
    ):
        with pytest.raises(InputError, match=r"RetrievalModel"):
            build()
