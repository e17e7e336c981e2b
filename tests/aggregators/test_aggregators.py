import copy
import re

import pytest
import torch
from places import ROOT
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Context
from polypool.aggregators.contract import check_aggregator
from polypool.aggregators.random_sets import random_inputs, random_sets
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS

SUMS = ["mean", "gpo", "pswe", "map", "netvlad", "salad", "score_attention", "transmil"]
"""One aggregator per kind of sum: elements, ranks, slices, queries, centres, transport, pairs, tokens."""


@pytest.mark.parametrize("way", ["half", "autocast"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", SUMS)
def test_half_precision_is_accurate_on_large_sets(spec, dtype, way):
    torch.manual_seed(0)
    module = AGGREGATORS.build(spec, 16).eval()
    inputs = random_inputs([512, 300], module=module, dim=16).fill(0.0)
    given = inputs.cast(torch.float32 if way == "autocast" else dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=way != "half"):
        found = given.pool(copy.deepcopy(module).to(dtype) if way == "half" else module).vectors.double()
    exact = inputs.cast(torch.float64).pool(copy.deepcopy(module).double()).vectors
    assert (found - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("spec", [*SUMS[:-2], "position_mean", "nextvlad", "lip", "gcn"])
def test_sums_over_large_sets_do_not_overflow(spec):
    torch.manual_seed(0)
    module = AGGREGATORS.build(spec, 16).eval()
    inputs = random_inputs([256], module=module, dim=16).map(lambda x, mask: (x + 300.0, mask))
    exact = inputs.cast(torch.float64).pool(copy.deepcopy(module).double()).vectors
    found = inputs.cast(torch.float16).pool(copy.deepcopy(module).half()).vectors
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=2.0 + 2e-2 * float(exact.abs().max()))


@pytest.mark.parametrize(
    ("spec", "definition"),
    [
        ("mean", lambda x_ND: x_ND.mean(dim=0)),
        ("max", lambda x_ND: x_ND.amax(dim=0)),
        ("cls", lambda x_ND: x_ND[0]),
        ("logsumexp(average=False)", lambda x_ND: x_ND.exp().sum(dim=0).log()),
    ],
)
def test_simple_poolings_match_their_definition(spec, definition):
    x_BND, mask_BN = random_sets([5, 1, 2, 9], 6, dtype=torch.float64)
    out_BD = AGGREGATORS.build(spec, 6)(x_BND, mask_BN).vectors
    expected = [definition(x_ND[mask_N]) for x_ND, mask_N in zip(x_BND, mask_BN, strict=True)]
    torch.testing.assert_close(out_BD, torch.stack(expected))


def call(module: Aggregator, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Call an aggregator, with a random context if it needs one."""
    context = None if module.context == "none" else Context(*random_sets([3] * len(x_BND), 8))
    if module.context == "vector":
        context = Context(context.x[:, 0])
    return module(x_BND, mask_BN, context=context).vectors


@pytest.mark.parametrize("spec", AGGREGATORS.names())
def test_nan_propagates_only_within_its_set(spec):
    x_BND, mask_BN = random_sets([4, 5, 3], 8)
    x_BND[1, [0, -1], 2] = float("nan")  # first and last: some aggregators read only one of these
    module = AGGREGATORS.build(spec, 8).eval()
    out = call(module, x_BND, mask_BN)
    spoilt = out[1, ..., 2].isnan()
    assert spoilt.any() if module.num_embeddings is None else spoilt.all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("spec", ["mean", "xpool"])
def test_invalid_features_or_mask_are_refused(spec):
    module = AGGREGATORS.build(spec, 8).eval()
    x_BND, mask_BN = random_sets([4, 5, 3], 8)
    for features, mask, message in (
        (x_BND, mask_BN.float(), r"torch.bool, True for real elements, not torch.float32"),
        (x_BND, mask_BN[:, :4], r"mask has shape \(3, 4\).* expected .* \(3, 5\)"),
        (x_BND, mask_BN[..., None], r"mask has shape \(3, 5, 1\)"),
        (x_BND[0], mask_BN[0], r"\(sets, elements, width\), not torch.float32 of shape \(5, 8\)"),
        (x_BND.long(), mask_BN, r"floating-point features .* not torch.int64"),
        (x_BND, mask_BN & torch.tensor([[True], [False], [False]]), r"2 of 3 sets .* the first is number 1"),
        (x_BND[:, :0], mask_BN[:, :0], r"3 of 3 sets have no element"),
    ):
        with pytest.raises(InputError, match=message):
            call(module, features, mask)


def test_smooth_maxima_do_not_overflow_in_float16():
    x_BND = torch.tensor([[[3e4], [2.9e4], [-3e4]]]).half()
    mask_BN = torch.ones(1, 3, dtype=torch.bool)
    for spec in ("logsumexp", "softpool", "gem"):
        assert AGGREGATORS.build(spec, 1).half()(x_BND, mask_BN).vectors.isfinite().all(), spec


def test_contributing_example_passes_contract_check(monkeypatch):
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL).group(1)
    monkeypatch.setattr(AGGREGATORS, "_parts", dict(AGGREGATORS._parts))
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "guide"})
    check_aggregator(AGGREGATORS.build("median", 6), 6)
