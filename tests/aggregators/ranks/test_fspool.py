import json

import numpy as np
import pytest
import torch

from polypool.aggregators.ranks.fspool import FSPool


@pytest.mark.parametrize("case", ["full", "ragged"])
def test_fspool_matches_recorded_outputs(golden, case):
    z = np.load(golden / "fspool.npz", allow_pickle=False)
    weight = torch.from_numpy(
        z[json.loads((golden / "fspool.json").read_text())["cases"][case]["params"] + "/weight"]
    )
    pool = FSPool(len(weight), pieces=weight.shape[1] - 1)
    pool.load_state_dict({"weight": weight})
    x_BND = torch.from_numpy(z[f"{case}/x"]).transpose(1, 2).requires_grad_()
    mask_BN = torch.arange(x_BND.shape[1]) < torch.from_numpy(z[f"{case}/lengths"])[:, None]
    pooled_BD = pool(x_BND, mask_BN).vectors
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    (pooled_BD * torch.from_numpy(z[f"{case}/cot"])).sum().backward()
    np.testing.assert_allclose(x_BND.grad.transpose(1, 2), z[f"{case}/grad_x"], atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(pool.weight.grad, z[f"{case}/grad_weight"], atol=2e-5, rtol=1e-4)
