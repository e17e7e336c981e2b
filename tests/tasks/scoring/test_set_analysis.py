"""Set analyses, alignment and uniformity against their formulas, written out in loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from overlap import Overlap
from torch import Tensor

from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.scoring import geometry
from polypool.tasks.scoring.geometry import (
    ablated,
    alignment,
    choices,
    circular_variance,
    uniformity,
    variance_of,
)
from polypool.tasks.similarities.of_sets import AlignedMean
from polypool.tasks.similarities.similarity import Similarity


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(made, dim=-1)


def vectors(embedding: Tensor) -> np.ndarray:
    return embedding.numpy().reshape(-1, embedding.shape[-1])


def distance(x: np.ndarray, y: np.ndarray) -> float:
    return sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True))


def log_mean_potential(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    return math.log(sum(math.exp(-2 * distance(x, y)) for x, y in pairs) / len(pairs))


@pytest.mark.parametrize("shapes", [((), ()), ((3,), (2,))])
def test_alignment_is_mean_squared_pair_distance(shapes):
    visual, text = embeddings(5, *shapes[0], 6), embeddings(9, *shapes[1], 6, seed=1)
    owner_T = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4])
    expected = [
        np.mean([distance(x, y) for x in vectors(visual[owner_T[g]]) for y in vectors(text[g])])
        for g in range(9)
    ]
    assert alignment(visual, text, owner_T) == pytest.approx(np.mean(expected), abs=1e-10)
    assert alignment(visual.float(), text.float(), owner_T) == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("chunk", [1 << 22, 40])
def test_uniformity_is_log_mean_pair_potential(k, chunk, monkeypatch):
    monkeypatch.setattr(geometry, "_CHUNK", chunk)
    middle = (k,) if k else ()
    visual, text = embeddings(7, *middle, 5), embeddings(12, *middle, 5, seed=1)
    found = uniformity(visual, text)
    sides = {"visual": vectors(visual), "text": vectors(text)}
    sides["joint"] = np.concatenate([sides["visual"], sides["text"]])
    for side, x_ND in sides.items():
        expected = log_mean_potential(list(itertools.combinations(x_ND, 2)))
        assert found[side] == pytest.approx(expected, abs=1e-10)
    for side, value in uniformity(visual.float(), text.float()).items():
        assert value == pytest.approx(found[side], abs=1e-5)


def test_circular_variance_is_one_minus_mean_length():
    sets = embeddings(6, 4, 5)
    found = circular_variance(sets)
    torch.testing.assert_close(found, 1 - sets.mean(dim=1).square().sum(dim=1).sqrt())
    mean = float(found.mean())
    assert variance_of(sets) == pytest.approx({"variance": mean, "log_variance": math.log(mean)})


def scores(visual: Tensor, text: Tensor, similarity: Similarity) -> dict[tuple[str, str], Tensor]:
    """Return the scores of four items and eight captions, by ablated elements."""
    whole = SplitEmbeddings(visual=visual, text=text, similarity=similarity)
    return {(side, name): of(slice(0, 4), slice(0, 8)) for side, name, of in ablated(whole)}


def test_ablated_sets_score_by_remaining_elements():
    visual, text = embeddings(4, 3, 6), embeddings(8, 2, 6, seed=1)
    cases = scores(visual, text, Overlap())
    assert list(cases) == [("visual", name) for name in choices(3)] + [("text", "only_1"), ("text", "only_2")]
    for q, g in itertools.product(range(4), range(8)):
        product = (visual[q] @ text[g].T).numpy()
        assert float(cases["visual", "only_2"][q, g]) == pytest.approx(product[1].mean(), abs=1e-6)
        assert float(cases["visual", "without_1"][q, g]) == pytest.approx(product[1:].mean(), abs=1e-6)
        assert float(cases["text", "only_2"][q, g]) == pytest.approx(product[:, 1].mean(), abs=1e-6)


def test_aligned_sets_are_ablated_on_both_sides():
    visual, text = embeddings(4, 3, 6), embeddings(8, 3, 6, seed=1)
    cases = scores(visual, text, AlignedMean())
    assert list(cases) == [("joint", name) for name in choices(3)]
    for q, g in itertools.product(range(4), range(8)):
        place = [float(visual[q, k] @ text[g, k]) for k in range(3)]
        assert float(cases["joint", "only_3"][q, g]) == pytest.approx(place[2], abs=1e-6)
        assert float(cases["joint", "without_1"][q, g]) == pytest.approx(np.mean(place[1:]), abs=1e-6)
