"""Aggregators whose queries go through transformers' blocks, against loops over their formulas, in float64."""

import pytest
import torch
from explicit import Weights, attention_of, heads_of, hold_to_formula, linear, mixed, mlp_of, norm
from torch import Tensor

from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


def class_attention(token_D: Tensor, x_ND: list[Tensor], p: Weights, name: str, scales: Tensor) -> Tensor:
    normal = [norm(p, f"{name}.norm", y_D, 1e-6) for y_D in [token_D, *x_ND]]
    token_D = token_D + scales[0] * attention_of(normal[0], normal, p, f"{name}.attention", 2)
    return token_D + scales[1] * mlp_of(norm(p, f"{name}.norm_mlp", token_D, 1e-6), p, f"{name}.mlp")


def cait(x_ND: Tensor, p: Weights) -> Tensor:
    token_D = p["token_D"]
    for layer in ("layers.0", "layers.1", "layers.2"):
        token_D = class_attention(token_D, list(x_ND), p, layer, p[f"{layer}.scale_2D"])
    return norm(p, "norm", token_D, 1e-6)


def dino_block(x_ND: Tensor, p: Weights) -> Tensor:
    return class_attention(p["query_D"], list(x_ND), p, "block", torch.ones(2, dtype=torch.float64))


def attention_block(query_D: Tensor, x_ND: list[Tensor], p: Weights, name: str) -> Tensor:
    query_D = linear(p, f"{name}.query", query_D)
    got_D = norm(p, f"{name}.norm", query_D + heads_of(query_D, x_ND, p, f"{name}.", 2, scale=6**-0.5))
    return norm(p, f"{name}.norm_row", got_D + linear(p, f"{name}.row", got_D).clamp(min=0))


def pma(x_ND: Tensor, p: Weights) -> Tensor:
    return torch.stack([attention_block(seed_D, list(x_ND), p, "block") for seed_D in p["seed_1KD"][0]])


def set_transformer(x_ND: Tensor, p: Weights) -> Tensor:
    x = list(x_ND)
    for block in ("induced.0", "induced.1"):
        met = [attention_block(point_D, x, p, f"{block}.gather") for point_D in p[f"{block}.point_1PD"][0]]
        x = [attention_block(x_D, met, p, f"{block}.spread") for x_D in x]
    pooled = [attention_block(seed_D, x, p, "pool") for seed_D in p["seed_1KD"][0]]
    return torch.stack([linear(p, "out", attention_block(y_D, pooled, p, "among")) for y_D in pooled])


def packed(query_D: Tensor, x_ND: list[Tensor], p: Weights, name: str) -> Tensor:
    """Attention of two heads whose maps lie in one matrix, with biases of the keys too."""
    parts = {}
    for part, weight, bias in zip(
        ("query", "key", "value"),
        p[f"{name}.in_proj_weight"].chunk(3),
        p[f"{name}.in_proj_bias"].chunk(3),
        strict=True,
    ):
        parts |= {f"{part}.weight": weight, f"{part}.bias": bias}
    return linear(p, f"{name}.out_proj", heads_of(linear(parts, "query", query_D), x_ND, parts, "", 2))


def boq(x_ND: Tensor, p: Weights) -> Tensor:
    x, answers = [norm(p, "norm", x_D) for x_D in x_ND], []
    for block in ("blocks.0", "blocks.1"):
        layer = f"{block}.layer"
        x = [norm(p, f"{layer}.norm1", x_D + packed(x_D, x, p, f"{layer}.self_attn")) for x_D in x]
        inner = [linear(p, f"{layer}.linear1", x_D).clamp(min=0) for x_D in x]
        got = [x_D + linear(p, f"{layer}.linear2", y_D) for x_D, y_D in zip(x, inner, strict=True)]
        x = [norm(p, f"{layer}.norm2", x_D) for x_D in got]
        queries = list(p[f"{block}.query_1QD"][0])
        queries = [
            norm(p, f"{block}.norm_query", q_D + packed(q_D, queries, p, f"{block}.among")) for q_D in queries
        ]
        answers += [norm(p, f"{block}.norm_answer", packed(q_D, x, p, f"{block}.ask")) for q_D in queries]
    return torch.stack(
        [mixed(mix, answers) + bias for mix, bias in zip(p["mix.weight"], p["mix.bias"], strict=True)]
    )


def qformer(x_ND: Tensor, p: Weights) -> Tensor:
    queries = [norm(p, "norm", q_D, 1e-12) for q_D in p["query_KD"]]
    for layer in ("layers.0", "layers.1"):

        def behind(part: str, q_D: Tensor, got_D: Tensor, layer: str = layer) -> Tensor:
            return norm(p, f"{layer}.norm_{part}", q_D + got_D, 1e-12)

        queries = [
            behind("among", q_D, attention_of(q_D, queries, p, f"{layer}.among", 2)) for q_D in queries
        ]
        queries = [behind("ask", q_D, attention_of(q_D, list(x_ND), p, f"{layer}.ask", 2)) for q_D in queries]
        queries = [behind("mlp", q_D, mlp_of(q_D, p, f"{layer}.mlp")) for q_D in queries]
    return torch.stack(queries)


FORMULAS = {
    "cait(layers=3, heads=2)": cait,
    "dino_block(heads=2)": dino_block,
    "pma(k=3, heads=2)": pma,
    "set_transformer(k=2, points=3, heads=2)": set_transformer,
    "boq(k=2, queries=3, heads=2)": boq,
    "qformer(k=3, heads=2)": qformer,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


def test_dinos_block_is_the_query_of_a_block_over_all():
    torch.manual_seed(0)
    module = AGGREGATORS.build("dino_block(heads=2)", 6).double()
    block = torch.nn.TransformerEncoderLayer(
        6, 2, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, layer_norm_eps=1e-6
    ).double()
    ours = module.block
    maps = [ours.attention.query, ours.attention.key, ours.attention.value]
    with torch.no_grad():
        block.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in maps]))
        block.self_attn.in_proj_bias.normal_()  # that of keys changes nothing
        for part, bias in zip(maps, block.self_attn.in_proj_bias.chunk(3), strict=True):
            if part.bias is not None:
                part.bias.copy_(bias)
    for theirs, part in (
        (block.self_attn.out_proj, ours.attention.out),
        (block.linear1, ours.mlp[0]),
        (block.linear2, ours.mlp[2]),
        (block.norm1, ours.norm),
        (block.norm2, ours.norm_mlp),
    ):
        theirs.load_state_dict(part.state_dict())
    x_BND, mask_BN = random_sets([4, 4], 6, dtype=torch.float64)
    expected = block(torch.cat((module.query_D.expand(2, 1, -1), x_BND), dim=1))[:, 0]
    torch.testing.assert_close(module(x_BND, mask_BN).vectors, expected)


@pytest.mark.parametrize("spec", ["cait", "dino_block"])
def test_the_token_has_a_share_too_about_that_of_an_element_at_the_start(spec):
    total_B1 = AGGREGATORS.build(spec, 8).eval()(*random_sets([5, 1, 9], 8)).weights.sum(dim=-1)
    torch.testing.assert_close(total_B1.squeeze(), torch.tensor([5 / 6, 1 / 2, 9 / 10]), atol=0.03, rtol=0)
