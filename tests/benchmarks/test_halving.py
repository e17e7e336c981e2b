"""Early stopping, replayed."""

from benchmarks.comparing.halving import Replay, replay


def test_trials_below_the_median_of_those_before_are_stopped_at_powers_of_two():
    curves = [[5, 6, 7, 8], [4, 9, 9, 9], [5, 5, 9, 9], [6, 7, 8, 8.5]]
    # the second stops after epoch 1, the third, the median there, after epoch 2; the fourth is never below
    assert replay(curves) == Replay(lost=0.5, trained=4 + 1 + 2 + 4, whole=16)


def test_one_trial_is_never_stopped():
    assert replay([[1, 3, 2]]) == Replay(lost=0, trained=3, whole=3)
