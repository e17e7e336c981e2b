import numpy as np
import pytest
import torch

from polypool.aggregators.ranks.adpool import ADPool


def load(z, dim=16) -> ADPool:
    pool = ADPool(dim)
    pool.load_state_dict(
        {key.removeprefix("params_A/"): torch.from_numpy(z[key]) for key in z if key.startswith("params_A/")}
    )
    return pool


@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize("case", ["full", "alone_5", "single"])
def test_adpool_matches_recorded_outputs_under_padding(golden, case, pad):
    z = np.load(golden / "adpool.npz", allow_pickle=False)
    pool, features = load(z), torch.from_numpy(z[f"{case}/features"]).requires_grad_()
    x_BND = torch.nn.functional.pad(features, (0, 0, 0, pad), value=3.0)
    mask_BN = torch.arange(x_BND.shape[1]) < torch.from_numpy(z[f"{case}/lengths"])[:, None]
    shares = []
    pool.balance.register_forward_hook(lambda module, inputs, score: shares.append(score))
    pooled_BD = pool(x_BND, mask_BN).vectors
    share_B2 = torch.cat(shares, dim=1).softmax(dim=1)
    np.testing.assert_allclose(share_B2.detach(), z[f"{case}/fusion_weights"], atol=2e-6, rtol=0)
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_pooled" not in z:
        return
    (pooled_BD * torch.from_numpy(z[f"{case}/cot_pooled"])).sum().backward()
    np.testing.assert_allclose(features.grad, z[f"{case}/grad_features"], atol=2e-5, rtol=1e-4)
    for name, parameter in pool.named_parameters():
        np.testing.assert_allclose(parameter.grad, z[f"{case}/grad_param/{name}"], atol=2e-5, rtol=1e-4)
