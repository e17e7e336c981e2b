from __future__ import annotations

import numpy as np
import pytest

from polypool.infra.pictures.boxes import best_regions, corners, fractions, shared


def by_the_formula(box_N4, score_N, *, most, least, threshold, overlap):
    """Greedy suppression by loops, as it is defined, over boxes that all have an area."""
    left = sorted(range(len(score_N)), key=lambda number: -score_N[number])
    kept = []
    while left and len(kept) < most:
        first = left.pop(0)
        if len(kept) >= least and score_N[first] < threshold:
            break
        kept.append(first)
        left = [other for other in left if over(box_N4[first], box_N4[other]) <= overlap]
    return kept


def over(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def boxes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    corner_N2, side_N2 = rng.random((count, 2)) * 0.5, rng.random((count, 2)) * 0.5 + 0.01
    return np.concatenate([corner_N2, corner_N2 + side_N2], axis=1), rng.random(count)


@pytest.mark.parametrize("overlap", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(
    ("most", "least", "threshold"), [(5, 5, 0.0), (30, 1, 0.6), (30, 12, 0.6), (4, 1, 1.0)]
)
def test_regions_are_those_of_greedy_suppression(most, least, threshold, overlap):
    for seed in range(20):
        box_N4, score_N = boxes(40, seed)
        how = {"most": most, "least": least, "threshold": threshold, "overlap": overlap}
        assert best_regions(box_N4, score_N, **how).tolist() == by_the_formula(box_N4, score_N, **how)


def test_overlap_is_intersection_over_union():
    box_N4, _ = boxes(30, 0)
    for number in range(30):
        expected = [over(box_N4[number], other) for other in box_N4]
        np.testing.assert_allclose(shared(box_N4[number], box_N4), expected, rtol=1e-12)
    assert shared(np.zeros(4), np.zeros((1, 4))).tolist() == [0.0]


def test_boxes_without_an_area_come_last_and_only_where_they_are_needed():
    box_N4 = np.array([[1, 0, 1, 0.5], [0, 0, 0.5, 0.5], [0, 1, 0.3, 1], [0.5, 0.5, 1, 1]])
    score_N = np.array([0.9, 0.2, 0.8, 0.3])
    how = {"most": 4, "threshold": 0.0, "overlap": 0.7}
    assert best_regions(box_N4, score_N, least=1, **how).tolist() == [3, 1]
    assert best_regions(box_N4, score_N, least=3, **how).tolist() == [3, 1, 0]


def test_centres_become_corners_within_the_picture():
    centre_N4 = np.array([[0.5, 0.4, 0.2, 0.6], [0.1, 0.9, 0.4, 0.4]])
    np.testing.assert_allclose(corners(centre_N4), [[0.4, 0.1, 0.6, 0.7], [0.0, 0.7, 0.3, 1.0]], atol=1e-12)


def test_pixels_become_fractions_or_nothing():
    box_N4 = np.array([[10, 20, 30, 40]], np.float32)
    np.testing.assert_allclose(fractions(box_N4, 1, width=40, height=80), [[0.25, 0.25, 0.75, 0.5]])
    assert fractions(box_N4, 2, width=40, height=80) is None
    assert fractions(box_N4, 1, width=0, height=80) is None
    assert fractions(box_N4 * np.nan, 1, width=40, height=80) is None
    assert fractions(None, 1, width=40, height=80) is None
