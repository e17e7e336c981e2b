"""Poolings of several layers against recorded outputs of the authors' code."""

import pytest
import torch
from recorded import Row, hold_to_recorded, layer, rows

from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS

FUSION = {
    "query_D": "query_token",
    **layer("norm_query", "attn_block.norm_q"),
    "norm_key.weight": "attn_block.norm_k.weight",
    **layer("norm_value", "attn_block.norm_v"),
    **{f"{ours}.weight": f"attn_block.cross_attn.{ours[0]}.weight" for ours in ("query", "key", "value")},
    **layer("out", "attn_block.cross_attn.proj"),
    **layer("norm", "bn"),
    "norm.running_mean": "bn.running_mean",
    "norm.running_var": "bn.running_var",
}
PERCEIVER = {
    "latent_KD": "latents",
    **layer("norm", "cross_attend_blocks.0.norm"),
    **layer("norm_latents", "cross_attend_blocks.0.norm_context"),
    "query.weight": "cross_attend_blocks.0.fn.to_q.weight",
    "key.weight": rows("cross_attend_blocks.0.fn.to_kv.weight", 0, 15),
    "value.weight": rows("cross_attend_blocks.0.fn.to_kv.weight", 15, 30),
    "out.weight": "cross_attend_blocks.0.fn.to_out.weight",
    **layer("norm_inner", "cross_attend_blocks.1.norm"),
    **layer("widen", "cross_attend_blocks.1.fn.net.0"),
    **layer("narrow", "cross_attend_blocks.1.fn.net.2"),
}
LAYERS = [
    Row(case="layer_fusion/kept", spec="layer_fusion(heads=3)", names=FUSION),
    Row(case="layer_fusion/training", spec="layer_fusion(heads=3, dropout=0)", names=FUSION, training=True),
    Row(case="perceiver/last", spec="perceiver(latents=4, heads=3, head_width=5)", names=PERCEIVER),
    Row(
        case="perceiver/multi",
        spec="perceiver(latents=4, heads=3, head_width=5, positions=9)",
        names=PERCEIVER | {"position_LD": "pos_emb.weight"},
    ),
]


@pytest.mark.parametrize("row", LAYERS, ids=str)
def test_layer_poolings_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "layers", row)


@pytest.mark.parametrize("training", [True, False])
def test_layer_fusion_dropout_applies_only_in_training(training):
    module = AGGREGATORS.build("layer_fusion(heads=2, dropout=1)", 6).train(training)
    vector_BD = module(*random_sets([5, 3], 6)).vectors
    assert torch.equal(*vector_BD) is training, "dropout=1 must leave only the output bias, in training only"
