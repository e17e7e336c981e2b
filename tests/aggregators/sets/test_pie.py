import numpy as np
import pytest
import torch
from explicit import hold_to_formula, trained

from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.sets.pie import PIE
from polypool.infra.errors import InputError

NAMES = {
    "attend.0.weight": "attention.w_1.weight",
    "attend.2.weight": "attention.w_2.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "norm.weight": "layer_norm.weight",
    "norm.bias": "layer_norm.bias",
}


def test_the_recorded_numbers(golden):
    z = np.load(golden / "pvse.npz", allow_pickle=False)
    module = PIE(12, k=2, width=16)
    module.load_state_dict(
        {ours: torch.from_numpy(z[f"params_text_k2/{theirs}"]) for ours, theirs in NAMES.items()}
    )
    local = torch.from_numpy(z["text_k2/local"]).requires_grad_()
    global_feature = torch.from_numpy(z["text_k2/global"]).requires_grad_()
    mask = torch.arange(local.shape[1]) < torch.from_numpy(z["text_k2/lengths"])[:, None]
    out, residual, weight_BKN = module(local, mask, global_feature_BS=global_feature)
    np.testing.assert_allclose(out.detach(), z["text_k2/out"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(residual.detach(), z["text_k2/residual"], atol=2e-6)
    np.testing.assert_allclose(weight_BKN.transpose(1, 2).detach(), z["text_k2/attention"], atol=2e-6)
    (out * torch.from_numpy(z["text_k2/cot"])).sum().backward()
    np.testing.assert_allclose(local.grad, z["text_k2/grad_local"], atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(global_feature.grad, z["text_k2/grad_global"], atol=2e-5, rtol=1e-4)
    for ours, parameter in module.named_parameters():
        recorded = z[f"text_k2/grad_param/{NAMES[ours]}"]
        np.testing.assert_allclose(parameter.grad, recorded, atol=2e-5, rtol=1e-4)


def explicit(module: PIE, x_ND: torch.Tensor) -> torch.Tensor:
    """One set, head by head; the global feature is the mean."""
    out, global_feature = [], sum(x_ND) / len(x_ND)
    for w2 in module.attend[2].weight:
        logit = torch.stack([w2 @ torch.tanh(module.attend[0].weight @ x) for x in x_ND])
        weight = logit.exp() / logit.exp().sum()
        pooled = sum(w * x for w, x in zip(weight, x_ND, strict=True))
        added = global_feature + 1 / (1 + torch.exp(-(module.fc.weight @ pooled + module.fc.bias)))
        deviation = torch.sqrt(((added - added.mean()) ** 2).mean() + module.norm.eps)
        out.append((added - added.mean()) / deviation * module.norm.weight + module.norm.bias)
    return torch.stack(out)


def test_against_the_formula():
    module = trained("pie(k=3, hidden=5)", 6)
    hold_to_formula(module, lambda x_ND, _: explicit(module, x_ND))


def test_all_maps_start_from_xaviers_uniform_weights():
    torch.manual_seed(0)
    module = PIE(300, k=40, hidden=150, width=200)
    for weight in (x.weight.detach() for x in (module.attend[0], module.attend[2], module.fc)):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not module.fc.bias.any()


def test_a_summary_of_another_width_is_refused():
    x_BND, mask_BN = random_sets([3, 2], 8)
    with pytest.raises(InputError, match="Mean of the elements has width 8"):
        PIE(8, width=6)(x_BND, mask_BN)


def test_an_empty_set_is_refused_beside_a_summary_too():
    x_BND, mask_BN = random_sets([3, 2], 8)
    with pytest.raises(InputError, match="1 of 2 sets"):
        PIE(8)(x_BND, mask_BN & torch.tensor([[True], [False]]), global_feature_BS=torch.randn(2, 8))
