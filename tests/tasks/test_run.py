"""Run settings are validated on construction and when read from JSON."""

import json
import math
from dataclasses import replace

import pytest
from toy import toy_run

from polypool.infra.errors import InputError
from polypool.tasks.run import Data, Optim, Run, from_json, to_json, to_params

WRONG = [
    (Optim, {"lr": -1.0}, "--optim.lr must be above 0, not -1.0"),
    (Optim, {"lr": 0.0}, "--optim.lr must be above 0"),
    (Optim, {"lr": math.nan}, "--optim.lr must be a finite number, not nan"),
    (Optim, {"lr": math.inf}, "--optim.lr must be a finite number, not inf"),
    (Optim, {"lr": "fast"}, "--optim.lr must be a finite number, not 'fast'"),
    (Optim, {"lr": True}, "--optim.lr must be a finite number, not True"),
    (Optim, {"clip": -1.0}, "--optim.clip must be at least 0"),
    (Optim, {"warmup_steps": -5}, "--optim.warmup-steps must be at least 0, not -5"),
    (Optim, {"warmup_start": -1.0}, "--optim.warmup-start must be at least 0, not -1.0"),
    (Optim, {"optimiser": ""}, "--optim.optimiser must be a name, not nothing, not ''"),
    (Optim, {"optimiser": "lion(beta1"}, "--optim.optimiser: cannot read the spec"),
    (Optim, {"weight_decay": -0.1}, "--optim.weight-decay must be at least 0"),
    (Optim, {"epochs": 2**31}, "--optim.epochs must be below 2,147,483,648, not 2147483648"),
    (Data, {"captions": 10**30}, "--data.captions must be below 2,147,483,648"),
    (Optim, {"epochs": -1}, "--optim.epochs must be at least 0, not -1"),
    (Optim, {"epochs": 2.0}, "--optim.epochs must be a whole number, not 2.0"),
    (Optim, {"epochs": True}, "--optim.epochs must be a whole number, not True"),
    (Optim, {"batch": 0}, "--optim.batch must be at least 1"),
    (Optim, {"decay": 0.0}, "--optim.decay must be above 0"),
    (Optim, {"decay": 1.5}, "--optim.decay must be at most 1, not 1.5"),
    (Optim, {"milestones": (5, 3)}, "--optim.milestones must be in ascending order"),
    (Optim, {"milestones": (3, 3)}, "--optim.milestones must be in ascending order"),
    (Optim, {"milestones": (0,)}, "--optim.milestones[0] must be above 0, not 0"),
    (Optim, {"milestones": [3]}, "--optim.milestones must be a tuple, not [3]"),
    (Optim, {"lr_factors": (("visual", -1.0),)}, "--optim.lr-factors[0][1] must be at least 0, not -1.0"),
    (Optim, {"lr_factors": (("visual",),)}, "--optim.lr-factors[0][1] is missing"),
    (Optim, {"freeze": (("visual", math.nan),)}, "--optim.freeze[0][1] must be a finite number"),
    (Optim, {"freeze": (("a", 1.0), ("a", 2.0))}, "--optim.freeze must be pairs with each prefix once"),
    (Optim, {"schedule": "linear"}, "--optim.schedule must be one of step, cosine, constant, not 'linear'"),
    (Optim, {"precision": "half"}, "--optim.precision must be one of auto"),
    (Optim, {"drop_last": 1}, "--optim.drop-last must be True or False, not 1"),
    (Data, {"captions": -1}, "--data.captions must be at least 0, not -1"),
    (Data, {"max_words": -1}, "--data.max-words must be at least 0"),
    (Data, {"max_frames": -1}, "--data.max-frames must be at least 0"),
    (Data, {"sample": "video"}, "--data.sample must be one of caption, image"),
    (Data, {"vocabulary": ()}, "--data.vocabulary must be different splits, at least one, not ()"),
    (Data, {"vocabulary": ("train", "train")}, "--data.vocabulary must be different splits, at least one"),
    (Data, {"vocabulary": ("test",)}, "--data.vocabulary[0] must be one of train, val, not 'test'"),
    (Data, {"dataset": ""}, "--data.dataset must be a name"),
    (Data, {"text_augment": "drop(p"}, "--data.text-augment: cannot read the spec"),
    (Data, {"features": None}, "--data.features must be text, not None"),
    (Run, {"seed": -1}, "--seed must be at least 0, not -1"),
    (Run, {"seed": 2**63}, "--seed must be below 2**63, not 9223372036854775808"),
    (Run, {"log_every": 0}, "--log-every must be at least 1, not 0"),
    (Run, {"checkpoint_every": -1}, "--checkpoint-every must be at least 0"),
    (Run, {"retries": -1}, "--retries must be at least 0"),
    (Run, {"workers": 0}, "--workers must be at least 1"),
    (Run, {"cpus": 0}, "--cpus must be at least 1"),
    (Run, {"experiment": ""}, "--experiment must be a name"),
    (Run, {"task": ""}, "--task must be a name"),
    (Run, {"aggregator": "kmax(k"}, "--aggregator: cannot read the spec 'kmax(k'"),
    (Run, {"regularisers": ("mmd", "")}, "--regularisers[1] must be a name"),
    (Run, {"optim": {"lr": 1.0}}, "--optim must be an instance of Optim"),
    (Run, {"published": {"a/b": "1"}}, "--published.a/b must be a finite number, not '1'"),
    (Run, {"workers": 3}, "a batch of 8 cannot be shared evenly by 3 workers"),
]


