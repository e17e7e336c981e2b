"""Aggregators of each kind under torch.compile and torch.func.vmap."""

import pytest
import torch

import polypool as pp
from polypool.aggregators.random_sets import random_sets

X_BND, MASK_BN = random_sets([5, 1, 3], 16)


@pytest.mark.parametrize("spec", ["gpo", "late(factor=2)", "seq_lstm", "kmax(k=2)"])
def test_torch_compile_keeps_vectors_and_gradients(spec):
    module = pp.aggregator(spec, 16).eval()
    torch.compiler.reset()
    found = []
    for call in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        x_BND = X_BND.clone().requires_grad_()
        vectors = call(x_BND, MASK_BN).vectors
        vectors.square().sum().backward()
        found.append((vectors.detach(), x_BND.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("spec", ["gpo", "salad"])
def test_vmap_over_batches_equals_loop(spec):
    module = pp.aggregator(spec, 16).eval()
    x_GBND, mask_GBN = torch.stack([X_BND, X_BND.flip(0)]), torch.stack([MASK_BN, MASK_BN.flip(0)])
    mapped = torch.func.vmap(lambda x_BND, mask_BN: module(x_BND, mask_BN).vectors)(x_GBND, mask_GBN)
    both = [module(*each).vectors for each in zip(x_GBND, mask_GBN, strict=True)]
    torch.testing.assert_close(mapped, torch.stack(both))
