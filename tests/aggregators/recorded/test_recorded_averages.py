"""Aggregators that weigh elements, or assign them to centres, against their authors' numbers."""

import numpy as np
import pytest
import torch
from recorded import Pick, Row, hold_to_recorded, layer, turned
from torch import Tensor
from torch.nn.functional import normalize

AVERAGES = [
    Row(
        case="abmilp/gated",
        spec="abmilp(hidden=4)",
        names={
            **layer("content", "attention_V.0"),
            **layer("gate", "attention_U.0"),
            "score.weight": "attention_w.weight",
        },
    ),
    Row(
        case="abmilp_probe/plain",
        spec="abmilp(gated=False)",
        names={
            **layer("content", "attention_predictor.0"),
            "score.weight": "attention_predictor.2.weight",
        },
    ),
    Row(case="attention/masked", spec="attention", names={"score.weight": "ft_attn.weight"}),
    Row(case="esa/plain", spec="esa", names={"score.weight": "linear1.weight"}),
    Row(case="gem/signed", spec="gem", names={"log_p": "log_p"}),
    Row(case="kmax/masked", spec="kmax(k=3)"),
    Row(
        case="lip/plain",
        spec="lip",
        names={"project.weight": "conv.weight", "scale_D": "bn.weight", "shift_D": "bn.bias"},
    ),
    Row(case="logsumexp/one", spec="logsumexp"),
    Row(case="logsumexp/sharp", spec="logsumexp(sharpness=10.0)"),
]


def one_behind_the_other(vectors_BKD: Tensor) -> Tensor:
    """Return vectors laid out channel by channel, at length 1."""
    return normalize(vectors_BKD.transpose(1, 2).flatten(1), dim=-1)


def token_first(vectors_BKD: Tensor) -> Tensor:
    """Return the token, and clusters channel by channel, at length 1."""
    clusters_BF = vectors_BKD[:, 1:].transpose(1, 2).flatten(1)
    return normalize(torch.cat((vectors_BKD[:, 0], clusters_BF), dim=1), dim=-1)


SALAD: dict[str, Pick] = {"dustbin": "dust_bin"}
for mine, theirs in (("token", "token_features"), ("element", "cluster_features"), ("score", "score")):
    last = 2 if mine == "token" else 3
    for i in (0, last):
        SALAD |= layer(f"{mine}.{i}", f"{theirs}.{i}")
NETVLAD = {
    "assign.weight": turned("clusters"),
    "assign.bias": "batch_norm.bias",
    "centre_KD": turned("clusters2"),
}
ASSIGNMENTS = [
    Row(
        case="netvlad/plain",
        spec="netvlad(k=3)",
        names=NETVLAD,
        of_ours=one_behind_the_other,
        unlike={"batch_norm.weight": "ours has no batch norm"},
    ),
    Row(case="salad/plain", spec="salad(k=3, hidden=6)", names=SALAD, of_ours=token_first),
    Row(case="otke/plain", spec="otke(k=3)", names={"reference_KD": "weight"}),
    Row(case="otke/log", spec="otke(k=3)", names={"reference_KD": "weight"}),
]


@pytest.mark.parametrize("row", AVERAGES, ids=str)
def test_averages(golden, row):
    hold_to_recorded(golden / "averages", row)


@pytest.mark.parametrize("row", ASSIGNMENTS, ids=str)
def test_assignments(golden, row):
    hold_to_recorded(golden / "assignments", row)


def test_values_below_the_epsilon_of_gem_are_recorded(golden):
    with np.load(golden / "averages" / "gem.npz", allow_pickle=False) as z:
        assert 0.3 < (z["signed/x"] < 1e-6).mean() < 0.7
