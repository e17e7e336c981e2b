"""The best of a gallery: exact whatever the cut, and what is not exact held to a recall of 0.999 at 10."""

import numpy as np
import pytest
import torch
from corpora import make_corpus
from toy import trainer_of

from polypool.infra.errors import InputError
from polypool.pipelines.models.search import indices
from polypool.pipelines.models.search.indices import Exact, Faiss, TwoPass, top_k, top_k_of_parts
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.recipes import derive
from polypool.tasks.similarities.similarity import Similarity


def units(*shape: int, seed: int) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("k", [1, 3, 7, 50])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_equal_scores_come_in_the_gallerys_order_however_it_is_cut(k, size):
    score_G = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(k)).float()
    expected = sorted(range(40), key=lambda place: (-score_G[place].item(), place))[:k]
    found = top_k_of_parts(score_G.split(size), k)
    assert found.place_K.tolist() == expected
    assert found.score_K.tolist() == score_G[expected].tolist()


def test_scores_that_are_no_numbers_are_an_error():
    with pytest.raises(InputError, match="not numbers"):
        top_k(torch.tensor([0.0, torch.nan]), 1)


def test_exact_search_is_that_of_float64_in_parts(monkeypatch):
    monkeypatch.setattr(indices, "NUMBERS", 70)  # parts of seven
    embedding_GD, query_QD = units(61, 10, seed=0), units(3, 10, seed=1)
    found = Exact(embedding_GD, lambda part, queries: part @ queries.T).top(query_QD, 10)
    sim_QG = query_QD.double().numpy() @ embedding_GD.double().numpy().T
    for (place_K, score_K), sim_G in zip(found, sim_QG, strict=True):
        assert place_K.tolist() == np.argsort(-sim_G)[:10].tolist()
        np.testing.assert_allclose(score_K, np.sort(sim_G)[::-1][:10], rtol=1e-5)


def recall(index: object, whole: Exact, queries: torch.Tensor) -> float:
    pairs = list(zip(index.top(queries, 10), whole.top(queries, 10), strict=True))
    for found, right in pairs:  # what both find has the same score
        at = dict(zip(*(x.tolist() for x in right), strict=True))
        for place, score in zip(*(x.tolist() for x in found), strict=True):
            assert place not in at or at[place] == pytest.approx(score, abs=1e-5)
    shared = sum(len(set(a.place_K.tolist()) & set(b.place_K.tolist())) for a, b in pairs)
    return shared / (10 * len(pairs))


@pytest.mark.parametrize(
    ("name", "guide"),
    [(name, None) for name in ("smooth_chamfer", "chamfer", "mil", "match_probability", "maxsim", "wti")]
    + [("maxsim", guide) for guide in ("vector", "mean", "largest")],
)
def test_two_passes_over_sets_that_are_made_up_find_the_ten_best(name, guide, monkeypatch):
    monkeypatch.setattr(indices, "NUMBERS", 1 << 18)
    if guide:  # whichever guide it is that measures as the cheapest
        monkeypatch.setattr(TwoPass, "_products", lambda self, one, *_: one != guide)
    similarity = Similarity.build(name, 48)
    topics_GD = units(200, 1, 48, seed=2).repeat(10, 1, 1)
    embedding_GKD = torch.nn.functional.normalize(topics_GD + 0.9 * units(2000, 4, 48, seed=3), dim=-1)
    near_QKD = embedding_GKD[torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:164]]
    queries = torch.nn.functional.normalize(near_QKD + 0.7 * units(164, 4, 48, seed=4), dim=-1)
    if similarity.of_any_size:
        embedding_GKD[::3, 2:], queries[::2, 3:] = 0.0, 0.0

    def score(part: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return similarity(part, query)

    whole, index = Exact(embedding_GKD, score), TwoPass(embedding_GKD, score, queries[:64])
    assert guide in (None, index.guide)
    assert guide or index.candidates < len(embedding_GKD) / 2, "it would be no saving"
    assert recall(index, whole, queries[64:]) >= 0.999


def test_a_vector_that_fills_up_a_set_guides_nobody():
    """Of 300 sets of one vector, all away from the query, the nearest come first, whatever lies beside them."""
    away_GD = -units(300, 24, seed=0).abs()
    embedding_GKD = torch.stack([away_GD, torch.zeros_like(away_GD)], dim=1)
    query = units(1, 1, 24, seed=1).abs()
    index = TwoPass(embedding_GKD, lambda part, queries: part[:, 0] @ queries[:, 0].T, query)
    exact_G = away_GD @ query[0, 0]
    (first,) = [part["mean"] for part in index._first(["mean"], query)]
    torch.testing.assert_close(first, exact_G)


def test_two_passes_over_sets_that_were_trained_find_the_ten_best(tmp_path, monkeypatch):
    run = make_corpus(tmp_path, train=64, test=600)
    sets = {
        "aggregator": "slots(k=3, heads=2, head_width=8)",
        "similarity": "smooth_chamfer",
        "figures": False,
    }
    run = derive(run, **sets, data={"text_augment": ""}, optim={"epochs": 3})
    trainer = trainer_of(run, tmp_path / "log")
    trainer.train()
    trained = TrainedModel(run=run, adapter=trainer.adapter, model=trainer.model.eval())
    whole, finder = (trained.open_search(index=method) for method in ("exact", "two-pass"))
    index = finder.items_gallery.index
    assert isinstance(index, TwoPass)
    assert index.candidates < 300, "it would be no saving"
    texts = trained.adapter.data("test").texts
    shared = found = 0
    for text in list(dict.fromkeys(texts))[:80]:
        right, got = ([hit.score for hit in each.find(Query(text=text), 10)] for each in (whole, finder))
        shared += sum(a == pytest.approx(b, abs=1e-5) for a, b in zip(right, got, strict=True))
        found += len(right)
    assert shared / found >= 0.999
    assert indices.AT == 10


@pytest.mark.parametrize("small", [5000, 100])
def test_faiss_finds_the_ten_best(small):
    pytest.importorskip("faiss", reason="faiss-cpu is an extra")
    centres_GD = units(40, 32, seed=5).repeat(75, 1)
    embedding_GD = torch.nn.functional.normalize(centres_GD + 0.8 * units(3000, 32, seed=6), dim=-1)
    queries_QD = torch.nn.functional.normalize(embedding_GD[::10] + 0.5 * units(300, 32, seed=7), dim=-1)
    index = Faiss(embedding_GD, queries_QD[::2], small=small)
    assert index.recall >= 0.999
    assert (index.clusters > 0) == (small < 3000)
    whole = Exact(embedding_GD, lambda part, queries: part @ queries.T)
    assert recall(index, whole, queries_QD[1::2]) >= 0.995
    assert sorted(index.top(queries_QD[:1], 4000)[0].place_K.tolist()) == list(range(3000))
    with pytest.raises(InputError, match="not a number"):
        index.top(torch.full((1, 32), torch.nan), 3)
