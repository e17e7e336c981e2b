"""Invalid settings are refused before tracking and Ray start."""

from dataclasses import replace

import pytest
from corpora import make_corpus, make_questions

from polypool.infra.errors import InputError
from polypool.infra.registry import RECIPES
from polypool.pipelines.models.run_evaluation import start_ensemble
from polypool.pipelines.recipes.load import Ensemble, derive
from polypool.pipelines.training.train import prepare, start
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return make_corpus(tmp_path_factory.mktemp("captions"))


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Run:
    return make_questions(tmp_path_factory.mktemp("questions"))


def test_valid_settings_are_accepted(run, questions):
    assert prepare(run).run == run
    freeze = {"lr_factors": (("visual", 0.1),), "freeze": (("text.encoder", 1.0),)}
    assert prepare(derive(run, optim=freeze))
    assert prepare(derive(run, data={"sample": "image"}, optim={"batch": 48}))
    assert prepare(derive(questions, fusion="product"))
    assert prepare(derive(run, protocol="whole-vectors4", aggregator="map(k=4, heads=2)"))
    assert prepare(derive(run, protocol="whole-vectors9", aggregator="late"))
    assert prepare(derive(run, protocol="whole-vectors2", model="heads(k=2)", aggregator="mean"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fusion": "product"}, "does not use --fusion 'product'; leave it out, which means 'concat'"),
        ({"protocol": "coco-5k"}, "defined on 5,000 items and 25,000 captions, and this split has 20"),
        ({"protocol": "val-1k"}, "'val-1k' selects epochs on the split 'val'"),
        (
            {"protocol": "whole-vectors1"},
            "compares 1 vectors of each set, and this model has no sets of vectors",
        ),
        (
            {"protocol": "whole-vectors5", "aggregator": "map(k=4, heads=2)"},
            "compares 5 vectors of each set, and this model has sets of at most 4 vectors",
        ),
        (
            {"protocol": "whole-dsl", "aggregator": "probabilistic(mean=mean)", "objective": "pcmepp"},
            "evaluate it under 'whole-qbnorm' (--rescore qbnorm)",
        ),
        ({"optim": {"batch": 1}}, "the training split has 48, and --optim.batch is 1"),
        ({"optim": {"batch": 97}}, "the training split has 96 samples, fewer than one batch of 97"),
        ({"data": {"sample": "image"}, "optim": {"batch": 49}}, "has 48 samples, fewer than one batch of 49"),
        ({"optim": {"lr_factors": (("vision", 0.1),)}}, "prefix in lr_factors: 'vision'"),
        ({"optim": {"freeze": (("text.bert", 1.0),)}}, "prefix in freeze: 'text.bert'"),
        ({"optim": {"lr_factors": (("", 0.0),)}}, "nothing to train"),
        ({"objective": "triplet(margin=-1)"}, "margin must be"),
    ],
)
def test_invalid_settings_are_refused_before_start(run, changes, message, new_home):
    with pytest.raises(InputError) as error:
        start(derive(run, **changes))
    assert message in str(error.value)
    assert not [*new_home.iterdir()], "a refused run must not create a store"


@pytest.mark.parametrize(
    ("changes", "flag"), [({"sample": "image"}, "sample 'image'"), ({"captions": 2}, "captions 2")]
)
def test_vqa_refuses_caption_sampling_options(questions, changes, flag):
    with pytest.raises(InputError, match=f"does not use --data.{flag}; leave it out"):
        prepare(derive(questions, data=changes))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"val": 0}, "no items in the split 'val'"),
        ({"test": 0}, "no items in the split 'test'"),
        ({"test": 1}, "'whole' is defined on at least 2 items, and this split has 1 items"),
        ({"val": 1}, "'val-1k' is defined on at least 2 items, and this split has 1 items"),
        ({"train": 1}, "the training split has 1"),
    ],
)
def test_too_small_splits_are_refused(sizes, message, tmp_path):
    run = make_corpus(tmp_path, **sizes)
    with pytest.raises(InputError, match=message):
        prepare(run)


def test_task_without_unused_list_uses_all_settings(run):
    run = replace(
        run, task="template_task:CaptionWord", objective="triplet", fusion="product", protocol="caption_word"
    )
    assert prepare(run).unused == ()


@pytest.mark.parametrize(
    ("second", "protocol", "message"),
    [
        ({}, "coco-5k", "'coco-5k' is defined on 5,000 items"),
        ({"aggregator": "maen"}, "whole", "unknown aggregator 'maen'"),
    ],
)
def test_invalid_ensemble_is_refused_before_training(run, second, protocol, message, new_home, monkeypatch):
    RECIPES.names()
    for name, member in (("one", run), ("two", derive(run, **second))):
        monkeypatch.setitem(RECIPES._parts, name, lambda member=member: member)
    with pytest.raises(InputError, match=message):
        start_ensemble(Ensemble(members=("one", "two"), protocol=protocol))
    assert not [*new_home.iterdir()]
