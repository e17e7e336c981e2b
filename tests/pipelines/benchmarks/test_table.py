from __future__ import annotations

import math
import os
import sys
import tempfile

import numpy as np
import pytest
import torch

from infra.errors import InputError
from pipelines import bench
from pipelines.benchmarks import measure, table
from pipelines.benchmarks.features import store
from pipelines.benchmarks.measure import Measurement
from pipelines.benchmarks.random_data import caption_corpus, feature_sets, feature_store, random_tensors
from pipelines.benchmarks.scoring import ranks
from pipelines.benchmarks.training import watched
from pipelines.benchmarks.training.steps import parts
from tasks.datasets.corpus import Corpus

pytestmark = pytest.mark.ray


def row(**changes) -> Measurement:
    base = {"name": "a", "measured": "b", "unit": "ms", "ours": 2.0, "reference": 3.0, "ratio": 1.5}
    return Measurement(**(base | changes))


@pytest.mark.parametrize("name", table.BENCHMARKS)
def test_every_benchmark_runs_small_and_gives_sane_numbers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = table.BENCHMARKS[name]("tiny")
    assert rows
    for found in rows:
        assert math.isfinite(found.ratio), found
        assert found.ours >= 0, found
        assert found.reference > 0, found
        low, high = found.spread or (found.ratio, found.ratio)
        assert low <= found.ratio <= high, found
        assert found.measured, found
    assert not list(tmp_path.glob("tmp*")), "a temporary folder was left behind"


def test_the_parts_of_a_step_make_up_the_whole():
    shares = [found.ours for found in table.BENCHMARKS["step"]("tiny")]
    assert len(shares) == 3
    watch = watched.Watch(device=torch.device("cpu"))
    watch.ended, watch.began, watch.scored = [0.0, 5.0, 9.0], [1.0, 5.5, 10.0], [3.0, 8.0]
    assert parts(watch).tolist() == [[1000, 2000, 2000], [500, 2500, 1000]]


def test_training_stops_after_the_steps_that_were_asked_for(tmp_path):
    run = watched.random_run(tmp_path, watched.TrainingSize.of("tiny"))
    watch = watched.train(run, steps=3, device=torch.device("cpu"))
    assert [len(times) for times in (watch.began, watch.scored, watch.ended)] == [4, 3, 4]
    assert len(watch.batches) >= 4
    times = [
        time
        for step in zip(watch.ended, watch.began, [*watch.scored, math.inf], strict=True)
        for time in step
    ]
    assert times == sorted(times)


def test_the_ratio_is_the_median_over_rounds_and_the_sides_take_turns():
    order = []

    def side(name, times):
        return lambda number: order.append(name) or times[number]

    sides = measure.by_turns(side("ours", [2.0, 4.0, 5.0]), side("theirs", [8.0, 4.0, 10.0]), rounds=3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert sides.numbers(invert=True) == {"ours": 4, "reference": 8, "ratio": 2, "spread": (1, 4)}
    assert sides.numbers()["ratio"] == 0.5


def test_the_plain_loop_pads_like_the_store(tmp_path):
    size_S, rows = np.array([2, 5, 1, 3]), np.array([3, 0, 3])
    ours = feature_store(tmp_path / "store", size_S, dim=4)
    vectors_VD = np.concatenate(list(feature_sets(size_S, dim=4)))
    x_BND, mask_BN = store.loop(vectors_VD, np.array([0, 2, 7, 8, 11]))(rows)
    assert mask_BN.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert x_BND[1, :2].tolist() == vectors_VD[:2].tolist()
    assert all(map(torch.equal, ours.padded(rows), (x_BND, mask_BN)))


def test_the_corpus_has_captions_of_about_twelve_words(tmp_path):
    caption_corpus(tmp_path, images=50, words=30)
    items = Corpus.open(tmp_path).items("train")
    lengths = [len(caption.split()) for item in items for caption in item.captions]
    assert (len(items), len(lengths)) == (50, 250)
    assert min(lengths) >= 8
    assert max(lengths) <= 16
    assert np.mean(lengths) == pytest.approx(12, abs=0.6)


def test_sorting_finds_the_same_ranks_as_counting():
    score_QG = np.array([[9, 1, 2, 3], [5, 6, 7, 8]], np.float32)
    owner_T = np.array([0, 0, 1, 1])
    assert ranks.argsort_images(score_QG, owner_T, np.arange(2)).tolist() == [0, 0]
    assert ranks.argsort_captions(score_QG, owner_T, np.arange(4)).tolist() == [0, 1, 0, 0]
    i2t_Q, t2i_G = ranks.rank_matrix(torch.from_numpy(score_QG))
    assert (i2t_Q.tolist(), t2i_G.tolist()) == ([0, 0], [0, 1, 0, 0])


def test_every_call_has_a_process_of_its_own():
    processes = measure.apart(os.getpid, [()] * 3)
    assert len({*processes, os.getpid()}) == 4


def hold(size):
    return (torch.ones(size),)


def copy_and_drop(x):
    x.clone().add_(1)


def test_peak_memory_counts_what_is_dropped_again_and_not_what_was_there():
    (peak,) = measure.apart(measure.growth, [(hold, copy_and_drop, 8_000_000)])
    assert 32 <= peak < 60


def test_without_proc_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "status")
    with pytest.raises(InputError, match="Linux"):
        measure.memory()


