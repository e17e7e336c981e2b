from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from aggregators.contract import check_aggregator, random_sets
from aggregators.gpo import GPO
from aggregators.positions import sinusoids
from infra.errors import InputError
from infra.registry import AGGREGATORS

SPECS = [*AGGREGATORS.names(), "kmax(k=1)", "kmax(k=3)", "gpo(temperature=1.0)"]


@pytest.mark.parametrize("spec", SPECS)
def test_contract(spec):
    torch.manual_seed(0)
    check_aggregator(AGGREGATORS.build(spec, 6), 6)


def explicit_pool(spec: str, elements_ND: np.ndarray) -> np.ndarray:
    """Each aggregator by its definition, one channel at a time."""
    ordered_ND = -np.sort(-elements_ND, axis=0)
    match spec:
        case "mean":
            return elements_ND.mean(axis=0)
        case "max":
            return elements_ND.max(axis=0)
        case "kmax(k=3)":
            return ordered_ND[:3].mean(axis=0)


@pytest.mark.parametrize("spec", ["mean", "max", "kmax(k=3)"])
def test_against_the_definition(spec):
    x_BND, mask_BN = random_sets([5, 1, 2, 9], 6, dtype=torch.float64)
    out_BD = AGGREGATORS.build(spec, 6)(x_BND, mask_BN)
    for x_ND, mask_N, out_D in zip(x_BND, mask_BN, out_BD, strict=True):
        np.testing.assert_allclose(out_D, explicit_pool(spec, x_ND[mask_N].numpy()), atol=1e-12)


def test_kmax_gradient_is_shared_by_the_k_largest():
    x_BND = torch.tensor([[[3.0], [1.0], [2.0], [0.0]]], requires_grad=True)
    AGGREGATORS.build("kmax(k=2)", 1)(x_BND, torch.ones(1, 4, dtype=torch.bool)).sum().backward()
    assert x_BND.grad.flatten().tolist() == [0.5, 0.0, 0.5, 0.0]


def test_gpo_is_a_convex_combination_of_order_statistics():
    torch.manual_seed(1)
    x_BND, mask_BN = random_sets([7, 2, 12], 8)
    gpo = GPO(8)
    weight_BN = gpo.weights(x_BND, mask_BN)
    torch.testing.assert_close(weight_BN.sum(dim=1), torch.ones(3))
    assert (weight_BN[~mask_BN] == 0).all()
    largest_BD = x_BND.masked_fill(~mask_BN[..., None], float("-inf")).amax(dim=1)
    smallest_BD = x_BND.masked_fill(~mask_BN[..., None], float("inf")).amin(dim=1)
    pooled_BD = gpo(x_BND, mask_BN)
    assert (pooled_BD <= largest_BD + 1e-6).all()
    assert (pooled_BD >= smallest_BD - 1e-6).all()


def test_gpo_has_the_size_of_the_authors_code():
    assert sum(p.numel() for p in GPO(1024).parameters()) == 12_704


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
    weight_BN = gpo.weights(x_BND, mask_BN)
    np.testing.assert_allclose(weight_BN.detach(), z[f"{case}/weights"][..., 0], atol=2e-6, rtol=0)
    pooled_BD = gpo(x_BND, mask_BN)
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_pooled" not in z:
        return
    (pooled_BD * torch.from_numpy(z[f"{case}/cot_pooled"])).sum().backward()
    np.testing.assert_allclose(x_BND.grad, z[f"{case}/grad_features"], atol=2e-5, rtol=1e-4)
    for name, parameter in gpo.named_parameters():
        np.testing.assert_allclose(parameter.grad, z[f"{case}/grad_param/{name}"], atol=2e-5, rtol=1e-4)


def test_position_codes_reproduce_the_recorded_numbers(golden):
    z = np.load(golden / "posenc.npz", allow_pickle=False)
    cases = [key for key in z if key.startswith("gpo_")]
    assert cases
    for key in cases:
        np.testing.assert_allclose(sinusoids(*z[key].shape), z[key], atol=1e-5, rtol=1e-5, err_msg=key)


@pytest.mark.parametrize("spec", ["kmax(k=0)", "kmax(k='five')", "gpo(temperature=0)"])
def test_a_bad_parameter_is_refused(spec):
    with pytest.raises(InputError, match="must be"):
        AGGREGATORS.build(spec, 4)


def test_the_example_in_the_guide_keeps_the_contract(monkeypatch):
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL).group(1)
    monkeypatch.setattr(AGGREGATORS, "_parts", dict(AGGREGATORS._parts))
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "guide"})
    check_aggregator(AGGREGATORS.build("median", 6), 6)
