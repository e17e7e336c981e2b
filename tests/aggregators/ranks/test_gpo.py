import json
import math

import numpy as np
import pytest
import torch
from explicit import Weights, hold_to_formula, trained
from torch import Tensor

from polypool.aggregators.positions import encode_ranks
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks import gpo as module
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.registry import AGGREGATORS

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


def gru(module, x_NC: Tensor, suffix: str) -> Tensor:
    """One direction of a GRU, a step at a time."""
    part = {
        name: getattr(module, f"{name}_l0{suffix}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    state_H, states = x_NC.new_zeros(module.hidden_size), []
    for x_C in x_NC:
        from_x = (part["weight_ih"] @ x_C + part["bias_ih"]).chunk(3)
        from_state = (part["weight_hh"] @ state_H + part["bias_hh"]).chunk(3)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(from_x[:2], from_state[:2], strict=True))
        new = torch.tanh(from_x[2] + reset * from_state[2])
        state_H = (1 - update) * new + update * state_H
        states.append(state_H)
    return torch.stack(states)


def transformer(module, x_NC: Tensor) -> Tensor:
    """One layer of a transformer encoder, normalised after each part."""
    attention, (size, width) = module.self_attn, x_NC.shape
    q, k, v = (x_NC @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=1)
    heads = [part.reshape(size, 4, width // 4).transpose(0, 1) for part in (q, k, v)]
    score_HNN = heads[0] @ heads[1].transpose(1, 2) / math.sqrt(width // 4)
    mixed_NC = (score_HNN.softmax(dim=-1) @ heads[2]).transpose(0, 1).reshape(size, width)
    x_NC = normalised(module.norm1, x_NC + mixed_NC @ attention.out_proj.weight.T + attention.out_proj.bias)
    inner = (x_NC @ module.linear1.weight.T + module.linear1.bias).clamp(min=0)
    return normalised(module.norm2, x_NC + inner @ module.linear2.weight.T + module.linear2.bias)


def normalised(norm, x_NC: Tensor) -> Tensor:
    centred = x_NC - x_NC.mean(dim=1, keepdim=True)
    return norm.weight * centred / (centred.square().mean(dim=1, keepdim=True) + norm.eps).sqrt() + norm.bias


def scores(gpo: GPO, ordered_ND: Tensor) -> Tensor:
    """The scores `(N, 1 or D)` of the ranks of one set, by the definition of each design."""
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
    module = gpo.get_submodule(gpo.decoder)
    match gpo.decoder:
        case "gru":
            state_NH = (gru(module, x_NC, "") + gru(module, x_NC.flip(0), "_reverse").flip(0)) / 2
        case "transformer":
            state_NH = transformer(module, x_NC)
        case "mlp":
            state_NH = (x_NC @ module[0].weight.T + module[0].bias).clamp(min=0)
    return state_NH @ gpo.linear.weight.T / gpo.temperature


@pytest.mark.parametrize("spec", ["gpo", *VARIANTS])
def test_every_design_follows_its_definition(spec):
    gpo = trained(spec, 4)

    def explicit(x_ND: Tensor, _: Weights) -> Tensor:
        ordered_ND = x_ND.sort(dim=0, descending=True).values
        return (scores(gpo, ordered_ND).softmax(dim=0) * ordered_ND).sum(dim=0)

    hold_to_formula(gpo, explicit, dim=4)


@pytest.mark.parametrize("spec", ["gpo", *VARIANTS])
def test_weights_are_shares_of_the_ranks(spec):
    torch.manual_seed(1)
    x_BND, mask_BN = random_sets([7, 2, 12], 8)
    gpo = AGGREGATORS.build(spec, 8)
    weight = gpo(x_BND, mask_BN).weights
    torch.testing.assert_close(weight.sum(dim=1), torch.ones_like(weight[:, 0]))
    assert (weight[~mask_BN] == 0).all()
    assert (weight >= 0).all()


def test_a_size_is_decoded_once(monkeypatch):
    gpo, sizes = GPO(6), []
    monkeypatch.setattr(gpo.gru, "forward", lambda x_SNC, size_S: sizes.append(size_S.tolist()) or x_SNC)
    gpo(*random_sets([5, 1, 9, 5, 1, 1], 6))
    assert sizes == [[1, 5, 9]]


def test_without_gradients_a_size_is_decoded_once_for_all_calls(monkeypatch):
    gpo, sizes = GPO(6), []
    monkeypatch.setattr(gpo.gru, "forward", lambda x_SNC, size_S: sizes.append(size_S.tolist()) or x_SNC)
    monkeypatch.setattr(module, "KEPT", 15)
    for batch in ([5], [9, 1], [1, 5], [9], [9, 7], [5]):
        with torch.inference_mode():
            gpo(*random_sets(batch, 6))
    assert sizes == [[5], [1, 9], [7], [5]], "of 7 with 5, 1 and 9 there are too many, so 9 and 7 are left"


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
@pytest.mark.parametrize(
    ("spec", "sizes"),
    [("gpo", [5, 1, 9]), ("gpo", [6]), ("gpo(decoder=interpolate, per_channel=True)", [5, 2])],
)
def test_kept_weights_are_those_of_the_parameters(spec, sizes, change):
    torch.manual_seed(0)
    gpo, (x_BND, mask_BN) = AGGREGATORS.build(spec, 6), random_sets(sizes, 6)
    torch.nn.init.normal_([*gpo.parameters()][-1])
    with torch.no_grad():
        before = gpo(x_BND, mask_BN).weights
        before.zero_()  # what is returned is the caller's
        before = gpo(x_BND, mask_BN).weights
        CHANGES[change](gpo)
        after = gpo(x_BND, mask_BN).weights
    assert not torch.equal(after, before.to(after.dtype))
    torch.testing.assert_close(after, gpo(x_BND, mask_BN).weights.detach(), rtol=0, atol=0)


def test_gpo_has_the_size_and_the_names_of_the_authors_code():
    shapes = {name: tuple(p.shape) for name, p in GPO(1024).named_parameters()}
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    assert set(shapes) == {f"gru.{p}_l0{way}" for p in parts for way in ("", "_reverse")} | {"linear.weight"}
    assert sum(map(math.prod, shapes.values())) == 12_704


@pytest.mark.parametrize("case", ["ragged", "alone", "single"])
def test_gpo_reproduces_the_recorded_numbers(golden, case):
    z = np.load(golden / "gpo.npz", allow_pickle=False)
    gpo = GPO(16)
    prefix = json.loads((golden / "gpo.json").read_text())["cases"][case]["params"] + "/"
    gpo.load_state_dict(
        {key.removeprefix(prefix): torch.from_numpy(z[key]) for key in z if key.startswith(prefix)}
    )
    x_BND = torch.from_numpy(z[f"{case}/features"]).requires_grad_()
    mask_BN = torch.arange(x_BND.shape[1]) < torch.from_numpy(z[f"{case}/lengths"])[:, None]
    pooled_BD, _, weight_BN = gpo(x_BND, mask_BN)
    np.testing.assert_allclose(weight_BN.detach(), z[f"{case}/weights"][..., 0], atol=2e-6, rtol=0)
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_pooled" not in z:
        return
    (pooled_BD * torch.from_numpy(z[f"{case}/cot_pooled"])).sum().backward()
    np.testing.assert_allclose(x_BND.grad, z[f"{case}/grad_features"], atol=2e-5, rtol=1e-4)
    for name, parameter in gpo.named_parameters():
        np.testing.assert_allclose(parameter.grad, z[f"{case}/grad_param/{name}"], atol=2e-5, rtol=1e-4)


def test_encodings_of_ranks_reproduce_the_recorded_numbers(golden):
    z = np.load(golden / "posenc.npz", allow_pickle=False)
    cases = [key for key in z if key.startswith("gpo_")]
    assert cases
    for key in cases:
        np.testing.assert_allclose(encode_ranks(*z[key].shape), z[key], atol=1e-5, rtol=1e-5, err_msg=key)


@pytest.mark.parametrize("decoder", ["bigru", "transformer", "mlp", "interpolate"])
def test_weights_leave_autocast(decoder):
    torch.manual_seed(0)
    gpo, mask_BN = GPO(4, decoder=decoder), torch.ones(2, 36, dtype=torch.bool)
    x_BND = torch.randn(2, 36, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = gpo(x_BND, mask_BN).weights
    assert under.dtype == torch.float32
    assert torch.equal(under, gpo(x_BND, mask_BN).weights)
