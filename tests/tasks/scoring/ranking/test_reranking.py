"""Ranks after a first pass, against the rule written out query by query."""

import numpy as np
import pytest
import torch

from polypool.infra.errors import InputError
from polypool.tasks.scoring.evaluation import RetrievalGallery, evaluate_protocol
from polypool.tasks.scoring.protocols import ScoringProtocol, protocol_named
from polypool.tasks.scoring.ranking import reranking
from polypool.tasks.scoring.ranking.reranking import best_places, first_pass, put_first

ITEMS, CAPTIONS = 40, 90
OWNER_T = np.sort(np.concatenate([np.arange(ITEMS), np.random.default_rng(3).integers(0, ITEMS, 50)]))


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    monkeypatch.setattr(reranking, "PROBES", 1)


class Pairs:
    """The scores of a model that looks at every pair, and which pairs it was asked about."""

    def __init__(self, sim_VT: torch.Tensor) -> None:
        self.sim_VT, self.asked_VT, self.singly = sim_VT, np.zeros(sim_VT.shape, bool), 0

    def __call__(self, images: slice, captions: slice) -> torch.Tensor:
        self.asked_VT[images, captions] = True
        return self.sim_VT[images, captions]

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> torch.Tensor:
        self.asked_VT[np.ix_(row_V, column_T)] = True
        return self.sim_VT[np.ix_(row_V, column_T)]

    def of_pairs(self, row_P: np.ndarray, column_P: np.ndarray) -> torch.Tensor:
        self.asked_VT[row_P, column_P] = True
        self.singly += len(row_P)
        return self.sim_VT[row_P, column_P]


def scores(*, rank: int = 6, noise: float = 0.3, items: int = ITEMS) -> torch.Tensor:
    """Scores of little rank, with noise that a first pass cannot see; right ones are somewhat higher."""
    draw = torch.Generator().manual_seed(0)
    owner_T = OWNER_T[: np.searchsorted(OWNER_T, items)]
    item_VR, noise_VT = (torch.randn(size, generator=draw) for size in ((items, rank), (items, len(owner_T))))
    caption_TR = item_VR[owner_T] + torch.randn(len(owner_T), rank, generator=draw)
    return item_VR @ caption_TR.T / rank + noise * noise_VT


def by_the_rule(sim_G: np.ndarray, first_G: np.ndarray, right: set[int], k: int) -> tuple[int, bool]:
    """The rank of a query's best right answer, and whether the model looked at it."""
    order = sorted(range(len(first_G)), key=lambda place: (-first_G[place], place))
    best = sorted(order[:k], key=lambda place: -sim_G[place])
    return min((best + order[k:]).index(place) for place in right), bool(right & set(order[:k]))


@pytest.mark.parametrize("rows", [slice(0, ITEMS), slice(7, 31)], ids=["whole", "fold"])
@pytest.mark.parametrize("texts", [None, [f"text {number % 71}" for number in range(CAPTIONS)]])
@pytest.mark.parametrize("k", [1, 5, 12])
def test_ranks_are_those_of_the_rule(rows, texts, k):
    score, gallery = Pairs(scores()), RetrievalGallery.of(rows, OWNER_T, texts=texts)
    found = gallery.rank(score, protocol_named("whole").reranked(k))
    row_V, column_T = np.arange(rows.start, rows.stop), gallery.column_G
    item_VP, caption_TP = first_pass(score, row_V, column_T, probes=k)
    sim_VT = score.sim_VT[np.ix_(row_V, column_T)].numpy()
    for ranks, sim_QG, first_QG, positives in zip(
        found,
        (sim_VT, sim_VT.T),
        ((item_VP @ caption_TP.T).numpy(), (caption_TP @ item_VP.T).numpy()),
        gallery.positives(),
        strict=True,
    ):
        answers = np.split(positives.item_P, positives.start_Q1[1:-1])
        expected = [
            by_the_rule(sim_G, first_G, set(right.tolist()), k)
            for sim_G, first_G, right in zip(sim_QG, first_QG, answers, strict=True)
        ]
        np.testing.assert_array_equal(ranks.rank_Q, [rank for rank, _ in expected])
        np.testing.assert_array_equal(ranks.recall_Q(k), [float(reached) for _, reached in expected])
        assert 0 < ranks.recall_Q(k).mean() < 1, "some right answers are beyond the k best, and some are not"


def test_the_model_sees_the_probes_and_the_best_and_no_other_pair():
    score = Pairs(scores())
    RetrievalGallery.of(slice(5, 35), OWNER_T).rank(score, protocol_named("whole").reranked(4))
    column_T = np.flatnonzero((OWNER_T >= 5) & (OWNER_T < 35))
    asked_VT = score.asked_VT[np.ix_(np.arange(5, 35), column_T)]
    assert score.asked_VT.sum() == asked_VT.sum() <= 2 * 4 * (30 + len(column_T))
    assert (asked_VT.sum(axis=0) >= 4).all()
    assert (asked_VT.sum(axis=1) >= 4).all()


