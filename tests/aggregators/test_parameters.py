"""Parameters of every aggregator: the contract under unusual ones, numbers of weights, and bad ones."""

from __future__ import annotations

import pytest
import torch
from explicit import trained

from polypool.aggregators.contract import check_aggregator
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


def specs(text: str) -> list[str]:
    return [spec.strip() for spec in text.replace("\n", "|").split("|") if spec.strip()]


NARROW = "slots(head_width=3) | transformer_set(head_width=3)"  # faster gradient checks
UNUSUAL = """
kmax(k=1) | kmax(k=3) | fspool(pieces=1) | fspool(pieces=3) | late(factor=2) | late(budget=3) | gcn(then=late)
pie(k=1) | pie(k=3, width=5) | pie(global_feature=max, hidden=3) | score_attention(k=3, heads=2)
score_attention(k=2, heads=2, kv_div=2) | slots(k=1, head_width=3, positions=True) | slots(width=5, head_width=3)
slots(head_width=3, global_feature=kmax(k=2)) | transformer_set(width=5, head_width=3, positions=True)
"""
BUILT_IN = [name for name in AGGREGATORS.names() if name not in ("slots", "transformer_set")]


@pytest.mark.parametrize("spec", [*BUILT_IN, *specs(NARROW), *specs(UNUSUAL)])
def test_contract(spec):
    torch.manual_seed(0)
    check_aggregator(AGGREGATORS.build(spec, 8), 8)


@pytest.mark.parametrize(
    "spec",
    specs("""
    gem | conv1d | conv1d(positions=3) | lip | adapool | self_attention | seq2seq | gcn | gcn(then=seq2seq, layers=2)
    gcn(then=kmax(k=2)) | sequential(layers=2, heads=2, positions=4)
    """),
)
def test_contract_after_training(spec):
    check_aggregator(trained(spec, 6).float(), 6)


BLOCK = 12 * 384**2 + 12 * 384  # maps of queries, keys, values and out, an MLP, two norms; keys without bias


@pytest.mark.parametrize(
    ("spec", "dim", "weights"),
    [
        # table 1 of VSE-infinity: Seq2Seq 6.3 M, SelfAttn 3.2 M, GCN+AvgPool 4.2 M, GCN+Seq2Seq 23.1 M
        ("seq2seq", 1024, 3 * 1024 * (1024 + 1024 + 2)),
        ("self_attention", 1024, 3 * 1024 * 1025 + 1),
        ("gcn", 1024, 4 * 1024 * 1025),
        ("gcn(then=seq2seq, layers=4)", 1024, 16 * 1024 * 1025 + 3 * 1024 * 2050),
        ("lip", 1024, 1024 * 1024 + 2 * 1024),
        ("conv1d(positions=36)", 1024, 36 * 1024),
        ("gem", 1024, 1),
        ("adapool", 1024, 1),
        ("adpool", 1024, 1_050_625),
        ("adpool(per_channel=False)", 1024, 2_050),
        ("fspool", 1024, 21_504),
        # all but the biases of keys, which shift every score alike
        ("score_attention", 512, 788_481 - (512 + 512 + 1)),
        ("score_attention(kv_div=4)", 512, 197_121 - (128 + 128 + 1)),
        ("netvlad", 384, 2 * 8 * 384 + 8),
        (
            "nextvlad",
            384,
            768 * 385 + 8 * 769 + 768 * 512 + 2 * 512 + 64 * 96 + 2 * 6144 + 384 * 6145,
        ),
        ("salad", 384, 2 * (512 * 385 + 384 * 513) + 512 * 385 + 8 * 513 + 1),
        ("otke", 384, 8 * 384),
        ("map", 384, 384 + 4 * 384**2 + 3 * 384 + 2 * 384 + 8 * 384**2 + 5 * 384),
        ("ep", 384, 384**2 + 8 * 384),
        ("simpool", 384, 2 * 384**2 + 2 * 384),
        ("aim", 384, 2 * 384**2 + 384),
        ("abmilp", 384, 2 * 384 * 385 + 384),
        ("esa", 384, 384**2),
        ("cait", 384, 2 * (BLOCK + 2 * 384) + 3 * 384),
        ("dino_block", 384, BLOCK + 384),
        ("pma", 384, 4 * 384**2 + 3 * 384 + 4 * 384 + 384),
        ("set_transformer", 384, 6 * (4 * 384**2 + 7 * 384) + 2 * 32 * 384 + 384 + 384 * 385),
        ("boq", 384, 2 * (20 * 384**2 + 25 * 384 + 32 * 384) + 2 * 384 + 65),
        ("qformer", 384, 4 * 384 + 2 * 384 + 2 * (16 * 384**2 + 2 * 3 * 384 + 5 * 384 + 6 * 384)),
        ("tokenlearner", 384, 2 * 384 + 64 * 385 + 8 * 64),
        ("laps", 384, 2 * 384 + 76 * 385 + 8 * 76 + 1),
        ("ts2_select", 384, 2 * 384 + 192 * 384 + 384 * 192 + 192),
        ("text_topk", 384, 0),
        ("text_softmax", 384, 0),
        ("xpool", 384, 5 * 384**2 + 4 * 384 + 6 * 384),
        ("seq_lstm", 384, 8 * 384**2 + 8 * 384),
    ],
)
def test_number_of_weights(spec, dim, weights):
    with torch.device("meta"):
        module = AGGREGATORS.build(spec, dim)
    assert sum(parameter.numel() for parameter in module.parameters()) == weights


