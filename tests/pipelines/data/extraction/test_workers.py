from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from fake_extractor import FakeExtractor, bytes_of, corpus_of_files, in_this_process
from pictures import noise
from programs import soon

from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data.extraction import Batch, _Worker, stream


def batches(*names: str) -> list[Batch]:
    return [{"ids": [name], "paths": [f"/{name}"]} for name in names]


pytestmark = pytest.mark.usefixtures("one_ray")


def rows(made: Any, **options: Any) -> Iterator[dict[str, Any]]:
    return stream(made, extractor=FakeExtractor, options=options, gpu=False)


@pytest.mark.ray
def test_slow_rows_keep_their_order(capfd):
    names = ["slow", *map(str, range(40))]
    found = [*rows(batches(*names))]
    assert [row["id"] for row in found] == names
    assert len({row["process"] for row in found} - {os.getpid()}) == 2, "expected one worker per core"
    assert sum(row["at"] < found[0]["at"] for row in found) > 10, "free workers must get the next batches"
    said = capfd.readouterr()
    assert said.out + said.err == "", "Ray must print nothing"


@pytest.mark.ray
def test_worker_without_a_core_gets_no_batch():
    other = ray.remote(FakeExtractor).options(num_cpus=1).remote()
    ray.get(other.__ray_ready__.remote())
    names = [*map(str, range(9))]
    found = [*rows(batches(*names))]
    assert [row["id"] for row in found] == names
    assert len({row["process"] for row in found}) == 1, "the other core is not free"
    ray.kill(other)


def test_worker_overrides_omp_num_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    _Worker(FakeExtractor, {"threads": 2}, ())
    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.ray
def test_worker_errors_are_raised_unchanged(caplog):
    with pytest.raises(InputError, match="there is no such backbone"):
        list(rows(batches("1", "2"), lives=-1))
    coming = rows(batches("1", "bad2", "bad3", "4", "bad5"))
    with pytest.raises(InputError, match="bad2 is bad") as held:
        list(coming)
    assert soon(lambda: ray.available_resources().get("CPU") == 2), (
        f"cores must be released while the error {held} is referenced"
    )
    del coming, held
    gc.collect()
    time.sleep(0.5)  # Ray logs an unseen error when it is garbage collected
    assert caplog.records == []


@pytest.mark.ray
def test_workers_and_single_process_write_same_bytes(tmp_path, monkeypatch):
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
def test_batch_of_crashed_worker_is_retried(tmp_path):
    names = ["1", "deadly", "3", "4", "5"]
    found = rows(batches(*names), folder=str(tmp_path), lives=1)
    assert [row["id"] for row in found] == names
    assert (tmp_path / "deadly").read_text() == "x"


@pytest.mark.slow
@pytest.mark.ray
def test_repeated_worker_crashes_end_the_job(tmp_path):
    made = [{"ids": ["deadly", "other"], "paths": ["/", "/"]}]
    with pytest.raises(AwayError, match=r"a worker died 3 times on one batch, .* smaller --batch"):
        list(rows(made, folder=str(tmp_path), lives=99))
    assert (tmp_path / "deadly").read_text() == "xxx"
