from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from polypool.aggregators.random_sets import random_sets
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
    torch.manual_seed(0)
    pool = FSPool(3, pieces=pieces).double()
    x_BND, mask_BN = random_sets([5, 1, 2, 23], 3, pad=2, dtype=torch.float64)
    x_BND.requires_grad_()
    found_BD = pool(x_BND, mask_BN).vectors
    expected_BD = torch.stack(
        [explicit(pool.weight, x_ND[mask_N]) for x_ND, mask_N in zip(x_BND, mask_BN, strict=True)]
    )
    torch.testing.assert_close(found_BD, expected_BD, atol=1e-10, rtol=1e-8)
    cot_BD = torch.randn(4, 3, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad((out * cot_BD).sum(), (x_BND, pool.weight)) for out in (found_BD, expected_BD)
    )
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-7)


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