BAD = {
    "must": """
        kmax(k=0) | kmax(k='five') | logsumexp(sharpness=0) | gem(p=-1) | gem(eps=0) | conv1d(positions=0) | lip(gate=0)
        gcn(layers=0) | fspool(pieces=0) | fspool(pieces=2.5) | netvlad(k=0) | nextvlad(groups=5)
        nextvlad(clusters=0) | salad(k=0) | salad(iterations=0) | otke(eps=0) | otke(iterations=0) | map(k=0)
        map(heads=5) | ep(queries=3) | ep(queries=0) | simpool(gamma=0) | aim(heads=0) | aim(k=True)
        abmilp(hidden=0) | cait(layers=0) | dino_block(heads=3) | pma(k=0) | set_transformer(points=0)
        set_transformer(layers=0) | boq(queries=0) | boq(heads=5) | qformer(k=0) | tokenlearner(k=0)
        tokenlearner(hidden=0) | laps(k=0) | laps(ratio=0) | laps(ratio=1.5) | ts2_select(k=0) | ts2_select(sigma=0)
        text_topk(k=0) | text_softmax(temperature=0) | xpool(heads=3)
    """,
    "must be|balance": """
        adpool(token=False, embedding=False) | adpool(balance=1.5) | adpool(balance=fixed)
    """,
    "at least 1": """
        pie(k=0) | pie(hidden=0) | pie(width=-1) | slots(k=0) | slots(iterations=0) | slots(width=0)
    """,
    "one vector": """
        pie(global_feature=pie) | salad(global_feature=slots) | slots(global_feature=score_attention)
        slots(global_feature=slots)
    """,
    "score_attention": """
        score_attention(heads=3) | score_attention(k=0) | score_attention(heads=0) | score_attention(kv_div=3)
        score_attention(heads=8, kv_div=2)
    """,
    "positions": "slots(positions=(0, 2)) | slots(positions='line')",
    "nothing": "slots(global_feature=nothing)",
    "above 0": "gpo(temperature=0)",
    "unknown decoder 'lstm'": "gpo(decoder=lstm)",
    "Did you mean 'sinusoidal'": "gpo(encoding=sinusoids)",
    "even": "gpo(positions=7)",
    "4 divides": "gpo(decoder=transformer, positions=6)",
    "reads encodings": "gpo(decoder=interpolate, feature_conditioned=True)",
}


@pytest.mark.parametrize(
    ("spec", "message"), [(spec, message) for message, text in BAD.items() for spec in specs(text)]
)
def test_a_bad_parameter_is_refused(spec, message):
    with pytest.raises(InputError, match=message):
        AGGREGATORS.build(spec, 8)


@pytest.mark.parametrize(("spec", "dim"), [("slots(positions=True)", 7), ("slots(positions=(2, 2))", 6)])
def test_positions_need_a_width_that_can_be_divided(spec, dim):
    with pytest.raises(InputError, match="positions"):
        AGGREGATORS.build(spec, dim)
