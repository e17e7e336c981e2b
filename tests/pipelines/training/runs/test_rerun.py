import shutil
from dataclasses import replace

import pytest
from corpora import make_corpus
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.training import train as start
from polypool.pipelines.training.train import read_original
from polypool.tasks.run import to_json


@pytest.fixture
def run(new_home):
    made = make_corpus(new_home, train=16, val=8, test=8)
    return replace(made, optim=replace(made.optim, epochs=1), figures=False)


def test_rerun_reproduces_scores(run, new_home):
    first = start.start(run)
    _, out, _ = called("train", "rerun", first)
    again, before = find_runs(tracking_uri(new_home), "polypool")
    assert before.run_id == first
    assert again.tags["rerun_of"] == first
    assert again.params == before.params
    scores = {name: value for name, value in before.metrics.items() if name.startswith("whole/")}
    assert scores.items() <= again.metrics.items()
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["whole/rsum"])
    value = f"{before.metrics['whole/rsum']:.2f}"
    assert line.split()[1:] == ["then", value, "now", value]
    assert "data.corpus: then" not in out


def test_dry_rerun_lists_differences_and_trains_nothing(run, new_home):
    first = start.start(run)
    tracker = Tracker.attach(tracking_uri(new_home), first, running=False)
    tracker.tags({"git_commit": "0" * 40, "torch": "0.4.0", "numpy": "", "git_dirty": "false"})
    features = tracker.tag("data.features")
    shutil.rmtree(new_home / "features")
    make_corpus(new_home, train=16, val=8, test=8, seed=1)
    _, out, _ = called("train", "rerun", first, "--dry-run")
    lines = [line.strip() for line in out.splitlines()]
    assert f"tiny mean seed 0 (run {first})" in lines
    then = {"git_commit": "0" * 40, "torch": "0.4.0", "data.features": features}
    for name, value in then.items():
        assert any(line.startswith(f"{name}: then {value}, now ") for line in lines), name
    assert any(line.startswith("data.corpus: then ") for line in lines)
    assert "not recorded then: numpy" in lines
    assert not any(line.startswith(("data.images_train", "python")) for line in lines)
    assert len(find_runs(tracking_uri(new_home), "polypool", finished=False)) == 1


def recorded_run(run, home, tags) -> Tracker:
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    return Tracker.start("polypool", tags=tags, **given)


def test_rerun_refuses_unusable_settings(run, new_home):
    bare = recorded_run(run, new_home, {"kind": "train"})
    for settings, message in (
        (None, r"cannot be repeated: its settings, the artifact run\.json, were deleted"),
        ({**to_json(run), "aggregater": "mean"}, "Did you mean 'aggregator'"),
        (to_json(replace(run, aggregator="uninstalled")), "unknown aggregator 'uninstalled'"),
        (to_json(replace(run, data=replace(run.data, corpus="gone"))), "gone"),
    ):
        if settings:
            bare.json("run.json", settings)
        with pytest.raises(InputError, match=message):
            read_original(bare.run_id)
    with pytest.raises(InputError, match="no run 'none'"):
        read_original("none")
    with pytest.raises(InputError, match="is an ensemble; give one of its members"):
        read_original(recorded_run(run, new_home, {"kind": "ensemble"}).run_id)
