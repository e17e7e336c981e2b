"""Aggregators with learned queries against recorded outputs of the authors' code."""

import pytest
from recorded import Pick, Row, hold_to_recorded, layer, rows
from torch.nn.functional import normalize


def packed(ours: str, theirs: str, dim: int) -> dict[str, Pick]:
    """Map our query, key and value parameters to slices of their packed array."""
    return {
        f"{ours}.{name}.{kind}": rows(f"{theirs}.{kind}", i * dim, (i + 1) * dim)
        for i, name in enumerate(("query", "key", "value"))
        for kind in ("weight", "bias")
        if (name, kind) != ("key", "bias")
    }


def block(ours: str, theirs: str) -> dict[str, Pick]:
    """Map our parameters of a Set Transformer block to theirs."""
    names = {"query": "fc_q", "value": "fc_v", "row": "fc_o", "norm": "ln0", "norm_row": "ln1"}
    found = {f"{ours}.key.weight": f"{theirs}.fc_k.weight"}
    for mine, other in names.items():
        found |= layer(f"{ours}.{mine}", f"{theirs}.{other}")
    return found


def class_attention(ours: str, theirs: str) -> dict[str, Pick]:
    """Map our norms, output map and MLP of a layer to a vision transformer's."""
    return {
        **layer(f"{ours}.norm", f"{theirs}.norm1"),
        **layer(f"{ours}.norm_mlp", f"{theirs}.norm2"),
        **layer(f"{ours}.attention.out", f"{theirs}.attn.proj"),
        **layer(f"{ours}.mlp.0", f"{theirs}.mlp.fc1"),
        **layer(f"{ours}.mlp.2", f"{theirs}.mlp.fc2"),
    }


MAP = {
    "query_KD": "latent",
    **layer("attention.query", "q"),
    "attention.key.weight": rows("kv.weight", 0, 12),
    "attention.value.weight": rows("kv.weight", 12, 24),
    "attention.value.bias": rows("kv.bias", 12, 24),
    **layer("attention.out", "proj"),
    **layer("norm", "norm"),
    **layer("mlp.0", "mlp.fc1"),
    **layer("mlp.2", "mlp.fc2"),
}
AIM = {
    "norm.running_mean": "bn.running_mean",
    "norm.running_var": "bn.running_var",
    "query_KD": "cls_token",
    "key.weight": "k.weight",
    "value.weight": "v.weight",
}
SIMPOOL = {**layer("norm", "norm_patches"), "query.weight": "wq.weight", "key.weight": "wk.weight"}
CAIT: dict[str, Pick] = {"token_D": "cls_token", **layer("norm", "norm")}
for i in range(2):
    ours, theirs = f"layers.{i}", f"blocks_token_only.{i}"
    CAIT |= class_attention(ours, theirs)
    CAIT |= {
        **layer(f"{ours}.attention.query", f"{theirs}.attn.q"),
        f"{ours}.attention.key.weight": f"{theirs}.attn.k.weight",
        **layer(f"{ours}.attention.value", f"{theirs}.attn.v"),
        f"{ours}.scale_2D": lambda arrays, t=theirs: [arrays[f"{t}.gamma_{j}"] for j in (1, 2)],
    }
SET_TRANSFORMER = {
    "seed_1KD": "dec.0.S",
    **block("pool", "dec.0.mab"),
    **block("among", "dec.1.mab"),
    **layer("out", "dec.2"),
    **{f"induced.{i}.point_1PD": f"enc.{i}.I" for i in range(2)},
    **{
        name: theirs
        for i in range(2)
        for name, theirs in block(f"induced.{i}.gather", f"enc.{i}.mab0").items()
    },
    **{
        name: theirs
        for i in range(2)
        for name, theirs in block(f"induced.{i}.spread", f"enc.{i}.mab1").items()
    },
}
BOQ = {**layer("norm", "norm_input"), **layer("mix", "fc")}
for i in range(2):
    for kind in ("weight", "bias"):
        for part in ("self_attn.in_proj_", "self_attn.out_proj.", "linear1.", "linear2.", "norm1.", "norm2."):
            BOQ[f"blocks.{i}.layer.{part}{kind}"] = f"boqs.{i}.encoder.{part}{kind}"
        for mine, other in (("among", "self_attn"), ("ask", "cross_attn")):
            for part in ("in_proj_", "out_proj."):
                BOQ[f"blocks.{i}.{mine}.{part}{kind}"] = f"boqs.{i}.{other}.{part}{kind}"
        BOQ[f"blocks.{i}.norm_query.{kind}"] = f"boqs.{i}.norm_q.{kind}"
        BOQ[f"blocks.{i}.norm_answer.{kind}"] = f"boqs.{i}.norm_out.{kind}"
    BOQ[f"blocks.{i}.query_1QD"] = f"boqs.{i}.queries"

DINO_BLOCK = {
    "query_D": "query",
    **class_attention("block", "block"),
    **packed("block.attention", "block.attn.qkv", 12),
}
QFORMER: dict[str, Pick] = {"query_KD": "queries", **layer("norm", "norm")}
for i in range(2):
    for mine, theirs in (("among", "attention"), ("ask", "crossattention")):
        ours, other = f"layers.{i}.{mine}", f"layers.{i}.{theirs}"
        QFORMER |= {
            **layer(f"{ours}.query", f"{other}.self.query"),
            **layer(f"{ours}.value", f"{other}.self.value"),
            f"{ours}.key.weight": f"{other}.self.key.weight",
            **layer(f"{ours}.out", f"{other}.output.dense"),
            **layer(f"layers.{i}.norm_{mine}", f"{other}.output.LayerNorm"),
        }
    QFORMER |= {
        **layer(f"layers.{i}.mlp.0", f"layers.{i}.intermediate_query.dense"),
        **layer(f"layers.{i}.mlp.2", f"layers.{i}.output_query.dense"),
        **layer(f"layers.{i}.norm_mlp", f"layers.{i}.output_query.LayerNorm"),
    }

TABLE = [
    Row(case="ep/plain", spec="ep(queries=4)", names={"query_MD": "cls_token", "value.weight": "v.weight"}),
    Row(case="aim/kept", spec="aim(heads=3)", names=AIM),
    Row(case="aim/training", spec="aim(heads=3)", names=AIM, training=True),
    Row(case="map/plain", spec="map(heads=3)", names=MAP),
    Row(case="cait/plain", spec="cait(layers=2, heads=3)", names=CAIT),
    Row(case="dino_block/first", spec="dino_block(heads=3)", names=DINO_BLOCK),
    Row(case="qformer/plain", spec="qformer(k=2, layers=2, heads=3)", names=QFORMER),
    Row(case="simpool/plain", spec="simpool", names=SIMPOOL),
    Row(case="simpool/power", spec="simpool(gamma=2.0)", names=SIMPOOL),
    Row(case="simpool/power_125", spec="simpool(gamma=1.25)", names=SIMPOOL),
    Row(case="pma/plain", spec="pma(k=2, heads=3)", names={"seed_1KD": "S", **block("block", "mab")}),
    Row(
        case="set_transformer/plain",
        spec="set_transformer(k=2, points=3, heads=2)",
        names=SET_TRANSFORMER,
    ),
    Row(
        case="boq/plain",
        spec="boq(k=2, queries=3, heads=2)",
        names=BOQ,
        of_ours=lambda vectors: normalize(vectors.transpose(1, 2).flatten(1), dim=-1),
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_query_aggregators_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "queries", row)
