"""The Python API and the command, as a notebook and a shell use them."""

import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from programs import begin, end

import polypool as pp
from polypool.__main__ import main, verbs
from polypool.infra.errors import InputError


@pytest.fixture(scope="module")
def project(home):
    made = make_corpus(home, train=24, val=8, test=8)
    return replace(made, optim=replace(made.optim, epochs=2), figures=False)


@pytest.fixture(scope="module")
def trained(project):
    return pp.train(project), pp.train(project, aggregator="max", optim={"epochs": 1})


def test_parts_are_built_from_specs():
    x_BND, mask_BN = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    assert pp.aggregator("kmax(k=2)", 8)(x_BND, mask_BN).vectors.shape == (2, 8)
    assert pp.part("similarity", "cosine")(torch.eye(3), torch.eye(3)).equal(torch.eye(3))


def test_recipe_fields_can_be_overridden():
    run = pp.recipe("coco_mini", aggregator="max", optim={"epochs": 1})
    assert (run.aggregator, run.optim.epochs, run.recipe) == ("max", 1, "coco_mini")
    assert pp.recipe("coco_mini", published={"whole/rsum": 50.0}).published == {"whole/rsum": 50.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pp.aggregator("gpoo", 8), "Did you mean 'gpo'"),
        *(
            (lambda width=width: pp.aggregator("gpo", width), "number of at least 1")
            for width in (0, -4, "8")
        ),
        (lambda: pp.part("encodr", "regions"), "Did you mean 'encoder'"),
        (lambda: pp.recipe("coco_mini", agregator="max"), "Did you mean 'aggregator'"),
        (lambda: pp.recipe("coco_mini", optim={"epoch": 1}), "a run's optim 'epoch'. Did you mean 'epochs'"),
        (
            lambda: pp.train(pp.recipe("coco_mini"), data={"caption": 1}),
            "data 'caption'. Did you mean 'captions'",
        ),
        (lambda: pp.train(pp.recipe("coco_mini"), agregator="max"), "Did you mean 'aggregator'"),
        (lambda: pp.recipe("coco_mnii"), "Did you mean 'coco_mini'"),
        *((lambda name=name: pp.train(name), "the name of a recipe must be text") for name in (3, None)),
        *((lambda spec=spec: pp.aggregator(spec, 8), "the spec of a part") for spec in (3, None)),
        *((lambda run=run: pp.load(run), "by the id of its run or by its folder") for run in (3, None)),
        (lambda: pp.load("a run", trust="mine"), r"trust=\('mine',\)"),
        (lambda: pp.recipe("coco_wsl_bert_x2"), "is an ensemble"),
    ],
)
def test_invalid_arguments_give_specific_messages(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_trained_run_loads_scores_and_searches(project, trained):
    run, _ = trained
    assert run.metrics["whole/rsum"] > 0
    model = pp.load(run.id)
    features = [np.random.default_rng(i).normal(size=(3, 10)).astype(np.float32) for i in range(2)]
    assert model.scores(features, ["a dog and a cat"]).shape == (2, 1)
    hits = model.search("a dog and a cat", k=3)
    assert [hit.rank for hit in hits] == [1, 2, 3]


def test_runs_and_compare_return_data_frames(trained):
    table = pp.runs("polypool")
    assert set(table.index) == {run.id for run in trained}
    own = table.loc[trained[0].id]
    assert own["whole/rsum"] == trained[0].metrics["whole/rsum"]
    run = pp.load(trained[0].id)
    assert (own["name"], own["data.corpus"]) == (
        "mean · image_text · tiny · features · seed 0",
        run.adapter.corpus.digest,
    )
    compared = pp.compare("polypool", data="tiny", features="features").set_index("aggregator")
    assert set(compared.index) == {"mean", "max"}
    assert compared.loc["mean", "mean"] == pytest.approx(trained[0].metrics["whole/rsum"], abs=1e-3)


def test_package_exports_its_public_names():
    from polypool.tasks.datasets.corpus import Item
    from polypool.tasks.run import Run

    assert (pp.Item, pp.Run) == (Item, Run)
    assert all(hasattr(pp, name) for name in pp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Runn'"):
        _ = pp.Runn


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "sweep"),
        ([], 2, "polypool VERB"),
        (["trian"], 2, "Did you mean 'train'"),
        (["train", "coco_mini", "--data.visual-augment", "dorp"], 2, "Did you mean 'drop'"),
    ],
)
def test_command_shows_help_and_suggests_corrections(words, code, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["polypool", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code or 0) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_argument_parsing_imports_no_heavy_packages():
    lines = [f"{verb} --help" for verb in verbs()]
    lines += ["train --list", "train coco_mini --help", "train coco_mnii", "train coco_mini --agregator gpo"]
    lines += ["train coco_mini --aggregator gpoo", "check gpoo"]
    command = f"""
import polypool.pipelines.commands.train, sys
assert not {{"torch", "ray", "mlflow", "numpy"}} & set(sys.modules), "the process that watches a run is forked"
import contextlib, io
from polypool.__main__ import main
for line in {lines!r}:
    sys.argv = ["polypool", *line.split()]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    heavy = [name for name in ("torch", "ray", "mlflow", "transformers", "matplotlib") if name in sys.modules]
    assert not heavy, f"polypool {{line}} imports {{heavy}}"
"""
    code, _, err = end(begin("-c", command, env=os.environ))
    assert code == 0, err[-1000:]
