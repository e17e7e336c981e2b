from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aggregators.contract import random_sets
from aggregators.observe import observe
from infra.registry import AGGREGATORS

DIM = 8


def in_a_model(spec: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"pool": AGGREGATORS.build(spec, DIM)}).eval()


@pytest.mark.parametrize("spec", ["gpo", "max", "slots(k=3)", "pie", "gcn(then=attention)", "lip"])
@pytest.mark.parametrize("method", ["__call__", "with_residual"])
def test_what_is_seen_is_what_went_through(spec: str, method: str):
    model, (x_BND, mask_BN) = in_a_model(spec), random_sets([5, 1, 9, 5], DIM)
    pool = model["pool"]
    with observe(model) as (watched,):
        result = getattr(pool, method)(x_BND, mask_BN)
    embedding = result if isinstance(result, Tensor) else result[0]
    assert (watched.name, watched.count) == ("pool", 4)
    assert [seen.size for seen in watched.seen] == [5, 1, 9, 5]
    for b, seen in enumerate(watched.seen):
        assert torch.equal(seen.embedding, embedding[b])
        torch.testing.assert_close(pool(*seen.inputs)[0], embedding[b])
        (weights,) = watched.weights(seen)
        size = (..., slice(seen.size)) if pool.weights_over == "embeddings" else slice(seen.size)
        expected = pool.weights(x_BND, mask_BN)[b][size]
        shape_KND = (*expected.shape, 1) if pool.weights_over == "embeddings" else (1, seen.size, -1)
        torch.testing.assert_close(weights, expected.reshape(shape_KND))


def test_a_set_with_every_context_is_seen_with_one():
    model = in_a_model("score_attention(k=2, heads=2)")
    pool, sets, contexts = model["pool"], random_sets([5, 1, 9], DIM), random_sets([4, 2], DIM, seed=5)
    with observe(model) as (watched,):
        out_QGKD = pool.of_all(*sets, *contexts)
    assert watched.count == 3
    for q, seen in enumerate(watched.seen):
        torch.testing.assert_close(pool(*seen.inputs)[0], out_QGKD[q, q % 2])
        assert watched.weights(seen).shape == (1, 2, seen.size, 1)


def test_the_usual_way_to_every_context_calls_with_each_pair():
    model = in_a_model("score_attention(heads=2)")
    pool, base = model["pool"], type(model["pool"]).__mro__[1]
    with observe(model) as (watched,):
        base.of_all(pool, *random_sets([5, 1], DIM), *random_sets([4, 2, 3], DIM, seed=5))
    assert watched.count == 6


def test_a_summary_goes_along():
    model, global_BD = in_a_model("slots(k=2)"), torch.randn(2, DIM)
    with observe(model) as (watched,):
        embedding_BKD = model["pool"](*random_sets([5, 3], DIM), global_BD)
    torch.testing.assert_close(model["pool"](*watched.seen[1].inputs)[0], embedding_BKD[1])


def test_of_many_sets_a_fair_sample_is_kept():
    model = in_a_model("mean")
    with observe(model, most=50) as (watched,):
        for call in range(100):
            model["pool"](torch.full((10, 3, DIM), float(call)), torch.ones(10, 3, dtype=torch.bool))
    calls = torch.tensor([float(seen.embedding[0]) for seen in watched.seen])
    assert (watched.count, len(calls)) == (1000, 50)
    assert 35 < calls.mean() < 65
    assert calls.min() < 20
    assert calls.max() > 80


def test_afterwards_nothing_is_watched_also_after_an_error():
    model = in_a_model("mean")
    before = dict(vars(model["pool"]))
    with pytest.raises(RuntimeError, match="stop"), observe(model):
        raise RuntimeError("stop")
    assert vars(model["pool"]).keys() == before.keys()
