"""User workflow on real photographs: about five minutes, run by `make test-real`."""

import os

import pytest
from places import ROOT
from programs import begin, end

from polypool.infra.registry import RECIPES
from polypool.infra.tracking import find_runs, tracking_uri


def verb(name: str, *words: str) -> str:
    code, printed, errors = end(
        begin("-m", "polypool", name, *words, env=os.environ | {"PYTHONPATH": str(ROOT)})
    )
    assert code == 0, printed + errors
    return printed


@pytest.fixture(scope="module")
def home(shared, tmp_path_factory):
    """A home with coco_mini ingested and its features extracted."""
    folder = tmp_path_factory.mktemp("home")
    data, raw = RECIPES.get("coco_mini")().data, shared / "data" / "coco_mini"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        corpus, features = folder / data.corpus, folder / data.features
        captions = raw / "dataset_coco_mini.json"
        words = ["--json", str(captions), "--images", str(raw), "--out", str(corpus)]
        printed = verb("ingest", "karpathy", *words)
        assert "test 1,064, val 195, train 1,359" in printed
        printed = verb("extract", "--corpus", str(corpus), "--backbone", "cells", "--out", str(features))
        assert "2,618 images" in printed
        verb("ingest", "verify", "--store", str(features))
        yield folder


@pytest.mark.real
@pytest.mark.parametrize("aggregator", ["mean", "max", "gpo"])
def test_aggregator_reaches_rsum_on_real_photographs(home, aggregator):
    verb("train", "coco_mini", "--aggregator", aggregator, "--experiment", aggregator)
    (run,) = find_runs(tracking_uri(home), aggregator)
    assert run.metrics["test/chance"] < 4
    assert run.metrics["whole/rsum"] >= 39
    assert aggregator in verb("compare", "--experiment", aggregator)
