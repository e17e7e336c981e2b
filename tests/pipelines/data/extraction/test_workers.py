from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from describing import Noting, bytes_of, corpus_of_files, in_this_process
from pictures import noise
from programs import soon

from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data.extraction import Batch, _Worker, stream


def batches(*names: str) -> list[Batch]:
    return [{"ids": [name], "paths": [f"/{name}"]} for name in names]


pytestmark = pytest.mark.usefixtures("one_ray")


def rows(made: Any, **options: Any) -> Iterator[dict[str, Any]]:
    return stream(made, extractor=Noting, options=options, gpu=False)


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


def test_omp_num_threads_of_a_user_does_not_oversubscribe_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    _Worker(Noting, {"threads": 2})
    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.ray
def test_an_error_of_a_worker_is_raised_as_it_was(caplog):
    with pytest.raises(InputError, match="there is no such backbone"):
        list(rows(batches("1", "2"), lives=-1))
    coming = rows(batches("1", "bad2", "bad3", "4", "bad5"))
    with pytest.raises(InputError, match="bad2 is bad") as held:
        list(coming)
    assert soon(lambda: ray.available_resources().get("CPU") == 2), f"though {held} holds all that was there"
    del coming, held
    gc.collect()
    time.sleep(0.5)  # Ray tells of an error that nobody has seen when nothing holds it any more
    assert caplog.records == []


@pytest.mark.ray
def test_workers_write_the_bytes_that_one_process_writes(tmp_path, monkeypatch):
    for n in range(5):
        noise(seed=n).save(tmp_path / f"{n}.png")
    corpus = corpus_of_files(tmp_path / "corpus", tmp_path, [f"{n}.png" for n in range(5)])
    what = {"corpus": corpus, "backbone": "cells(grid=2, pixels=8)", "batch": 2}
    verb.extract(**what, out=tmp_path / "ray")
    in_this_process(monkeypatch)
    verb.extract(**what, out=tmp_path / "here")
    assert bytes_of(tmp_path / "ray") == bytes_of(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.ray
def test_what_a_dead_worker_was_at_is_done_again(tmp_path):
    names = ["1", "deadly", "3", "4", "5"]
    found = rows(batches(*names), folder=str(tmp_path), lives=1)
    assert [row["id"] for row in found] == names
    assert (tmp_path / "deadly").read_text() == "x"


@pytest.mark.slow
@pytest.mark.ray
def test_what_kills_workers_again_and_again_ends_the_job(tmp_path):
    made = [{"ids": ["deadly", "other"], "paths": ["/", "/"]}]
    with pytest.raises(AwayError, match=r"a worker died 3 times on one batch, .* smaller --batch"):
        list(rows(made, folder=str(tmp_path), lives=99))
    assert (tmp_path / "deadly").read_text() == "xxx"
