"""Aggregators that select elements, and `probabilistic`, against recorded outputs of the authors' code."""

import numpy as np
import pytest
import torch
from recorded import Case, Row, hold_to_recorded, layer, load
from torch import Tensor
from torch.nn.functional import normalize

from polypool.infra.registry import AGGREGATORS

GRU = [
    f"{name}_{of}_l0{side}" for name in ("weight", "bias") for of in ("ih", "hh") for side in ("", "_reverse")
]
LAPS = {
    "scale": "aggr_net.scale",
    **layer("weight.0", "aggr_net.weight.0"),
    **layer("weight.1", "aggr_net.weight.1"),
    "weight.3.weight": "aggr_net.weight.3.weight",
}
AGC = {"query_QHE": "query", "key.weight": "key.weight"}
NO_GRADIENT = "theirs gives what the others weigh no gradient"


def sorted_units(vectors: Tensor) -> Tensor:
    """Normalise vectors to unit length and sort them by their first channel."""
    vectors = normalize(vectors, dim=-1)
    return vectors.gather(1, vectors[..., :1].argsort(dim=1).expand_as(vectors))


TABLE = [
    Row(case="agc/whole", spec="agc(k=4, queries=3, heads=2)", names=AGC, of_ours=sorted_units),
    Row(case="agc/masked", spec="agc(k=4, queries=3, heads=2)", names=AGC, of_ours=sorted_units),
    Row(
        case="laps/pairs",
        spec="laps(k=2)",
        names=LAPS,
        of_ours=lambda vectors: normalize(vectors, dim=-1),
        unlike={"x": NO_GRADIENT, "text": NO_GRADIENT},
    ),
    Row(
        case="tokenlearner/exact",
        spec="tokenlearner(k=3, hidden=5)",
        names={**layer("score.0", "0"), **layer("score.1", "1"), "score.3.weight": "2.weight"},
    ),
    Row(
        case="probabilistic/variance",
        spec="probabilistic(mean=mean)",
        names={
            **layer("linear", "fc"),
            "pool.linear.weight": "gpool.linear.weight",
            **{f"pool.gru.{name}": f"gpool.gru.{name}" for name in GRU},
        },
        of_ours=lambda vectors: vectors[:, 1],
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_selecting_aggregators_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "selections", row)


def test_ts2_select_scores_match_recorded_outputs(golden):
    folder = golden / "selections"
    case, params = Case(folder, "ts2_select/scores"), Case(folder, "ts2_select/scores", "param/")
    module = AGGREGATORS.build("ts2_select", 8)
    names = {"score.0.weight": "out_conv.0.weight", "score.2.weight": "out_conv.2.weight"}
    load(module, {**layer("inner.0", "in_conv.0"), "inner.1.weight": "in_conv.1.weight", **names}, params)
    inner_BNH = module.inner(torch.from_numpy(case["x"]))
    score_BN = module.score(torch.cat((inner_BNH, inner_BNH[:, :1].expand_as(inner_BNH)), dim=-1)).squeeze(2)
    np.testing.assert_allclose(score_BN.detach(), case["out"], atol=1e-5, rtol=1e-5)
