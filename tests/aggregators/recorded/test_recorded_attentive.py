"""Poolings by transformer blocks against recorded outputs of the authors' code."""

import pytest
from recorded import Pick, Row, hold_to_recorded, layer, rows


def norm(ours: str, theirs: str) -> dict[str, Pick]:
    """Map our parameters of a set norm to theirs."""
    return {f"{ours}.weight": f"{theirs}.weights", f"{ours}.bias": f"{theirs}.biases"}


def block(ours: str, theirs: str) -> dict[str, Pick]:
    """Map our parameters of an attention block to theirs."""
    found: dict[str, Pick] = {f"{ours}.key.weight": f"{theirs}.fc_k.weight"}
    for mine, other in (("query", "fc_q"), ("value", "fc_v"), ("row", "fc_o")):
        found |= layer(f"{ours}.{mine}", f"{theirs}.{other}")
    return found


SET_TRANSFORMER_PP: dict[str, Pick] = {
    "seed_1KD": "dec.0.S",
    **norm("norm", "enc.2"),
    **block("pool", "dec.0.mab"),
    **block("among", "dec.1.mab"),
    **layer("out", "dec.2"),
}
for i in range(2):
    SET_TRANSFORMER_PP[f"induced.{i}.point_1PD"] = f"enc.{i}.I"
    for mine, theirs in (("gather", "mab0"), ("spread", "mab1")):
        ours, other = f"induced.{i}.{mine}", f"enc.{i}.{theirs}"
        SET_TRANSFORMER_PP |= block(ours, other)
        SET_TRANSFORMER_PP |= norm(f"{ours}.norm", f"{other}.normK")
        SET_TRANSFORMER_PP |= norm(f"{ours}.norm_row", f"{other}.norm0")
    SET_TRANSFORMER_PP |= norm(f"{ours}.norm_query", f"{other}.normQ")
SELF_QUERY = {
    "query.weight": "attn.Q.weight",
    "key.weight": rows("attn.KV.weight", 0, 8),
    "value.weight": rows("attn.KV.weight", 8, 16),
    "out.weight": "attn.out.weight",
}
TRANSMIL = {
    "token_D": "cls_token",
    **layer("norm", "norm"),
    **layer("places.wide", "pos_layer.proj"),
    **layer("places.middle", "pos_layer.proj1"),
    **layer("places.narrow", "pos_layer.proj2"),
}
for mine, theirs in (("first", "layer1"), ("second", "layer2")):
    TRANSMIL |= {
        **layer(f"{mine}.norm", f"{theirs}.norm"),
        f"{mine}.query_key_value.weight": f"{theirs}.attn.to_qkv.weight",
        **layer(f"{mine}.out", f"{theirs}.attn.to_out.0"),
        f"{mine}.near.weight": f"{theirs}.attn.res_conv.weight",
    }
TABLE = [
    Row(
        case="set_transformer_pp/plain",
        spec="set_transformer_pp(k=2, points=3, heads=2)",
        names=SET_TRANSFORMER_PP,
    ),
    Row(case="self_query/mean", spec="self_query(heads=2)", names=SELF_QUERY),
    Row(case="self_query/cls", spec="self_query(query=cls, heads=2)", names=SELF_QUERY),
    *(
        Row(case=f"transmil/{size}", spec="transmil(heads=2)", names=TRANSMIL)
        for size in ("two", "five", "seven")
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_transformer_poolings_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "attentive", row)
