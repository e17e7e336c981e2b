import pytest
import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Context
from polypool.aggregators.observe import observe
from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS

DIM = 8


def in_a_model(spec: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"pool": AGGREGATORS.build(spec, DIM)}).eval()


def pads_cut(weights: Tensor, over: str, mask_N: Tensor) -> Tensor:
    """Return one set's weights without pads: over its real elements, or as many ranks."""
    if over == "ranks":
        return weights[: int(mask_N.sum())]
    return weights[:, mask_N] if over == "embeddings" else weights[mask_N]


SPECS = ["gpo", "slots(k=3)", "lip", "gcn(then=attention)"]


@pytest.mark.parametrize("spec", SPECS)
def test_observe_records_vectors_and_weights(spec):
    model, (x_BND, mask_BN) = in_a_model(spec), random_sets([5, 1, 9, 5], DIM)
    mask_BN[2, 3] = False
    pool = model["pool"]
    with observe(model) as (watched,):
        pooled = pool(x_BND, mask_BN)
    assert (watched.name, watched.count, watched.wrong) == ("pool", 4, "")
    assert [seen.size for seen in watched.seen] == [5, 1, 8, 5]
    for b, seen in enumerate(watched.seen):
        assert torch.equal(seen.vectors, pooled.vectors[b])
        expected = pads_cut(pooled.weights[b], pool.weights_over, mask_BN[b])
        assert torch.equal(seen.weights, expected)
        (weight_KND,) = watched.weights(seen)
        shape_KND = (*expected.shape, 1) if pool.weights_over == "embeddings" else (1, seen.size, -1)
        assert torch.equal(weight_KND, expected.reshape(shape_KND))
    first = watched.seen[0]
    assert watched.weights(first, watched.seen[3]).shape == (2, *watched.weights(first)[0].shape)


def test_observe_records_missing_weights_as_none():
    model = in_a_model("logsumexp")
    with observe(model) as (watched,):
        model["pool"](*random_sets([5, 3], DIM))
    assert [seen.weights for seen in watched.seen] == [None, None]
    assert watched.weights(*watched.seen) is None


def test_observe_keeps_one_context_per_set():
    model = in_a_model("score_attention(k=2, heads=2)")
    pool, sets, contexts = model["pool"], random_sets([5, 1, 9], DIM), random_sets([4, 2], DIM, seed=5)
    with observe(model) as (watched,):
        pooled = pool(*sets, context=Context(*contexts, all_pairs=True))
    assert watched.count == 3
    for q, seen in enumerate(watched.seen):
        assert torch.equal(seen.vectors, pooled.vectors[q, q % 2])
        assert torch.equal(seen.weights, pooled.weights[q, q % 2][:, sets[1][q]])
        assert watched.weights(seen).shape == (1, 2, seen.size, 1)


def test_observe_keeps_uniform_sample_of_sets():
    model = in_a_model("mean")
    with observe(model, most=50) as (watched,):
        for call in range(100):
            model["pool"](torch.full((10, 3, DIM), float(call)), torch.ones(10, 3, dtype=torch.bool))
    calls = torch.tensor([float(seen.vectors[0]) for seen in watched.seen])
    assert (watched.count, len(calls)) == (1000, 50)
    assert 35 < calls.mean() < 65
    assert calls.min() < 20
    assert calls.max() > 80
