"""Aggregator parameters: contract checks with unusual values; refused values."""

import pytest
import torch
from explicit import trained
from torch import nn

from polypool.aggregators.contract import check_aggregator
from polypool.aggregators.random_sets import random_sets
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


def specs(text: str) -> list[str]:
    return [spec.strip() for spec in text.replace("\n", "|").split("|") if spec.strip()]


# parameters that add weights or select another branch; small widths for speed
CONTRACT = """
attention | kmax(k=1) | kmax(k=3) | late | late(factor=2) | late(budget=3) | conv1d(positions=3)
sequential(layers=2, heads=2, positions=4) | gcn(then=kmax(k=2)) | gcn(then=late) | gcn(then=probabilistic)
pswe(points=1) | pswe(points=4) | fspool(pieces=1) | fspool(pieces=3)
adpool | adpool(token=False) | adpool(embedding=False) | adpool(balance=random) | adpool(per_channel=False, relu=False)
gpo | gpo(encoding=index, longest=16) | gpo(decoder=interpolate, positions=6, per_channel=True)
gpo(decoder=transformer, positions=10, feature_conditioned=True, per_channel=True)
netvlad(k=3) | nextvlad(clusters=2, groups=3) | salad(k=2, hidden=5) | otke(k=3, eps=0.3, iterations=4)
map(k=3, heads=2, hidden=2) | ep(queries=3) | simpool | simpool(gamma=1.5) | aim(k=2, heads=3) | abmilp(hidden=4)
abmilp(gated=False) | cait(layers=3, heads=2) | dino_block(heads=2) | pma(k=3, heads=2)
set_transformer_pp(k=2, layers=1, points=3, heads=2) | self_query(heads=2) | self_query(query=cls, heads=2)
transmil(heads=2) | dsmil(k=2, hidden=5) | acmil(k=2, hidden=3, top=2)
layer_fusion(heads=2, dropout=0) | layer_fusion(heads=3, expansion=1) | perceiver(latents=3, heads=2, head_width=5)
perceiver(latents=2, heads=3, positions=4)
set_transformer(k=2, points=3, heads=2) | boq(k=2, queries=3, heads=2) | qformer(k=3, heads=2)
tokenlearner(k=3, hidden=5) | constbert(k=3, positions=4) | agc(k=3, queries=2, heads=2)
video_colbert(layers=2, heads=2, hidden=2)
laps(k=2) | ts2_select(k=2, sigma=0.3) | text_topk(k=2) | text_softmax(temperature=0.2)
xpool(heads=2) | pie(k=1) | pie(k=3, width=5) | pie(global_feature=max, hidden=3)
score_attention(k=1, heads=2) | score_attention(k=2, heads=1, kv_div=3)
slots(k=1, iterations=2, heads=2, head_width=3, positions=True)
slots(k=2, iterations=2, width=5, heads=2, head_width=3)
transformer_set(k=2, iterations=2, heads=2, head_width=2)
probabilistic(mean=mean) | probabilistic(mean=pma(k=1, heads=2))
"""


OTHERS = sorted({*AGGREGATORS.names()} - {spec.partition("(")[0] for spec in specs(CONTRACT)})


@pytest.mark.parametrize("spec", [*specs(CONTRACT), *OTHERS])
def test_aggregator_passes_contract_check(spec):
    check_aggregator(trained(spec, 6).float(), 6)


def test_dropout_masks_are_drawn_per_sample():
    with torch.device("meta"):
        modules = {name: AGGREGATORS.build(name, 1024).modules() for name in AGGREGATORS.names()}
    plain = lambda part: type(part) is nn.Dropout and part.p > 0  # noqa: E731
    assert not {name for name, parts in modules.items() if any(map(plain, parts))}


SHARES = """
softpool | lip | cls | self_attention | map(k=2, heads=2) | ep(queries=2) | simpool | abmilp | set_transformer(heads=2)
dsmil(k=2) | acmil | self_query(query=cls, heads=2) | adpool | layer_fusion(heads=2) | perceiver(positions=4)
"""


