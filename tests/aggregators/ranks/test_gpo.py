import json
import math

import numpy as np
import pytest
import torch
from explicit import Weights, hold_to_formula, trained
from gpu_paths import gpu_paths_on_cpu
from torch import Tensor

from polypool.aggregators.positions import encode_ranks
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks import gpo as module
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.errors import InputError

VARIANTS = [
    "gpo(temperature=1.0)",
    "gpo(encoding=index, longest=16)",
    "gpo(decoder=transformer, positions=8)",
    "gpo(decoder=mlp)",
    "gpo(decoder=mlp, encoding=index, longest=16, per_channel=True)",
    "gpo(decoder=interpolate)",
    "gpo(decoder=interpolate, positions=6, per_channel=True)",
    "gpo(per_channel=True)",
    "gpo(feature_conditioned=True)",
    "gpo(decoder=transformer, positions=8, feature_conditioned=True, per_channel=True)",
]


def scores(gpo: GPO, ordered_ND: Tensor) -> Tensor:
    """Return the rank scores `(N, 1 or D)` of one set, by each variant's definition."""
    size = len(ordered_ND)
    if not gpo.decoder:
        learned_VC = (gpo.stretched / gpo.temperature).softmax(dim=0)
        weights = []
        for k in range(size):
            place = k * (len(learned_VC) - 1) / max(size - 1, 1)
            low, part = math.floor(place), place % 1
            weights.append(
                (1 - part) * learned_VC[low] + part * learned_VC[min(low + 1, len(learned_VC) - 1)]
            )
        return torch.stack(weights).log()
    codes_NC = encode_ranks(size, gpo.positions, dtype=torch.float64)
    x_NC = codes_NC if gpo.index is None else gpo.index.weight[:size]
    if gpo.feature_conditioned:
        x_NC = torch.cat((x_NC, ordered_ND), dim=1)
    state_1NH = gpo.get_submodule(gpo.decoder)(x_NC[None], torch.tensor([size]))
    return state_1NH[0] @ gpo.linear.weight.T / gpo.temperature


@pytest.mark.parametrize("spec", ["gpo", *VARIANTS])
def test_gpo_variants_match_their_definition(spec):
    gpo = trained(spec, 4)

    def explicit(x_ND: Tensor, _: Weights) -> Tensor:
        ordered_ND = x_ND.sort(dim=0, descending=True).values
        return (scores(gpo, ordered_ND).softmax(dim=0) * ordered_ND).sum(dim=0)

    hold_to_formula(gpo, explicit, dim=4)


def test_gpo_decodes_each_size_once_without_gradients(monkeypatch):
    gpo, sizes = GPO(6), []
    monkeypatch.setattr(gpo.gru, "forward", lambda x_SNC, size_S: sizes.append(size_S.tolist()) or x_SNC)
    monkeypatch.setattr(module, "CACHED", 15)
    for batch in ([5], [9, 1], [1, 5], [9], [9, 7], [5]):
        with torch.inference_mode():
            gpo(*random_sets(batch, 6))
    assert sizes == [[5], [1, 9], [7], [5]], "7 exceeds the cache of 15 weights, which keeps only 9 and 7"


def test_gpo_on_a_gpu_keeps_no_encodings_for_graphs_and_pads_beyond_longest():
    gpo, (x_BND, mask_BN) = trained("gpo(encoding=index, longest=5)", 4), random_sets([5, 3], 4)
    wide_BND, wide_BN = (torch.cat((x, x.new_zeros(2, 3, *x.shape[2:])), dim=1) for x in (x_BND, mask_BN))
    with pytest.raises(InputError, match="a set has 8 elements"):
        gpo._encodings(8)
    module._encoded.cache_clear()
    with gpu_paths_on_cpu():
        torch.testing.assert_close(gpo(wide_BND, wide_BN).vectors, gpo(x_BND, mask_BN).vectors)
        trained("gpo", 4)(x_BND, mask_BN)
    assert module._encoded.cache_info().currsize == 0, "a captured graph would outlive the cache's tensor"


CHANGES = {
    "in place": lambda gpo: [parameter.detach().mul_(2) for parameter in gpo.parameters()],
    "by data": lambda gpo: [parameter.data.mul_(2) for parameter in gpo.parameters()],
    "loaded": lambda gpo: gpo.load_state_dict({name: 2 * x for name, x in gpo.state_dict().items()}),
    "one alone": lambda gpo: [*gpo.parameters()][-1].data.mul_(2),
    "replaced": lambda gpo: [setattr(x, "data", 2 * x) for x in gpo.parameters()],
    "another type": lambda gpo: gpo.double(),
    "rounded": lambda gpo: gpo.bfloat16().float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_gpo_cache_follows_parameter_changes(change):
    torch.manual_seed(0)
    gpo, (x_BND, mask_BN) = GPO(6), random_sets([5, 1, 9], 6)
    with torch.no_grad():
        before = gpo(x_BND, mask_BN).weights
        before.zero_()  # changing a returned tensor must not change the cache
        before = gpo(x_BND, mask_BN).weights
        CHANGES[change](gpo)
        after = gpo(x_BND, mask_BN).weights
    assert not torch.equal(after, before.to(after.dtype))
    torch.testing.assert_close(after, gpo(x_BND, mask_BN).weights.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("case", ["ragged", "alone", "single"])
def test_gpo_matches_recorded_outputs(golden, case):
    z = np.load(golden / "gpo.npz", allow_pickle=False)
    gpo = GPO(16)
    prefix = json.loads((golden / "gpo.json").read_text())["cases"][case]["params"] + "/"
    gpo.load_state_dict(
        {key.removeprefix(prefix): torch.from_numpy(z[key]) for key in z if key.startswith(prefix)}
    )
    x_BND = torch.from_numpy(z[f"{case}/features"]).requires_grad_()
    mask_BN = torch.arange(x_BND.shape[1]) < torch.from_numpy(z[f"{case}/lengths"])[:, None]
    pooled_BD, _, weight_BN, _ = gpo(x_BND, mask_BN)
    np.testing.assert_allclose(weight_BN.detach(), z[f"{case}/weights"][..., 0], atol=2e-6, rtol=0)
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_pooled" not in z:
        return
    (pooled_BD * torch.from_numpy(z[f"{case}/cot_pooled"])).sum().backward()
    np.testing.assert_allclose(x_BND.grad, z[f"{case}/grad_features"], atol=2e-5, rtol=1e-4)
    for name, parameter in gpo.named_parameters():
        np.testing.assert_allclose(parameter.grad, z[f"{case}/grad_param/{name}"], atol=2e-5, rtol=1e-4)


def test_rank_encodings_match_recorded_outputs(golden):
    z = np.load(golden / "posenc.npz", allow_pickle=False)
    cases = [key for key in z if key.startswith("gpo_")]
    assert cases
    for key in cases:
        np.testing.assert_allclose(encode_ranks(*z[key].shape), z[key], atol=1e-5, rtol=1e-5, err_msg=key)


def test_gpo_weights_stay_float32_under_autocast():
    torch.manual_seed(0)
    gpo, mask_BN = GPO(4), torch.ones(2, 36, dtype=torch.bool)
    x_BND = torch.randn(2, 36, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = gpo(x_BND, mask_BN).weights
    assert under.dtype == torch.float32
    assert torch.equal(under, gpo(x_BND, mask_BN).weights)
