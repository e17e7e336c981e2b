"""Run files in YAML and JSON."""

import json

import pytest

from polypool.infra.errors import InputError
from polypool.infra.registry import RECIPES
from polypool.pipelines.recipes.arguments import read_config
from polypool.pipelines.recipes.load import read_run_file
from polypool.tasks.run import to_json


def written(folder, text: str, name: str = "run.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def test_run_file_overrides_only_given_settings(tmp_path):
    text = "# mine\nbase: coco_mini\naggregator: kmax(k=3)\noptim:\n  lr: 1e-3\n  milestones: [2, 3]\n"
    run = read_run_file(written(tmp_path, f"{text}data: {{features: f}}\n"))
    recipe = RECIPES.get("coco_mini")()
    assert (run.recipe, run.aggregator, run.optim.lr) == ("coco_mini", "kmax(k=3)", 1e-3)
    assert run.data.features == "f"
    assert run.optim.milestones == (2, 3)
    changed = {"aggregator", "optim", "data"}
    assert {name for name, value in to_json(run).items() if value != to_json(recipe)[name]} == changed
    assert run.optim.batch == recipe.optim.batch
    assert run.data.corpus == recipe.data.corpus


def test_complete_run_file_round_trips(tmp_path):
    for name in ("mini_dinov2_joint", "coco_region_bigru"):
        run = RECIPES.get(name)()
        assert read_run_file(written(tmp_path, json.dumps(to_json(run)), "run.json")) == run
    text = "data: {dataset: mine, corpus: c, features: f}\nvisual: regions\ntext: bigru\nprotocol: whole\n"
    assert read_run_file(written(tmp_path, text)).aggregator == "gpo"


def test_joint_members_inherit_from_their_bases(tmp_path):
    text = "base: mini_dinov2_joint\nmembers:\n  a: {base: coco_mini, seed: 3}\n"
    text += "  b: {base: daquar, optim: {lr: 1e-5}}\n"
    run = read_run_file(written(tmp_path, text))
    recipe = RECIPES.get("daquar")()
    assert (run.members["a"].seed, run.members["b"].visual) == (3, recipe.visual)
    assert (run.members["b"].optim.lr, run.members["b"].optim.batch) == (1e-5, recipe.optim.batch)


def test_flags_override_run_file(tmp_path):
    path = written(tmp_path, "base: coco_mini\nseed: 4\noptim: {epochs: 2}\n")
    run = read_config(str(path), ["--optim.lr", "2e-4"])
    assert (run.seed, run.optim.epochs, run.optim.lr) == (4, 2, 2e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "cannot be read as YAML or JSON"),
        ("\0", "cannot be read as YAML or JSON"),
        ("- 1", "expected settings such as"),
        ("", "expected settings such as"),
        ("base: coco_mni", r"base: unknown recipe 'coco_mni'\. Did you mean 'coco_mini'"),
        ("base: coco_wsl_bert_x2", "an ensemble; name one of its members: coco_wsl_bert"),
        ("base: demo\nagregator: gpo", "Did you mean 'aggregator'"),
        ("base: demo\noptim: {lr: fast}", "optim.lr must be a finite number"),
        ("base: demo\noptim: 3", "optim must be a mapping"),
        ("base: demo\naggregator: os:system", "--trust os"),
        ("base: os:system", "--trust os"),
        ("seed: 1", "data"),
    ],
)
def test_invalid_run_file_error_names_its_path(text, message, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_run_file(path)
    assert str(path) in str(caught.value)


def test_code_named_in_run_file_requires_trust(tmp_path, monkeypatch):
    (tmp_path / "trusted_by_a_flag.py").write_text("from polypool.aggregators.averages.mean import Mean\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = written(tmp_path, "base: demo\naggregator: trusted_by_a_flag:Mean\n")
    with pytest.raises(InputError, match="--trust trusted_by_a_flag"):
        read_config(str(path))
    assert read_config(str(path), ["--trust", "trusted_by_a_flag"]).aggregator == "trusted_by_a_flag:Mean"
