"""Evaluation of runs on other data sets: model settings, refusals and records."""

from dataclasses import replace
from pathlib import Path

import pytest
from corpora import make_corpus
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.results import groups_of
from polypool.pipelines.models.trained import load
from polypool.tasks.inputs.other_data import OtherData
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def run(home) -> Run:
    return replace(make_corpus(home), experiment="own")


@pytest.fixture(scope="module")
def other(home) -> Run:
    """A corpus with other images and vocabulary size, and features of the same width."""
    return make_corpus(home / "other", test=12, seed=1)


def data_of(other: Run, **changes: object) -> OtherData:
    named = {"dataset": "other", "corpus": other.data.corpus, "features": other.data.features}
    return OtherData(**named | changes)


def flags(data: OtherData) -> list[str]:
    return [word for name, value in data.given.items() for word in (f"--data.{name}", str(value))]


def evaluated(*words: str) -> str:
    code, out, err = called("evaluate", *words)
    assert code == 0, err
    return out


def test_transfer_keeps_assets_of_training_data(run, other):
    run_id = track_untrained(run)
    own, moved = load(run_id), load(run_id, data=data_of(other))
    assert (own.trained_on, moved.trained_on, moved.run.data.dataset) == ("", "tiny", "other")
    assert data_of(other, dataset="").of(own.run).data.dataset == "corpus"
    assert moved.adapter.assets == own.adapter.assets
    assert moved.adapter.assets["visual"]["statistics"] != moved.adapter.store.manifest.statistics
    there = replace(run, data=replace(other.data, dataset="other"))
    adapter = TASKS.build(there.task, there, assets=own.adapter.assets)
    expected = adapter.evaluate(own.model, "test", "whole").metrics
    assert moved.evaluate().metrics == expected != own.evaluate().metrics
    assert len(moved.adapter.data("test").item_ids) == 12
    one = load(run_id, data=data_of(other, captions=1))
    assert len(one.adapter.data("test").texts) == 12


def test_compare_groups_transfer_results_separately(run, other, home):
    ours = [replace(run, experiment="both", aggregator=of) for of in ("mean", "max")]
    run_ids = [track_untrained(each) for each in ours]
    for run_id in run_ids:
        evaluated(run_id)
        evaluated(run_id, *flags(data_of(other)))
    evaluated(*run_ids, *flags(data_of(other)))
    compared = compare(tracking_uri(home), "both")
    own, moved = compared.groups
    assert own.title == "image_text · tiny · whole"
    assert moved.title == "image_text · trained on tiny, evaluated on other · whole"
    assert {row.label for row in own.rows} == {"mean", "max"}
    assert {row.label for row in moved.rows} == {"mean", "max", "ensemble: mean + max"}
    assert moved.judged is not None
    assert not compared.cross_tasks, "transfer results must not enter means over tasks"
    assert [(of.title, len(of.rows)) for of in groups_of(compared.results)] == [
        (own.title, 2),
        (moved.title, 3),
    ]


def _narrow(folder: Path, store: FeatureStore, *, dim: int, source: dict) -> str:
    """Write a store of the same ids with the first `dim` values of every vector."""
    with StoreWriter(folder, dim=dim, dtype="float32", source=source) as writer:
        for row, id in enumerate(store.ids.to_pylist()):
            writer.add(id, store[row][:, :dim])
        writer.close()
    return str(folder)


def test_incompatible_transfer_features_are_refused(run, other, tmp_path):
    run_id, store = track_untrained(run), FeatureStore.open(Path(other.data.features))
    narrow = _narrow(tmp_path / "narrow", store, dim=9, source={})
    extracted = _narrow(
        tmp_path / "vit", store, dim=10, source={"extractor": {"backbone": "vit", "name": "b"}}
    )
    message = f"--features {narrow}: not made as the features that the model was trained on: their width is 9"
    with pytest.raises(InputError, match=message):
        load(run_id, data=data_of(other, features=narrow))
    with pytest.raises(InputError, match="backbone of their extractor is 'vit', expected 'unknown'; name of"):
        load(run_id, data=data_of(other, features=extracted))
    learnt = replace(run, visual="regions(width=16)", data=replace(other.data, features=extracted))
    learnt = track_untrained(learnt)
    load(learnt, data=data_of(other, features=extracted))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": ""}, "other data need --corpus"),
        ({"dataset": "tiny"}, "'tiny' is the name of the data that the model was trained on"),
        ({"features": ""}, "name a store for .* by --features DIR"),
        ({"corpus": "nowhere"}, "nowhere"),
    ],
)
def test_invalid_transfer_data_is_refused(run, other, changes, message):
    with pytest.raises(InputError, match=message):
        load(track_untrained(run), data=data_of(other, **changes)).evaluate()