@pytest.mark.parametrize(
    ("changes", "met", "target", "ratio"),
    [
        ({"target": 1.5}, True, ">= 1.50x", "1.50x"),
        ({"target": 1.6}, False, ">= 1.60x", "1.50x"),
        ({"target": 1.6, "goal": "at most", "spread": (1.0, 2.0)}, True, "<= 1.60x", "1.50x (1.00-2.00)"),
        ({"target": 0.05, "goal": "at most", "ratio": 0.06, "percent": True}, False, "<= 5.0%", "6.0%"),
        ({}, None, "-", "1.50x"),
    ],
)
def test_a_row_knows_whether_its_target_is_met(changes, met, target, ratio):
    found = row(**changes)
    assert found.met is met
    assert found.entries() == (
        "a",
        "2.0 ms",
        "3.0 ms",
        ratio,
        target,
        {None: "-", True: "met", False: "MISSED"}[met],
    )


def test_one_number_a_side_is_ours_over_the_reference_and_better_when_small():
    found = Measurement.of_two(2.0, 4.0, name="a", measured="b", unit="MB", target=0.5)
    assert (found.ours, found.reference, found.ratio, found.spread) == (2.0, 4.0, 0.5, None)
    assert found.met
    assert not Measurement.of_two(4.0, 2.0, name="a", measured="b", unit="MB", target=0.5).met


def test_a_tiny_size_differs_in_what_it_names():
    full, tiny = (ranks.RankSize.of(scale) for scale in ("full", "tiny"))
    assert (full.images, tiny.images) == (5000, 60)
    assert full.limit_MB == tiny.limit_MB
    assert tiny.captions == 300


def test_random_vectors_have_length_one_where_that_is_asked_for():
    one, other = random_tensors((3, 4), (2, 5, 4), unit=True)
    torch.testing.assert_close(one.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(other.norm(dim=-1), torch.ones(2, 5))
    assert not torch.equal(one[:2], other[0, :2])
    assert torch.equal(random_tensors((3, 4), unit=True)[0], one)


def run_main(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    try:
        bench.main()
    except SystemExit as end:
        return end.code
    return 0


def test_a_missed_target_is_shown_and_is_no_error(monkeypatch, capsys):
    def refuse(scale):
        raise InputError("this machine has no /proc")

    slow = row(name="slow", target=9.0, note="word " * 60)
    made_up = {"slow": lambda scale: [slow, row(name="plain")], "odd": refuse}
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch) == 0
    out = capsys.readouterr().out
    assert "cores" in out.splitlines()[0]
    assert any(line.startswith("slow") and line.endswith("MISSED") for line in out.splitlines())
    assert "odd: not measured: this machine has no /proc" in out
    assert max(map(len, out.splitlines())) <= 110


def test_only_the_named_benchmarks_run(monkeypatch, capsys):
    made_up = {
        name: lambda scale, name=name: [row(name=f"{name} {scale}")] for name in ("one", "two", "three")
    }
    monkeypatch.setattr(table, "BENCHMARKS", made_up)
    assert run_main(monkeypatch, "--quick", "--only", "three", "one", "three") == 0
    out = capsys.readouterr().out
    assert [word for word in ("one quick", "two quick", "three quick") if word in out] == [
        "one quick",
        "three quick",
    ]
    assert out.index("three quick") < out.index("one quick")


def test_an_unknown_benchmark_ends_with_a_suggestion(monkeypatch, capsys):
    assert run_main(monkeypatch, "--only", "worker") == 2
    assert "Did you mean 'workers'?" in capsys.readouterr().err


def test_help_names_every_benchmark(monkeypatch, capsys):
    assert run_main(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in table.BENCHMARKS)
