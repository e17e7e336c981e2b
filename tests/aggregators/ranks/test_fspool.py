import json
import math

import numpy as np
import pytest
import torch
from explicit import hold_to_formula

from polypool.aggregators.ranks.fspool import FSPool


def explicit(weight_DV, elements_ND):
    """The definition, one channel and rank at a time."""
    out, size, pieces = [], len(elements_ND), weight_DV.shape[1] - 1
    for channel, weight_V in enumerate(weight_DV):
        total = 0.0
        for k, value in enumerate(elements_ND[:, channel].sort(descending=True).values):
            place = k / (size - 1) * pieces if size > 1 else 0.0
            low = min(math.floor(place), pieces - 1)
            total = total + (weight_V[low] * (low + 1 - place) + weight_V[low + 1] * (place - low)) * value
        out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize("pieces", [1, 4, 20])
def test_values_and_gradients_follow_the_definition(pieces):
    hold_to_formula(f"fspool(pieces={pieces})", lambda x_ND, p: explicit(p["weight"], x_ND))


@pytest.mark.parametrize("case", ["full", "ragged"])
def test_the_recorded_numbers(golden, case):
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