@pytest.mark.parametrize("spec", specs(SHARES))
def test_weights_are_nonnegative_and_sum_to_one(spec):
    x_BND, mask_BN = random_sets([5, 1, 9], 6)
    mask_BN[2, 3] = False
    module = trained(spec, 6).float()
    weights = module(x_BND.masked_fill(~mask_BN[..., None], float("nan")), mask_BN).weights
    total = weights.sum(dim=-1 if module.weights_over == "embeddings" else 1)
    assert (weights >= 0).all()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_parameter_counts_match_published_ones():
    for spec, dim, weights in (
        # table 1 of VSE-infinity: Seq2Seq 6.3 M, SelfAttn 3.2 M, GCN+AvgPool 4.2 M, GCN+Seq2Seq 23.1 M
        ("seq2seq", 1024, 3 * 1024 * (1024 + 1024 + 2)),
        ("self_attention", 1024, 3 * 1024 * 1025 + 1),
        ("gcn", 1024, 4 * 1024 * 1025),
        ("gcn(then=seq2seq, layers=4)", 1024, 16 * 1024 * 1025 + 3 * 1024 * 2050),
        ("gpo", 1024, 12_704),
        ("adpool", 1024, 1_050_625),
        ("adpool(per_channel=False)", 1024, 2_050),
        # without the biases that the softmax cancels
        ("score_attention", 512, 788_481 - (512 + 512 + 1)),
        ("score_attention(kv_div=4)", 512, 197_121 - (128 + 128 + 1)),
    ):
        with torch.device("meta"):
            module = AGGREGATORS.build(spec, dim)
        assert sum(parameter.numel() for parameter in module.parameters()) == weights, spec


BAD = {
    "must": """
        kmax(k=0) | kmax(k='five') | logsumexp(sharpness=0) | gem(p=-1) | gem(eps=0) | conv1d(positions=0) | lip(gate=0)
        gcn(layers=0) | fspool(pieces=0) | fspool(pieces=2.5) | pswe(points=0) | netvlad(k=0) | nextvlad(groups=5)
        nextvlad(clusters=0) | salad(k=0) | salad(iterations=0) | otke(eps=0) | otke(iterations=0) | map(k=0)
        map(heads=5) | ep(queries=3) | ep(queries=0) | simpool(gamma=0) | aim(heads=0) | aim(k=True)
        abmilp(hidden=0) | cait(layers=0) | dino_block(heads=3) | pma(k=0) | set_transformer(points=0)
        set_transformer(layers=0) | boq(queries=0) | boq(heads=5) | qformer(k=0) | tokenlearner(k=0)
        tokenlearner(hidden=0) | constbert(k=0) | constbert(positions=0)
        agc(k=0) | agc(queries=0) | agc(heads=3) | video_colbert(heads=3) | video_colbert(layers=0)
        video_colbert(hidden=0) | video_colbert(expansion=0)
        laps(k=0) | laps(ratio=0) | laps(ratio=1.5) | ts2_select(k=0) | ts2_select(sigma=0)
        text_topk(k=0) | text_softmax(temperature=0) | xpool(heads=3)
        self_query(heads=3) | self_query(query=max) | set_transformer_pp(k=0) | set_transformer_pp(points=0)
        set_transformer_pp(layers=0) | transmil(heads=3) | transmil(heads=0) | set_transformer_pp(heads=3)
        dsmil(k=0) | dsmil(hidden=0.5) | acmil(k=0) | acmil(hidden=0) | acmil(top=0) | acmil(drop=1.5)
        acmil(drop=-1) | layer_fusion(heads=3) | layer_fusion(expansion=0) | perceiver(latents=0) | perceiver(heads=0)
        perceiver(head_width=0) | perceiver(positions=-1)
    """,
    "must be|balance": """
        adpool(token=False, embedding=False) | adpool(balance=1.5) | adpool(balance=fixed)
    """,
    "at least 1": """
        pie(k=0) | pie(hidden=0) | pie(width=-1) | slots(k=0) | slots(iterations=0) | slots(width=0)
    """,
    "one vector per set": """
        pie(global_feature=pie) | salad(global_feature=slots) | slots(global_feature=score_attention)
        slots(global_feature=slots)
    """,
    "score_attention": """
        score_attention(heads=3) | score_attention(k=0) | score_attention(heads=0) | score_attention(kv_div=3)
        score_attention(heads=8, kv_div=2)
    """,
    "positions": "slots(positions=(0, 2)) | slots(positions='line')",
    "late": "late(factor=0.5) | late(factor=nan) | late(budget=0)",
    "nothing": "slots(global_feature=nothing)",
    "above 0": "gpo(temperature=0)",
    "unknown decoder 'lstm'": "gpo(decoder=lstm)",
    "Did you mean 'sinusoidal'": "gpo(encoding=sinusoids)",
    "even": "gpo(positions=7)",
    "4 divides": "gpo(decoder=transformer, positions=6)",
    "reads encodings": "gpo(decoder=interpolate, feature_conditioned=True)",
}


def test_bad_parameters_are_refused():
    for message, text in BAD.items():
        for spec in specs(text):
            with pytest.raises(InputError, match=message):
                AGGREGATORS.build(spec, 8)
    for spec, dim in (("slots(positions=True)", 7), ("slots(positions=(2, 2))", 6)):
        with pytest.raises(InputError, match="positions"):
            AGGREGATORS.build(spec, dim)
