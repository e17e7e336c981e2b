"""Figures of runs with every aggregator, compared with values computed in the tests."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from polypool.aggregators.aggregator import Aggregator
from polypool.aggregators.observe import Seen, Watched, observe
from polypool.aggregators.random_sets import random_inputs
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS
from polypool.pipelines.figures.run_figures import (
    curves_of,
    spread_of,
)
from polypool.pipelines.training.record import run_figures

DIM = 8
SIZES = [5, 3, 9, 5, 3, 5]


def watched_of(
    spec: str | Aggregator, sizes: list[int] = SIZES, *, place: str = "visual.aggregator"
) -> Watched:
    """Return the observations of an aggregator on random sets."""
    torch.manual_seed(0)
    module = (AGGREGATORS.build(spec, DIM) if isinstance(spec, str) else spec).eval()
    with_global = module.takes_global_feature and module.width not in (None, DIM)
    with torch.no_grad(), observe(nn.ModuleDict({"it": module})) as (watched,):
        random_inputs(sizes, module=module, dim=DIM, global_feature=with_global).pool(module)
    watched.name = place
    return watched


def drawn(*watched: Watched, **histories: list[tuple[int, float]]) -> dict[str, Image.Image]:
    """Return the figures of a run that logged each history as `train/NAME`."""
    makers = run_figures(watched, lambda name: histories.get(name.removeprefix("train/"), []), title="a run")
    return {name: Image.open(io.BytesIO(png)) for make in makers for name, png in make().items()}


def is_drawn(image: Image.Image) -> bool:
    pixels = np.asarray(image.convert("L"))
    return image.format == "PNG" and image.width > 500 and 0.01 < (pixels < 250).mean() < 0.9


@pytest.mark.parametrize("spec", ["gpo", "max", "kmax(k=2)"])
def test_rank_weights_depend_on_set_size(spec):
    watched = watched_of(spec)
    curves = curves_of(watched)
    assert [(curve.size, curve.sets) for curve in curves] == [(3, 2), (5, 3), (9, 1)]
    for curve in curves:
        mask_1N = torch.ones(1, curve.size, dtype=torch.bool)
        with torch.no_grad():
            expected_N = watched.aggregator(torch.zeros(1, curve.size, DIM), mask_1N).weights[0].numpy()
        for found_N in (curve.mean_N, curve.low_N, curve.high_N):
            np.testing.assert_allclose(found_N, expected_N, atol=1e-6)
        assert (curve.sums_to_one, curve.channels, curve.embedding) == (True, False, None)
    if spec == "kmax(k=2)":
        assert curves[1].mean_N.tolist() == [0.5, 0.5, 0, 0, 0]


def test_channel_curves_summarise_sets_and_channels():
    watched = watched_of("softpool")
    curve = next(curve for curve in curves_of(watched) if curve.size == 5)
    x_BND = random_inputs(SIZES, module=watched.aggregator, dim=DIM).x_BND.double().numpy()
    of_five = [x_ND[:5] for size, x_ND in zip(SIZES, x_BND, strict=True) if size == 5]
    for n in range(5):
        ordered = sorted(
            math.exp(x_ND[n, d]) / sum(math.exp(x) for x in x_ND[:, d])
            for x_ND in of_five
            for d in range(DIM)
        )
        assert len(ordered) == 24
        assert curve.mean_N[n] == pytest.approx(sum(ordered) / 24, abs=1e-6)
        # the 10th percentile of 24 sorted values is at index 0.1 * 23 = 2.3
        assert curve.low_N[n] == pytest.approx(0.7 * ordered[2] + 0.3 * ordered[3], abs=1e-6)
        assert curve.high_N[n] == pytest.approx(0.3 * ordered[20] + 0.7 * ordered[21], abs=1e-6)
    assert curve.sums_to_one
    assert curve.channels


@pytest.mark.parametrize("spec", ["slots(k=3, heads=2, head_width=4)", "score_attention(k=2, heads=2)"])
def test_embedding_curves_use_most_frequent_set_size(spec):
    watched = watched_of(spec)
    curves = curves_of(watched)
    weights = [watched.weights(seen)[0, ..., 0].numpy() for seen in watched.seen if seen.size == 5]
    assert [curve.embedding for curve in curves] == [*range(watched.aggregator.num_embeddings)]
    for k, curve in enumerate(curves):
        assert (curve.size, curve.sets, curve.sums_to_one) == (5, 3, spec.startswith("score"))
        np.testing.assert_allclose(curve.mean_N, sum(weight[k] for weight in weights) / 3, atol=1e-6)


FIXED = ("max", "kmax", "mean", "cls", "last", "position_mean")  # fixed weights: no pooling figure
FAST = ("gpo", "max", "pie")
EVERY = [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n, _ in AGGREGATORS.usable()]


@pytest.mark.parametrize("name", EVERY)
def test_every_aggregator_gets_its_figures(name):
    watched = watched_of(name)
    figures = drawn(watched)
    weighs = watched.weights(watched.seen[0]) is not None and name not in FIXED
    expected = {"pooling.png"} if weighs else set()
    sets = watched.aggregator.num_embeddings != 1 and watched.aggregator.makes == "vectors"
    expected |= {"variance.png"} if sets else set()
    assert figures.keys() == expected
    assert all(map(is_drawn, figures.values()))


def made(*embeddings: list[list[float]]) -> Watched:
    """Return the observations of a PIE aggregator with these embeddings."""
    seen = [Seen(size=3, vectors=torch.tensor(embedding)) for embedding in embeddings]
    return Watched("text.aggregator", AGGREGATORS.build(f"pie(k={len(embeddings[0])})", DIM), seen)


def test_variance_normalises_vectors_of_any_precision():
    # orthogonal, opposite, and parallel vectors of different lengths
    spread = spread_of(made([[3.0, 0], [0, 5.0]], [[2.0, 0], [-7.0, 0]], [[0.5, 0.5], [4.0, 4.0]]))
    expected = [1 - math.sqrt(0.5), 1.0, 0.0]
    np.testing.assert_allclose(spread.variance_S, expected, atol=1e-7)
    assert spread.log_mean == pytest.approx(math.log(sum(expected) / 3), abs=1e-6)
    assert (spread.name, spread.vectors) == ("text: PIE", 2)
    one = made([[1.0, 0], [0, 1.0]])
    one.seen[0] = Seen(size=3, vectors=one.seen[0].vectors.half())
    np.testing.assert_allclose(spread_of(one).variance_S, expected[:1], atol=1e-7)
    assert is_drawn(drawn(one)["variance.png"])


def test_variance_needs_several_finite_vectors():
    assert spread_of(watched_of("mean")) is None
    with pytest.raises(InputError, match="expected 2 finite vectors"):
        spread_of(made([[math.nan, 0], [0, 1.0]]))


FLAT = [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize(
    ("histories", "shown"),
    [
        (
            {"negatives": [(10, 70.0), (30, 1.0)], "alignment": [(10, 0.1), (30, 0.5)], "uniformity": FLAT},
            True,
        ),
        ({"alignment": FLAT}, False),
        ({key: [(1, math.nan)] for key in ("negatives", "alignment", "uniformity")}, False),
    ],
    ids=["all", "no negatives", "nothing finite"],
)
def test_negatives_figure_needs_finite_logged_negatives(histories, shown):
    figures = drawn(**histories)
    assert figures.keys() == ({"negatives.png"} if shown else set())
    assert all(map(is_drawn, figures.values()))
