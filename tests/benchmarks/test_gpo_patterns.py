import math
import sys

import numpy as np
import pytest
import torch

from benchmarks.gpo_patterns import __main__ as synthetic
from benchmarks.gpo_patterns import experiment
from benchmarks.gpo_patterns.patterns import PATTERNS, learn, pattern_weights, rmse, sorted_features
from benchmarks.gpo_patterns.report import Results
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.tracking import Tracker, find_runs, tracking_uri


def explicit(pattern: str, size: int) -> list[float]:
    """A pattern's weights, rank by rank from 1 as the paper counts."""
    most = {"A": size, "M-1": 1, "M-10": 10, "T-50%": math.ceil(size / 2)}
    weights = [float(size - k if pattern == "L" else k <= most[pattern]) for k in range(1, size + 1)]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_their_definitions(pattern):
    size_S = torch.tensor([10, 7, 20, 3, 11])
    weight_SN = pattern_weights(pattern, size_S)
    assert weight_SN.shape == (5, 20)
    for row, size in zip(weight_SN, size_S.tolist(), strict=True):
        assert row[:size].tolist() == pytest.approx(explicit(pattern, size), abs=1e-7)
        assert not row[size:].any()
        assert (row[:size].diff() <= 0).all()


def test_the_error_is_that_of_every_rank_of_every_size():
    torch.manual_seed(0)
    generator, squares = GPO(1), []
    for size in range(4, 9):
        weights = generator.size_weights(torch.tensor([size]))[0].tolist()
        squares += [(w - t) ** 2 for w, t in zip(weights, explicit("L", size), strict=True)]
    assert len(squares) == 4 + 5 + 6 + 7 + 8
    assert rmse(generator, "L", sizes=range(4, 9)) == pytest.approx(math.sqrt(sum(squares) / 30), rel=1e-5)


def test_features_are_sorted_and_empty_beyond_a_set():
    random = torch.Generator().manual_seed(0)
    x_BDN = sorted_features(torch.tensor([3, 5, 1]), width=4, random=random)
    assert x_BDN.shape == (3, 4, 5)
    for x_DN, size in zip(x_BDN, (3, 5, 1), strict=True):
        assert (x_DN[:, :size].diff(dim=1) <= 0).all()
        assert not x_DN[:, size:].any()
    assert x_BDN.isfinite().all()


@pytest.mark.parametrize("pattern", [pytest.param("A", marks=pytest.mark.slow), "M-1"])
def test_a_pattern_is_learnt(pattern):
    torch.manual_seed(0)
    generator, sizes = GPO(1, positions=8, hidden=8), range(3, 9)
    before = rmse(generator, pattern, sizes=sizes)
    learn(generator, pattern, sizes=sizes, steps=200, seed=0)
    assert rmse(generator, pattern, sizes=sizes) < before / 10


@pytest.mark.slow
def test_training_repeats_itself():
    weights = []
    for _ in range(2):
        design = {"d": experiment.Design("gpo(positions=4, hidden=4)", ())}
        generators = experiment.train(design, seeds=2, steps=2)
        weights.append({key: g.size_weights(torch.tensor([30])) for key, g in generators.items()})
    assert len(weights[0]) == 2 * len(PATTERNS)
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not torch.equal(weights[0]["d", "A", 0], weights[0]["d", "A", 1])


def results() -> Results:
    rmse_DZPR = np.array([[[[0.01, 0.03], [0.0, 0.0]]], [[[0.001, 0.001], [0.002, 0.002]]]])
    published_DZP = np.array([[[0.05, 0.002]], [[0.0, 0.012]]])
    names = {"designs": ("plain", "a + b"), "sizes": {"seen": range(20, 101)}, "patterns": ("A", "T-50%")}
    return Results(**names, rmse_DZPR=rmse_DZPR, published_DZP=published_DZP)


def test_the_table_sets_numbers_beside_the_published_ones():
    lines = results().table().splitlines()
    assert "seen, 20 to 100" in lines[0]
    assert lines[3] == "plain: 0.0100 on average, published 0.0260"
    assert lines[4].split() == ["A", "0.0200", "±", "0.0141", "0.050", "-0.0300"]
    assert lines[5].split() == ["T-50%", "0.0000", "±", "0.0000", "0.002", "-0.0020"]
    assert lines[8].split() == ["A", "0.0010", "±", "0.0000", "0.000", "+0.0010"]


def test_the_verdict_names_the_best_and_what_is_farthest_off():
    said = results().verdict("a + b")
    assert "best on average: a + b" in said
    assert "at most 0.0100 off the paper (T-50%, seen sizes)" in said


def test_metrics_have_names_that_can_be_logged():
    metrics = results().metrics()
    assert metrics["rmse/plain/seen/A"] == pytest.approx(0.02)
    assert metrics["published/a-b/seen/T-50"] == 0.012
    assert metrics["difference/a-b/seen/T-50"] == pytest.approx(-0.01)
    assert metrics["deviation/plain/seen/A"] == pytest.approx(math.sqrt(2e-4))


def test_the_published_table_is_that_of_the_paper():
    averages = {name: np.mean(design.published) for name, design in experiment.DESIGNS.items()}
    assert min(averages, key=averages.get) == experiment.OURS
    assert averages[experiment.OURS] == pytest.approx(0.131 / 15)
    for design in experiment.DESIGNS.values():
        assert np.shape(design.published) == (3, 5)


@pytest.mark.slow
def test_it_runs_and_keeps_everything(home, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["synthetic", "--quick"])
    threads = torch.get_num_threads()
    synthetic.main()
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert all(name in said for name in (*experiment.DESIGNS, *PATTERNS))
    uri = tracking_uri(home)
    (record,) = find_runs(uri, "synthetic")
    assert len(record.metrics) == 3 * len(experiment.DESIGNS) * 3 * 5
    assert record.metrics["published/sinusoids-BiGRU/smaller/T-50"] == 0.046
    figure = Tracker.attach(uri, record.run_id, running=False).download("weights.png")
    assert str(figure) in said
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_no_steps_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["synthetic", "--steps", "0"])
    with pytest.raises(SystemExit, match="2"):
        synthetic.main()
    assert "--steps must be at least 1" in capsys.readouterr().err
