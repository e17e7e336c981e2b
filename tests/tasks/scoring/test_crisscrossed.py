"""Right answers and ranks of Crisscrossed Captions against the rules, written out in loops."""

import numpy as np
import pytest
import torch

from polypool.tasks.datasets.coco_judgments import Rated, Ratings
from polypool.tasks.scoring.crisscrossed import RightAnswers, evaluate_crisscrossed, right_answers
from polypool.tasks.scoring.scores import mean_score

DIRECTIONS = ("i2t", "t2i", "t2t", "i2i")


def rated(*pairs: tuple[str, str, float]) -> Rated:
    first_P, second_P, rating_P = zip(*pairs, strict=True)
    return Rated(first_P=np.array(first_P), second_P=np.array(second_P), rating_P=np.array(rating_P, float))


class Matrices:
    """Returns blocks of whole score matrices."""

    def __init__(self, between_NG, images_NN, captions_GG) -> None:
        self.between_NG, self.images_NN = torch.as_tensor(between_NG), torch.as_tensor(images_NN)
        self.captions_GG = torch.as_tensor(captions_GG)

    def __call__(self, images: slice, captions: slice) -> torch.Tensor:
        return self.between_NG[images, captions]

    def of_images(self, rows: slice, columns: slice) -> torch.Tensor:
        return self.images_NN[rows, columns]

    def of_captions(self, rows: slice, columns: slice) -> torch.Tensor:
        return self.captions_GG[rows, columns]


