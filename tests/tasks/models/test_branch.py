"""Pooling of both modalities, including aggregators with the other modality as context."""

import pytest
import torch
from small_models import small_parts
from torch import nn
from toy import toy_run

from polypool.aggregators.aggregator import Context
from polypool.aggregators.random_sets import random_sets
from polypool.encoders.encoder import Encoder
from polypool.encoders.text.bert import StoredText
from polypool.encoders.visual.stored import Grid, Regions
from polypool.infra.registry import AGGREGATORS
from polypool.tasks.models.branch import Branch, pool_both
from polypool.tasks.models.pair_encoder import PairEncoder
from polypool.tasks.models.parts import retrieval_model
from polypool.tasks.questions.vqa_model import vqa_model
from polypool.tasks.similarities.vectors import l2_normalise

DIM = 8


class Sets(Encoder):
    """Returns its inputs."""

    width = DIM

    def forward(self, x: torch.Tensor, mask_BN: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, mask_BN


def branch(spec: str) -> Branch:
    return Branch(Sets(), AGGREGATORS.build(spec, DIM)).eval()


SPECS = [
    ("xpool", "mean"),
    ("mean", "xpool"),
    ("score_attention(heads=2, k=2)", "score_attention(heads=2, k=2)"),
    ("gcn(then=score_attention(heads=2))", "pie(k=2)"),
]


@pytest.mark.parametrize("specs", SPECS)
def test_pooling_all_pairs_matches_single_pairs(specs):
    torch.manual_seed(0)
    branches = tuple(map(branch, specs))
    visual, text = random_sets([4, 1, 3], DIM), random_sets([2, 5], DIM, seed=5)
    pairs = pool_both(branches, (visual, text), all_pairs=True)
    for q in range(3):
        for g in range(2):
            pair = [tuple(part[[i]] for part in sets) for sets, i in ((visual, q), (text, g))]
            for every, one in zip(pairs, pool_both(branches, tuple(pair)), strict=True):
                torch.testing.assert_close(every[q, g], one[0])


def test_context_side_is_pooled_once():
    branches, calls = (branch("xpool"), branch("mean")), []
    branches[1].aggregator.register_forward_hook(lambda *call: calls.append(call))
    pool_both(branches, (random_sets([4, 1], DIM), random_sets([2, 5], DIM)), all_pairs=True)
    assert len(calls) == 1


def test_gcn_runs_once_per_set_for_all_contexts():
    torch.manual_seed(0)
    branches, sizes = (branch("gcn(then=score_attention(heads=2))"), branch("mean")), []
    branches[0].aggregator.layers[0].register_forward_hook(
        lambda m, inputs, out: sizes.append(len(inputs[0]))
    )
    pool_both(branches, (random_sets([4, 1, 3], DIM), random_sets([2, 5], DIM)), all_pairs=True)
    assert sizes == [3]


def batch() -> dict[str, torch.Tensor]:
    visual, visual_mask = random_sets([4, 1, 3], 6)
    text_mask = torch.arange(5) < torch.tensor([2, 5, 1])[:, None]
    text = torch.randint(5, 25, (3, 5), generator=torch.Generator().manual_seed(0))
    return {"visual": visual, "visual_mask": visual_mask, "text": text, "text_mask": text_mask}


def test_retrieval_xpool_weights_regions_by_text_vector():
    run = toy_run(aggregator="xpool", text_aggregator="mean")
    torch.manual_seed(0)
    model = retrieval_model(run, small_parts(run)).eval()
    assert isinstance(model, PairEncoder)
    visual, text = model.encode_visual(batch()), model.encode_text(batch())
    sim_VT = model.score(visual, text)
    text_TD = model.text.aggregator(*text).vectors
    for v in range(3):
        own = [part[[v] * 3] for part in visual]
        visual_TD = model.visual.aggregator(*own, context=Context(text_TD)).vectors
        expected_T = (l2_normalise(visual_TD) * l2_normalise(text_TD)).sum(dim=1)
        torch.testing.assert_close(sim_VT[v], expected_T)
    sim_VT.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if isinstance(p, nn.Parameter))


def test_vqa_xpool_weights_regions_by_question_vector():
    run = toy_run(aggregator="xpool", text_aggregator="mean", objective="bce")
    torch.manual_seed(0)
    model = vqa_model(run, small_parts(run), answers=4).eval()
    inputs = batch()
    text = model.text.encoder(inputs["text"], inputs["text_mask"])
    visual = model.visual.encoder(inputs["visual"], inputs["visual_mask"])
    text_BD = model.text.aggregator(*text).vectors
    visual_BD = model.visual.aggregator(*visual, context=Context(text_BD)).vectors
    fused = model.fusion(model.visual_feed(visual_BD), model.text_feed(text_BD))
    torch.testing.assert_close(model(inputs), model.classifier(fused))


class Rectified(Grid):
    """A subclass that applies a ReLU after the affine map."""

    def forward(self, x_BNF: torch.Tensor, mask_BN: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x_BND, mask_BN = super().forward(x_BNF, mask_BN)
        return x_BND.relu(), mask_BN


@pytest.mark.parametrize(
    ("aggregator", "encoder", "rows"),
    [
        ("mean", Grid, 3),
        ("mean", StoredText, 3),
        ("cls", Grid, 3),
        ("mean", Regions, 12),
        ("mean", Rectified, 12),
        ("max", Grid, 12),
        ("attention", Grid, 12),
    ],
)
def test_averaging_precedes_affine_projection(aggregator, encoder, rows):
    assets = {"dim": 6, "statistics": {"mean": [0.3] * 6, "std": [1.5] * 6}}
    torch.manual_seed(0)
    branch = Branch(encoder(assets, width=DIM, standardise=True), AGGREGATORS.build(aggregator, DIM)).double()
    x_BNF, mask_BN = random_sets([4, 1, 3], 6)
    mapped = []
    getattr(branch.encoder, "linear" if encoder is StoredText else "fc").register_forward_pre_hook(
        lambda _, x: mapped.append(x[0].shape[0])
    )
    weights = [*branch.parameters()]
    ours = branch(x_BNF.double(), mask_BN).vectors
    assert mapped == [rows]
    expected = l2_normalise(branch.pool(branch.encoder(x_BNF.double(), mask_BN)).vectors)
    torch.testing.assert_close(ours, expected)
    for gradients in zip(
        *(torch.autograd.grad(v.cos().sum(), weights) for v in (ours, expected)), strict=True
    ):
        torch.testing.assert_close(*gradients)
