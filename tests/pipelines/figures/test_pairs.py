"""The heat map of visual against text aggregators."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from toy import toy_run

from polypool.pipelines.figures.pairs import draw_pairs, pair_means
from polypool.tasks.scoring.described import RSUM


def test_pairs_are_means_over_seeds_and_are_drawn(tmp_path: Path) -> None:
    names = ("mean", "max", "kmax(k=2)")
    runs = [
        replace(toy_run(), aggregator=v, text_aggregator="" if v == t else t, seed=seed)
        for v, t, seed in itertools.product(names, names, (0, 1))
    ]
    score_VTS = np.random.default_rng(0).uniform(100, 300, (3, 3, 2))
    scored = [(run, {"whole/rsum": x, "dev/rsum": 0.0}) for run, x in zip(runs, score_VTS.flat, strict=True)]
    scored[6] = (runs[6], {})  # max, text mean, seed 0
    pairs = pair_means(scored, metric=RSUM)
    expected = score_VTS.mean(axis=2)
    expected[1, 0] = score_VTS[1, 0, 1]
    np.testing.assert_allclose(pairs.mean_VT, expected)
    assert (pairs.protocol, pairs.metric, pairs.visual, pairs.text) == ("whole", RSUM, names, names)
    assert pairs.runs == (1, 2)
    scored[7] = (runs[7], {})
    holed = pair_means(scored, metric=RSUM)
    assert np.isnan(holed.mean_VT).sum() == 1
    draw_pairs(holed, tmp_path / "pairs.png")
    with Image.open(tmp_path / "pairs.png") as image:
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 20)) > 20
    assert pair_means([(run, {}) for run in runs], metric=RSUM) is None
