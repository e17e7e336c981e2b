import numpy as np
import torch

from polypool.aggregators.sets.pie import PIE

NAMES = {
    "attend.0.weight": "attention.w_1.weight",
    "attend.2.weight": "attention.w_2.weight",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "norm.weight": "layer_norm.weight",
    "norm.bias": "layer_norm.bias",
}


def test_pie_matches_recorded_outputs(golden):
    z = np.load(golden / "pvse.npz", allow_pickle=False)
    module = PIE(12, k=2, width=16)
    module.load_state_dict(
        {ours: torch.from_numpy(z[f"params_text_k2/{theirs}"]) for ours, theirs in NAMES.items()}
    )
    local = torch.from_numpy(z["text_k2/local"]).requires_grad_()
    global_feature = torch.from_numpy(z["text_k2/global"]).requires_grad_()
    mask = torch.arange(local.shape[1]) < torch.from_numpy(z["text_k2/lengths"])[:, None]
    out, residual, weight_BKN, _ = module(local, mask, global_feature_BS=global_feature)
    np.testing.assert_allclose(out.detach(), z["text_k2/out"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(residual.detach(), z["text_k2/residual"], atol=2e-6)
    np.testing.assert_allclose(weight_BKN.transpose(1, 2).detach(), z["text_k2/attention"], atol=2e-6)
    (out * torch.from_numpy(z["text_k2/cot"])).sum().backward()
    np.testing.assert_allclose(local.grad, z["text_k2/grad_local"], atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(global_feature.grad, z["text_k2/grad_global"], atol=2e-5, rtol=1e-4)
    for ours, parameter in module.named_parameters():
        recorded = z[f"text_k2/grad_param/{NAMES[ours]}"]
        np.testing.assert_allclose(parameter.grad, recorded, atol=2e-5, rtol=1e-4)