class Case:
    """A synthetic split of 14 images with 2 or 3 captions, and ratings of all kinds, including thresholds."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.owner_T = np.repeat(np.arange(14), rng.integers(2, 4, 14))
        self.n, self.g = 14, len(self.owner_T)
        self.image_ids = [str(500 + i) for i in range(self.n)]
        self.caption_ids = [str(9000 + 7 * i) for i in range(self.g)]

        def draw(first: list[str], second: list[str], count: int) -> list[tuple[str, str, float]]:
            pairs = {(rng.choice(first), rng.choice(second)) for _ in range(count)}
            ratings = [1.0, 2.49, 2.5, 2.99, 3.0, 4.5]
            return [(a, b, float(rng.choice(ratings))) for a, b in sorted(pairs) if a != b]

        self.pairs = {
            "sits": draw(self.caption_ids, self.image_ids, 40),
            "sts": draw(self.caption_ids, self.caption_ids, 40),
            "sis": draw(self.image_ids[:9], self.image_ids[:9], 12),
        }
        sizes = (self.n, self.g), (self.n, self.n), (self.g, self.g)
        self.score = Matrices(*(rng.random(size) for size in sizes))

    @property
    def ratings(self) -> Ratings:
        return Ratings(**{kind: rated(*pairs) for kind, pairs in self.pairs.items()})

    def answers(self, direction: str, query: int) -> set[int]:
        """Return the right answers of a query, by the rules."""
        kind, least = {"t2t": ("sts", 3.0), "i2i": ("sis", 2.5)}.get(direction, ("sits", 3.0))
        place = {id: at for ids in (self.image_ids, self.caption_ids) for at, id in enumerate(ids)}
        rated = [(place[a], place[b]) for a, b, rating in self.pairs[kind] if rating >= least]
        if direction in ("i2t", "t2i"):
            own = [(g, int(i)) for g, i in enumerate(self.owner_T)]
            asked, answer = (1, 0) if direction == "i2t" else (0, 1)
            return {pair[answer] for pair in own + rated if pair[asked] == query}
        found = {item for pair in rated if query in pair for item in pair}
        if direction == "t2t":
            found |= {g for g in range(self.g) if self.owner_T[g] == self.owner_T[query]}
        return found - {query}

    def rank(self, direction: str, query: int, *, self_score: float | None = None) -> float:
        """Return the rank of the best right answer; the query itself has `self_score`, or is excluded."""
        of_images, of_captions = self.score.images_NN, self.score.captions_GG
        rows = {
            "t2t": of_captions,
            "i2i": of_images,
            "i2t": self.score.between_NG,
            "t2i": self.score.between_NG.T,
        }
        scores = dict(enumerate(rows[direction][query].tolist()))
        if direction in ("t2t", "i2i"):
            scores[query] = -np.inf if self_score is None else self_score
        order = sorted(scores, key=lambda item: -scores[item])
        places = [order.index(item) for item in self.answers(direction, query)]
        return min(places, default=np.nan)

    def ranks(self, direction: str, **options) -> list[float]:
        queries = self.n if direction in ("i2t", "i2i") else self.g
        return [self.rank(direction, query, **options) for query in range(queries)]

    @property
    def right(self) -> RightAnswers:
        ids = {"image_ids": self.image_ids, "caption_ids": self.caption_ids}
        return right_answers(self.ratings, **ids, owner_T=self.owner_T)

    def evaluate(self, score: object = None):
        return evaluate_crisscrossed(score or self.score, self.right)


def test_ranks_and_metrics_match_explicit_rules():
    case = Case()
    found = case.evaluate()
    for direction in DIRECTIONS:
        expected = np.array(case.ranks(direction), float)
        np.testing.assert_array_equal(found.rank_Q[direction], expected)
        ranked = expected[~np.isnan(expected)]
        for k in (1, 5, 10):
            assert found.metrics[f"{direction}/R{k}"] == pytest.approx(100 * np.mean(ranked < k))
        assert found.metrics[f"{direction}/medr"] == np.floor(np.median(ranked)) + 1
        assert found.metrics[f"{direction}/skipped"] == len(expected) - len(ranked)
    assert found.metrics["i2i/skipped"] >= 5  # images 9 to 13 are never rated
    assert found.metrics["t2t/skipped"] == found.metrics["i2t/skipped"] == 0
    assert found.metrics["rsum"] == pytest.approx(
        sum(found.metrics[f"{d}/R{k}"] for d in ("i2t", "t2i") for k in (1, 5, 10))
    )
    assert found.metrics["unknown_ratings"] == found.metrics["ties"] == 0


def test_query_is_excluded_from_its_own_gallery():
    case = Case()
    found = case.evaluate()
    case.score = Matrices(case.score.between_NG, case.score.images_NN - 2, case.score.captions_GG - 2)
    below = case.evaluate()
    for direction in ("t2t", "i2i"):
        np.testing.assert_array_equal(below.rank_Q[direction], found.rank_Q[direction])
        expected = np.array(case.ranks(direction, self_score=0.0), float)
        np.testing.assert_array_equal(below.rank_Q[direction] + 1, expected)


def test_without_high_ratings_ranks_match_recorded_outputs(golden):
    with np.load(golden / "retrieval_eval.npz", allow_pickle=False) as z:
        sim_VT, i2t, t2i = z["weak/sims_u16"] / 65536, z["weak/i2t_ranks"], z["weak/t2i_ranks"]
    images, captions = [str(i) for i in range(100)], [str(g) for g in range(500)]
    ratings = Ratings(
        sits=rated(("3", "7", 2.99)), sts=rated(("3", "9", 2.9)), sis=rated(("1", "2", 2.5), ("3", "4", 2.4))
    )
    answers = right_answers(
        ratings, image_ids=images, caption_ids=captions, owner_T=np.repeat(np.arange(100), 5)
    )
    found = evaluate_crisscrossed(Matrices(sim_VT, sim_VT[:, :100], sim_VT.T @ sim_VT), answers)
    np.testing.assert_array_equal(found.rank_Q["i2t"], i2t)
    np.testing.assert_array_equal(found.rank_Q["t2i"], t2i)
    assert found.metrics["i2i/skipped"] == 98
    assert (~np.isnan(found.rank_Q["i2i"])).nonzero()[0].tolist() == [1, 2]
    assert answers.of["t2t"].count_Q.tolist() == [4] * 500


def test_ensemble_averages_scores_of_all_directions():
    one, two = Case(0), Case(0)
    two.score = Matrices(*(torch.rand_like(x) for x in vars(one.score).values()))
    mean = Matrices(
        *((x + y) / 2 for x, y in zip(vars(one.score).values(), vars(two.score).values(), strict=True))
    )
    together = one.evaluate(mean_score([one.score, two.score]))
    assert together.metrics == one.evaluate(mean).metrics
    for direction in DIRECTIONS:
        np.testing.assert_array_equal(together.rank_Q[direction], one.evaluate(mean).rank_Q[direction])
    half = Matrices(*(x.half() for x in vars(one.score).values()))
    assert mean_score([half, half])(slice(0, 2), slice(0, 3)).dtype == torch.float32