@pytest.mark.parametrize("k", [ITEMS, CAPTIONS, 10**6])
@pytest.mark.parametrize("folds", [1, 4])
def test_where_k_reaches_the_gallery_the_result_is_the_exact_one_bit_for_bit(k, folds):
    protocol = ScoringProtocol(name="made", about="", folds=folds)
    exact = evaluate_protocol(protocol, Pairs(scores()), OWNER_T, ITEMS)
    score = Pairs(scores())
    found = evaluate_protocol(protocol.reranked(k), score, OWNER_T, ITEMS)
    assert score.singly == 0, "pairs by themselves would differ in the last bits"
    for name in ("ranks_i2t", "ranks_t2i", "caption_G"):
        np.testing.assert_array_equal(getattr(found, name), getattr(exact, name))
    assert {name: found.metrics[name] for name in exact.metrics} == exact.metrics
    assert found.metrics.keys() - exact.metrics.keys() == {f"i2t/R{k}", f"t2i/R{k}"}


def test_the_more_are_reranked_the_nearer_the_exact_result():
    """Noise of a fifth hides from the first pass who is best, and from none of 20 who is good."""
    score = scores(noise=0.2)
    exact = evaluate_protocol(protocol_named("whole"), Pairs(score), OWNER_T, ITEMS).metrics
    protocols = [protocol_named(f"whole-rerank{k}") for k in (2, 8, 30)]
    found = [evaluate_protocol(of, Pairs(score), OWNER_T, ITEMS).metrics for of in protocols]
    away = [abs(metrics["rsum"] - exact["rsum"]) for metrics in found]
    assert away[0] > away[1] > away[2]
    for k, metrics in zip((2, 8, 30), found, strict=True):
        assert all(metrics[f"{side}/R1"] <= metrics[f"{side}/R{k}"] for side in ("i2t", "t2i"))


@pytest.mark.parametrize("probes", [20, 30])
def test_the_first_pass_is_the_scores_themselves_where_their_rank_is_no_more_than_the_probes(probes):
    score = Pairs(scores(noise=0.0).double())
    item_VP, caption_TP = first_pass(score, np.arange(ITEMS), np.arange(CAPTIONS), probes=probes)
    torch.testing.assert_close(item_VP @ caption_TP.T, score.sim_VT, rtol=0, atol=2e-3)
    assert score.asked_VT.sum() == probes * (ITEMS + CAPTIONS - probes)


def test_probes_are_no_more_than_there_are_and_scores_of_no_use_are_refused():
    item_VP, caption_TP = first_pass(Pairs(scores()), np.arange(3), np.arange(8), probes=5)
    assert (item_VP.shape, caption_TP.shape) == ((3, 3), (8, 3))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(InputError, match="scores that are no numbers; check the features"):
            first_pass(Pairs(torch.full((3, 8), bad)), np.arange(3), np.arange(8), probes=2)


def test_others_stay_below_in_their_order_and_equals_stay_equal():
    first_QG = torch.tensor([[0.5, 0.25, 0.5, -1.0, 0.25 + 2.0**-24], [3.0, 1, 2, 5, 4]])
    put = put_first(first_QG, torch.tensor([[3, 1], [0, 2]]), torch.tensor([[-7.0, -9.0], [8.0, 8.0]]))
    assert put.dtype == torch.float64
    assert put[0, [3, 1]].tolist() == [-7, -9]
    assert put[0, 0] == put[0, 2] > put[0, 4]
    assert put[0, [0, 2, 4]].max() < -9
    assert put[1].argsort(descending=True, stable=True).tolist() == [0, 2, 3, 4, 1]


def test_equals_are_taken_in_the_order_of_the_gallery():
    assert best_places(torch.tensor([[1.0, 2, 1, 2, 1]]), 3).tolist() == [[1, 3, 0]]
    assert best_places(torch.zeros(2, 50), 4).tolist() == [[0, 1, 2, 3]] * 2


def test_a_collapsed_model_scores_what_chance_does():
    score, protocol = Pairs(torch.full((ITEMS, CAPTIONS), 0.25)), protocol_named("whole-rerank10")
    flat = evaluate_protocol(protocol, score, OWNER_T, ITEMS)
    for name in ("i2t/R1", "t2i/R1"):
        assert flat.metrics[name] < 3 * flat.chance[name]


def test_protocols_have_names_and_versions_of_their_own():
    exact, found = protocol_named("coco-5k"), protocol_named("coco-5k-rerank100")
    assert (found.name, found.rerank, found.items) == ("coco-5k-rerank100", 100, 5000)
    assert found == exact.reranked(100) != exact.reranked(50)
    assert "100 of each query's gallery are scored" in found.about


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coco-5k-rerank0", "rerank=0: at least 1"),
        ("coco-5k-rerank-1", "rerank=-1: at least 1"),
        ("coco-5k-rerank", "expected a number behind '-rerank', such as coco-5k-rerank100"),
        ("coco-5k-rerankten", "expected a number behind"),
        ("coco-5k-rerank1.5", "expected a number behind"),
        ("coco5k-rerank10", "unknown protocol 'coco5k'. Did you mean 'coco-5k'"),
        ("coco-5k-cxc-rerank10", "compares captions with captions"),
    ],
)
def test_nonsense_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        protocol_named(name)
