from collections import Counter

import numpy as np

from polypool.tasks.scoring.examples import choose


def test_choice_covers_all_types_and_is_half_right():
    kinds = ["what is"] * 500 + ["how many"] * 100 + [f"rare {i}" for i in range(10)]
    right_Q = np.arange(610) % 3 == 0
    chosen = choose(right_Q, count=40, type_Q=kinds)
    assert len(chosen) == len(set(chosen)) == 40
    assert Counter(bool(right_Q[number]) for number in chosen) == {True: 20, False: 20}
    assert {kinds[number] for number in chosen} == set(kinds)
    assert chosen == choose(right_Q, count=40, type_Q=kinds)
    assert max(chosen) > 500, "the choice must not be limited to the first queries of each type"


def test_choice_without_types_alternates_right_and_wrong():
    right_Q = np.arange(1000) % 2 == 0
    chosen = choose(right_Q, count=12)
    assert right_Q[chosen].tolist() == [True, False] * 6
    assert len(set(chosen)) == 12
    assert max(chosen) > 500


def test_choice_handles_few_queries_and_one_outcome():
    assert sorted(choose(np.zeros(3, bool), count=40, type_Q=["a", "b", "a"])) == [0, 1, 2]
    assert len(choose(np.ones(90, bool), count=5)) == 5
    assert choose(np.zeros(0, bool), count=5) == []
