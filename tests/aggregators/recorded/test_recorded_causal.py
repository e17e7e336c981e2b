"""Poolings of causal text encoders against recorded outputs of the authors' code."""

import pytest
import torch
from recorded import Row, hold_to_recorded, layer

from polypool.infra.registry import AGGREGATORS

CAUSAL = [
    Row(case="last/right", spec="last"),
    Row(case="last/left", spec="last"),
    Row(case="position_mean/right", spec="position_mean"),
    *(
        Row(
            case=f"latent_attention/{case}",
            spec=spec,
            names={
                "latents": "latents",
                **layer("norm", "cross_attend_blocks.0.norm"),
                **layer("norm_latents", "cross_attend_blocks.0.norm_context"),
                "query.weight": "cross_attend_blocks.0.fn.to_q.weight",
                "key_value.weight": "cross_attend_blocks.0.fn.to_kv.weight",
                "out.weight": "cross_attend_blocks.0.fn.to_out.weight",
                **layer("norm_inner", "cross_attend_blocks.1.norm"),
                **layer("widen", "cross_attend_blocks.1.fn.net.0"),
                **layer("narrow", "cross_attend_blocks.1.fn.net.2"),
            },
        )
        for case, spec in (
            ("few", "latent_attention(latents=5, heads=2, head_width=3)"),
            ("wide", "latent_attention(latents=3, heads=2)"),
        )
    ),
]


@pytest.mark.parametrize("row", CAUSAL, ids=str)
def test_causal_poolings_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "causal", row)


@pytest.mark.parametrize("name", ["last", "position_mean"])
def test_left_padding_equals_right_padding(name):
    x_BND, mask_BN = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    pool, order = AGGREGATORS.build(name, 3), [3, 4, 0, 1, 2]
    right, left = pool(x_BND[:1], mask_BN[:1]), pool(x_BND[:1, order], mask_BN[:1, order])
    assert torch.equal(right.vectors, left.vectors)
    assert torch.equal(right.weights[:, order], left.weights)
