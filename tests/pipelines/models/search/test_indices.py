"""The best of a gallery: exact whatever the cut, and what is not exact held to its recall of the ten best."""

from functools import partial

import numpy as np
import pytest
import torch
from corpora import make_corpus
from toy import trainer_of

from polypool.infra.errors import InputError
from polypool.pipelines.models.search import indices, two_pass
from polypool.pipelines.models.search.encodings import Components, FixedDimensional, Means
from polypool.pipelines.models.search.faiss_index import Faiss
from polypool.pipelines.models.search.indices import Exact, PairScore, top_k, top_k_of_parts
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.models.search.stored import Binary, Float32, Int8
from polypool.pipelines.models.search.two_pass import TwoPass
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.recipes.load import derive
from polypool.tasks.similarities.similarity import Similarity

KEPT = [("maxsim", "int8"), ("maxsim", "binary"), ("smooth_chamfer", "int8")]


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


def recall(index: object, whole: Exact, queries: torch.Tensor, *, near: float = 1e-5) -> float:
    pairs = list(zip(index.top(queries, 10), whole.top(queries, 10), strict=True))
    for found, right in pairs:  # what both find has the same score
        at = dict(zip(*(x.tolist() for x in right), strict=True))
        for place, score in zip(*(x.tolist() for x in found), strict=True):
            assert place not in at or at[place] == pytest.approx(score, abs=near)
    shared = sum(len(set(a.place_K.tolist()) & set(b.place_K.tolist())) for a, b in pairs)
    return shared / (10 * len(pairs))


