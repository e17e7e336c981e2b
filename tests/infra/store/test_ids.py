"""A set of ids in little memory is a set."""

from __future__ import annotations

import random
import tracemalloc

from polypool.infra.store.ids import IdSet


def test_it_has_what_was_put_in_and_nothing_else():
    draw = random.Random(0)
    ids, expected = IdSet(), set()
    for _ in range(5000):  # it grows three times on the way
        id = f"id {draw.randrange(3000)}"
        assert (id in ids) == (id in expected)
        ids.add(id)
        expected.add(id)
        assert len(ids) == len(expected)
    assert [f"id {n}" in ids for n in range(3000)] == [f"id {n}" in expected for n in range(3000)]
    assert ids.issuperset(expected)
    assert not ids.issuperset([*expected, "another"])
    assert "" not in ids
    assert not IdSet()


def test_it_takes_a_third_of_a_set():
    names = [f"COCO_train2014_{n:012d}.jpg" for n in range(20_000)]

    def bytes_of(make) -> int:
        tracemalloc.start()
        held = make()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held
        return size

    ours = bytes_of(lambda: IdSet(names))
    theirs = bytes_of(
        lambda: {name[:-1] + "g" for name in names}
    )  # strings of its own, as a reader makes them
    assert 3 * ours < theirs
