"""Aggregators relating elements to each other or to a text, against recorded outputs of the authors' code."""

import pytest
from recorded import Pick, Row, hold_to_recorded, layer
from torch.nn.functional import normalize

GRU = [f"{name}_{of}_l0" for name in ("weight", "bias") for of in ("ih", "hh")]
GCN: dict[str, Pick] = {}
for i in range(2):
    for mine, theirs in (("receive", "theta"), ("send", "phi"), ("message", "g"), ("update", "W")):
        GCN |= layer(f"layers.{i}.{mine}", f"{i}.{theirs}")
SELF_ATTENTION = {"gate": "gamma"}
for mine in ("query", "key", "value"):
    SELF_ATTENTION |= layer(mine, f"{mine}_conv")
SEQUENTIAL: dict[str, Pick] = {"position_PD": "positions.weight"}
for i in range(2):
    mine, theirs = f"layers.{i}", f"transformer.resblocks.{i}"
    SEQUENTIAL |= {
        f"{mine}.query_key_value.weight": f"{theirs}.attn.in_proj_weight",
        f"{mine}.query_key_value.bias": f"{theirs}.attn.in_proj_bias",
        **layer(f"{mine}.out", f"{theirs}.attn.out_proj"),
        **layer(f"{mine}.norm", f"{theirs}.ln_1"),
        **layer(f"{mine}.norm_mlp", f"{theirs}.ln_2"),
        **layer(f"{mine}.up", f"{theirs}.mlp.c_fc"),
        **layer(f"{mine}.down", f"{theirs}.mlp.c_proj"),
    }
XPOOL = {
    **layer("query", "cross_attn.q_proj"),
    "key.weight": "cross_attn.k_proj.weight",
    **layer("value", "cross_attn.v_proj"),
    **layer("out", "cross_attn.out_proj"),
    **layer("linear", "linear_proj"),
    **layer("norm", "layer_norm1"),
    **layer("norm_got", "layer_norm2"),
    **layer("norm_out", "layer_norm3"),
}


def of_unit_length(vectors):
    return normalize(vectors, dim=-1)


TABLE = [
    Row(case="gcn/mean", spec="gcn(layers=2)", names=GCN),
    Row(
        case="gcn/gru",
        spec="gcn(then=seq2seq, layers=2)",
        names=GCN | {f"then.gru.{name}": f"2.{name}" for name in GRU},
    ),
    Row(case="self_attention/plain", spec="self_attention", names=SELF_ATTENTION),
    *(
        Row(
            case=f"sequential/{case}",
            spec="sequential(layers=2, heads=2, positions=9)",
            names=SEQUENTIAL,
            of_ours=of_unit_length,
        )
        for case in ("masked", "faint")  # faint: elements so small that the norms' epsilon matters
    ),
    Row(
        case="seq_lstm/masked",
        spec="seq_lstm",
        names={f"lstm.{name}": f"lstm.{name}" for name in GRU},
        of_ours=of_unit_length,
    ),
    Row(case="xpool/heads1", spec="xpool(heads=1)", names=XPOOL),
    Row(case="xpool/heads2", spec="xpool(heads=2)", names=XPOOL),
    Row(
        case="text_topk/pairs", spec="text_topk(k=2)", of_ours=lambda vectors: 2 * vectors
    ),  # theirs is the sum of two, ours the mean
    Row(case="text_softmax/pairs", spec="text_softmax(temperature=0.1)"),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_relational_aggregators_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "relations", row)