def clustered(name: str, *, sets: int = 2000) -> tuple[torch.Tensor, torch.Tensor, PairScore]:
    """Return a gallery of sets of 4 vectors, 164 queries near some of them, and a similarity."""
    similarity = Similarity.build(name, 48)
    topics_GD = units(sets // 10, 1, 48, seed=2).repeat(10, 1, 1)
    embedding_GKD = torch.nn.functional.normalize(topics_GD + 0.9 * units(sets, 4, 48, seed=3), dim=-1)
    near_QKD = embedding_GKD[torch.randperm(sets, generator=torch.Generator().manual_seed(0))[:164]]
    queries = torch.nn.functional.normalize(near_QKD + 0.7 * units(164, 4, 48, seed=4), dim=-1)
    if similarity.of_any_size:
        embedding_GKD[::3, 2:], queries[::2, 3:] = 0.0, 0.0

    def score(part: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return similarity(part, query)

    return embedding_GKD, queries, score


NAMES = ("smooth_chamfer", "chamfer", "mil", "match_probability", "maxsim", "wti")


@pytest.mark.parametrize(("name", "kept"), [*((name, "float32") for name in NAMES), *KEPT])
def test_two_passes_over_sets_that_are_made_up_find_the_ten_best(name, kept):
    embedding_GKD, queries, score = clustered(name)
    whole, index = (
        Exact(embedding_GKD, score),
        TwoPass(embedding_GKD, score, queries[:64], kept=kept),
    )
    assert index.candidates < len(embedding_GKD) / 2, "it would be no saving"
    found = recall(index, whole, queries[64:], near=1e-5 if kept == "float32" else 0.05)
    assert found >= (0.97 if kept == "float32" else 0.93)
    assert index.recall == pytest.approx(found, abs=0.03), "what is stated is what is found"
    assert f"recall@10 {index.recall:.3f}" in index.about
    assert index.stored.name in index.about


def test_the_recall_of_too_few_candidates_is_stated(monkeypatch):
    monkeypatch.setattr(two_pass, "RECALL", 0.3)
    monkeypatch.setattr(two_pass, "MARGIN", 1)
    monkeypatch.setattr(two_pass, "LEAST", 1)
    embedding_GKD, queries, score = clustered("maxsim")
    index = TwoPass(embedding_GKD, score, queries[:64])
    found = recall(index, Exact(embedding_GKD, score), queries[64:])
    assert index.recall == pytest.approx(found, abs=0.1)
    assert found < 0.7


def test_encodings_choose_where_means_do_not():
    """All sets have the mean 0, so that means say nothing about which vectors they hold."""
    half_GKD = torch.nn.functional.normalize(units(600, 3, 16, seed=0), dim=-1)
    embedding_GKD = torch.cat([half_GKD, -half_GKD], dim=1)
    similarity = Similarity.build("maxsim", 16)
    with torch.no_grad():
        index = TwoPass(embedding_GKD, similarity, embedding_GKD[::10])
    assert isinstance(index.encoding, Components)
    assert index.recall > 0.9


@pytest.mark.parametrize("width", [12, 1000])
@pytest.mark.parametrize("shape", [(3, 5), (7,)])
def test_encodings_are_those_of_the_paper(shape, width):
    """Cell by cell and vector by vector, in float64, of sets of 5, 2 and no vectors."""
    x, y = (units(*(shape if len(shape) > 1 else (3,)), 16, seed=seed).double() for seed in (0, 1))
    if len(shape) > 1:
        x[1, [0, 2, 3]], x[2], y[0, 3:] = 0.0, 0.0, 0.0
    ours = FixedDimensional(16, bits=3, repetitions=2, inner=width, dtype=torch.float64)
    looking, found = (
        [explicit(ours, set_KD, side) for set_KD in z] for z, side in ((x, "look"), (y, "find"))
    )
    one_way_QG = torch.tensor([[float(a @ b) for b in found] for a in looking])
    looking, found = (
        [explicit(ours, set_KD, side) for set_KD in z] for z, side in ((y, "look"), (x, "find"))
    )
    other_way_QG = torch.tensor([[float(a @ b) for b in looking] for a in found])
    sim_QG = ours.queries(x) @ ours.gallery(y).T
    torch.testing.assert_close(sim_QG, (one_way_QG + other_way_QG).double() / 2, atol=1e-6, rtol=1e-6)


def explicit(of: FixedDimensional, x_KD: torch.Tensor, side: str) -> torch.Tensor:
    """Return the encoding of a set that looks or is found, of all repetitions, by loops."""
    vectors = [x_D for x_D in x_KD.reshape(-1, 16) if x_D.any()]
    numbers = []
    for plane_DC, projection_DP in zip(of.plane_RDC, of.projection_RDP, strict=True):
        codes = [tuple(int(x_D @ plane_DC[:, c] > 0) for c in range(3)) for x_D in vectors]
        for cell in range(8):
            code = tuple(cell >> c & 1 for c in range(3))
            inside = [x_D for x_D, its in zip(vectors, codes, strict=True) if its == code]
            if side == "look":
                made_D = sum(inside, torch.zeros(16, dtype=torch.float64)) / max(1, len(vectors))
            elif inside:
                made_D = sum(inside) / len(inside)
            elif vectors:
                apart = [sum(a != b for a, b in zip(its, code, strict=True)) for its in codes]
                made_D = vectors[apart.index(min(apart))]
            else:
                made_D = torch.zeros(16, dtype=torch.float64)
            numbers.append(made_D @ projection_DP)
    return torch.cat(numbers) / 2**0.5


def test_a_partition_of_one_cell_is_the_mean():
    x, y = units(3, 5, 8, seed=0), units(4, 2, 8, seed=1)
    x[0, 2:] = 0.0
    ours, means = FixedDimensional(8, bits=0, repetitions=1), Means()
    torch.testing.assert_close(ours.queries(x) @ ours.gallery(y).T, means.queries(x) @ means.gallery(y).T)


@pytest.mark.parametrize("kind", [Float32, Int8, partial(Int8, on_disk=True), Binary])
@pytest.mark.parametrize("dim", [24, 13])
def test_vectors_that_are_kept_in_fewer_bits_are_near_and_pads_stay_pads(kind, dim):
    x_GKD = units(1500, 3, dim, seed=0)
    x_GKD[7, 1:] = 0.0
    stored, place_C = kind(x_GKD), torch.tensor([1400, 7, 3])
    kept_CKD = stored.sets(place_C)
    assert kept_CKD[1, 1:].eq(0).all()
    x_CKD = x_GKD[place_C]
    if isinstance(stored, Binary):
        expected_CKD = x_CKD.sign() * x_CKD.norm(dim=2, keepdim=True) / dim**0.5
        torch.testing.assert_close(kept_CKD, expected_CKD, atol=1e-3, rtol=1e-3)
    else:
        largest_CK1 = x_CKD.abs().amax(dim=2, keepdim=True)
        assert ((kept_CKD - x_CKD).abs() <= largest_CK1 / 127 / 2 + 1e-7).all()
    bits = {"float32": 32 * dim, "int8": 8 * dim + 32, "binary": 8 * -(-dim // 8) + 16}[stored.name]
    on_disk = isinstance(kind, partial)
    assert stored.nbytes * 8 == 1500 * 3 * (32 if on_disk else bits)


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
    assert shared / found >= 0.97


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
