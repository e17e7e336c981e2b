"""Weighted averages, and assignments to centres, against recorded outputs of the authors' code."""

import numpy as np
import pytest
import torch
from recorded import Case, Pick, Row, hold_to_recorded, layer, transposed
from torch import Tensor
from torch.nn.functional import normalize

from polypool.infra.registry import AGGREGATORS

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
    """Flatten vectors channel by channel, at unit length."""
    return normalize(vectors_BKD.transpose(1, 2).flatten(1), dim=-1)


def token_first(vectors_BKD: Tensor) -> Tensor:
    """Concatenate the token and the clusters, channel by channel, at unit length."""
    clusters_BF = vectors_BKD[:, 1:].transpose(1, 2).flatten(1)
    return normalize(torch.cat((vectors_BKD[:, 0], clusters_BF), dim=1), dim=-1)


SALAD: dict[str, Pick] = {"dustbin": "dust_bin"}
for mine, theirs in (("token", "token_features"), ("element", "cluster_features"), ("score", "score")):
    last = 2 if mine == "token" else 3
    for i in (0, last):
        SALAD |= layer(f"{mine}.{i}", f"{theirs}.{i}")
NETVLAD = {
    "assign.weight": transposed("clusters"),
    "assign.bias": "batch_norm.bias",
    "centre_KD": transposed("clusters2"),
}
PARTS, CLUSTERS = 4, 2


def cluster_by_cluster(name: str) -> Pick:
    """Pick an array laid out as (P, K) and reorder it to our (K, P)."""
    return lambda arrays: np.swapaxes(arrays[name].reshape(PARTS, CLUSTERS, -1), 0, 1).reshape(8, -1)


NEXTVLAD = {
    **layer("expand", "fully_connected"),
    **layer("gate", "fully_connected_1"),
    "assign.weight": transposed("cluster_weights"),
    "centre_KP": transposed("cluster_weights2"),
    "out.weight": lambda arrays: cluster_by_cluster("hidden1_weights")(arrays).T,
    "out.bias": "hidden1_biases",
}
for kind in ("weight", "bias", "running_mean", "running_var"):
    NEXTVLAD[f"assign_norm.{kind}"] = f"cluster_bn.{kind}"
    NEXTVLAD[f"norm.{kind}"] = cluster_by_cluster(f"vlad_bn.{kind}")
ASSIGNMENTS = [
    Row(
        case="netvlad/plain",
        spec="netvlad(k=3)",
        names=NETVLAD,
        of_ours=one_behind_the_other,
        unlike={"batch_norm.weight": "ours has no batch norm"},
    ),
    Row(case="nextvlad/kept", spec="nextvlad(clusters=2, groups=4)", names=NEXTVLAD),
    Row(case="nextvlad/training", spec="nextvlad(clusters=2, groups=4)", names=NEXTVLAD, training=True),
    Row(case="salad/plain", spec="salad(k=3, hidden=6)", names=SALAD, of_ours=token_first),
    Row(case="otke/plain", spec="otke(k=3)", names={"reference_KD": "weight"}),
    Row(case="otke/log", spec="otke(k=3)", names={"reference_KD": "weight"}),
]


@pytest.mark.parametrize("row", AVERAGES, ids=str)
def test_averages_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "averages", row)


@pytest.mark.parametrize("row", ASSIGNMENTS, ids=str)
def test_assignments_match_recorded_outputs(golden, row):
    hold_to_recorded(golden / "assignments", row)


@pytest.mark.parametrize("case", ["softpool/plain", "adapool/beta0", "adapool/beta25", "adapool/beta100"])
def test_softpool_and_adapool_match_recorded_outputs(golden, case):
    z = Case(golden / "kernels", case)
    x_BND = torch.from_numpy(z["x"])
    module = AGGREGATORS.build(case.split("/")[0], 8)
    if "beta" in z:
        module.load_state_dict({"balance": torch.from_numpy(z["beta"]).logit()})
    out = module(x_BND, torch.ones(3, 7, dtype=torch.bool)).vectors
    np.testing.assert_allclose(out.detach(), z["out"], atol=1e-5, rtol=1e-5)


def test_recorded_gem_inputs_include_values_below_eps(golden):
    with np.load(golden / "averages" / "gem.npz", allow_pickle=False) as z:
        assert 0.3 < (z["signed/x"] < 1e-6).mean() < 0.7
