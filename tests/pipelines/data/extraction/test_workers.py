from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, count, islice
from typing import Any

import pytest
import ray
from describing import Noting

from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.data.extraction.workers import Batch, portions, stream


def batches(*names: str) -> list[Batch]:
    return [{"ids": [name], "paths": [f"/{name}"]} for name in names]


def sizes(number: int, *, most: int, workers: int) -> list[int]:
    return [len(part) for part in portions(batches(*map(str, range(number))), most=most, workers=workers)]


@pytest.mark.parametrize("number", [1, 2, 7, 33, 1000])
@pytest.mark.parametrize("most", [1, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_every_batch_travels_once_and_in_order(number, most, workers):
    made = batches(*map(str, range(number)))
    parts = [*portions(iter(made), most=most, workers=workers)]
    assert [batch for part in parts for batch in part] == made
    found = [len(part) for part in parts]
    assert found == sorted(found, reverse=True)
    assert max(found) <= most
    last = found[-workers:]
    assert last == [1] * len(last), "each worker ends with a single one"


def test_many_travel_together_until_the_end_is_near():
    assert sizes(30, most=8, workers=2)[:4] == [7, 5, 4, 3]
    assert sizes(1000, most=8, workers=2)[:120] == [8] * 120


def test_as_many_are_asked_for_as_the_end_is_seen_by():
    endless = ({"ids": [str(n)], "paths": [str(n)]} for n in count())
    assert len(next(portions(endless, most=4, workers=3))) == 4
    assert next(endless)["ids"] == ["24"]


pytestmark = pytest.mark.usefixtures("one_ray")


def rows(made: Any, *, block: int = 1, **options: Any) -> Iterator[dict[str, Any]]:
    return stream(made, extractor=Noting, options=options, gpu=False, block=block)


@pytest.mark.ray
def test_rows_come_in_order_though_one_takes_long(capfd):
    names = ["slow", *map(str, range(40))]
    found = [*rows(batches(*names))]
    assert [row["id"] for row in found] == names
    assert len({row["process"] for row in found} - {os.getpid()}) == 2, (
        "in as many workers as there are cores"
    )
    assert sum(row["at"] < found[0]["at"] for row in found) > 10, "who is free gets the next"
    said = capfd.readouterr()
    assert said.out + said.err == "", "Ray says nothing of itself"


@pytest.mark.slow
@pytest.mark.ray
def test_no_more_is_asked_for_than_is_read():
    asked = []

    def endless() -> Iterator[Batch]:
        for name in chain(["slow"], map(str, count())):
            asked.append(name)
            yield {"ids": [name], "paths": ["/"]}

    with closing(rows(endless(), block=2)) as coming:
        first = next(coming)
        assert len(asked) <= 2 * (2 * 8) + 2 * 2 * 2, (
            "portions that wait to be read, and batches that are near"
        )
        found = [first, *islice(coming, 99)]
    assert [row["id"] for row in found] == asked[:100]
    assert len(asked) < 100 + 2 * (2 * 8 + 1) + 2 * 2 * 2


@pytest.mark.slow
@pytest.mark.ray
def test_images_come_in_their_batches_and_videos_all_at_once():
    made = [{"ids": [f"{n}a", f"{n}b"], "paths": ["/a", "/b"]} for n in range(40)]
    images = [row["together"] for row in rows(made, block=3)]
    assert images == [batch["ids"] for batch in made for _ in batch["ids"]]
    videos = [row["together"] for row in rows(made, block=3, one_by_one=True)]
    assert videos[0] == ["0a", "0b", "1a", "1b", "2a", "2b"]


@pytest.mark.ray
@pytest.mark.parametrize(
    ("options", "message"), [({}, "bad2 is bad"), ({"lives": -1}, "there is no such backbone")]
)
def test_an_error_of_a_worker_is_raised_as_it_was(options, message, caplog):
    coming = rows(batches("1", "bad2", "bad3", "4", "bad5"), **options)
    with pytest.raises(InputError, match=message) as held:
        list(coming)
    limit = time.monotonic() + 60
    while (free := ray.available_resources().get("CPU")) != 2 and time.monotonic() < limit:
        time.sleep(0.1)
    assert free == 2, f"though {held} holds all that was there"
    del coming, held
    gc.collect()
    time.sleep(0.5)  # Ray tells of an error that nobody has seen when nothing holds it any more
    assert caplog.records == []


@pytest.mark.slow
@pytest.mark.ray
def test_what_a_dead_worker_was_at_is_done_again(tmp_path):
    names = ["1", "deadly", "3", "4", "5"]
    found = rows(batches(*names), folder=str(tmp_path), lives=1)
    assert [row["id"] for row in found] == names
    assert (tmp_path / "deadly").read_text() == "x"


@pytest.mark.slow
@pytest.mark.ray
def test_what_kills_workers_again_and_again_is_named(tmp_path):
    made = [{"ids": ["deadly", "other"], "paths": ["/", "/"]}]
    with pytest.raises(AwayError, match=r"3 times a worker died .* deadly to other, .* smaller --batch"):
        list(rows(made, folder=str(tmp_path), lives=99))
    assert (tmp_path / "deadly").read_text() == "xxx"