@pytest.mark.parametrize(("cls", "values", "message"), WRONG)
def test_invalid_settings_are_refused_on_construction(cls, values, message):
    whole = {Optim: Optim(), Data: toy_run().data, Run: toy_run()}[cls]
    with pytest.raises(InputError) as error:
        replace(whole, **values)
    assert str(error.value).startswith(message)


def test_boundary_values_are_allowed():
    factors = (("a", 0), ("a.b", 2))
    optim = Optim(lr=1, clip=0, warmup_steps=0, decay=1, weight_decay=0, milestones=(), lr_factors=factors)
    assert replace(toy_run(), seed=2**63 - 1, retries=0, log_every=1, cpus=1, optim=optim, workers=2)
    assert Data(dataset="x", corpus="", captions=1, max_frames=0, max_words=0)


def test_run_roundtrips_through_json():
    run = replace(toy_run(), published={"whole/rsum": 1.5}, source="nowhere", regularisers=("mmd",))
    run = replace(run, optim=replace(run.optim, lr_factors=(("visual", 0.1),), milestones=(1, 2.5)))
    assert from_json(json.loads(json.dumps(to_json(run)))) == run
    assert to_params(run)["published"] == '{"whole/rsum": 1.5}'
    assert len({run, replace(run, seed=1), run}) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: run["optim"].update(lr="0.1"), "optim.lr must be a finite number, not '0.1'"),
        (lambda run: run["optim"].update(lr=-0.1), "optim.lr must be above 0, not -0.1"),
        (lambda run: run["optim"].update(amsgrad=True), "unknown field 'optim.amsgrad'"),
        (lambda run: run["optim"].update(learning=1), "unknown field 'optim.learning'. Did you mean"),
        (lambda run: run.update(optim=3), "optim must be a mapping of names to values, not 3"),
        (lambda run: run.update(seed=None), "seed must be a whole number, not None"),
        (lambda run: run.pop("visual"), "visual is missing"),
        (lambda run: run["data"].pop("corpus"), "data.corpus is missing"),
    ],
)
def test_invalid_run_json_names_file_and_field(change, message):
    values = json.loads(json.dumps(to_json(toy_run())))
    change(values)
    with pytest.raises(InputError) as error:
        from_json(values, where="runs/1/run.json")
    assert str(error.value).startswith(f"runs/1/run.json: {message}")
    with pytest.raises(InputError, match=r"run\.json: it must be a mapping"):
        from_json([])
