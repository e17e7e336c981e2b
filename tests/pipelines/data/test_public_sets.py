from __future__ import annotations

import dataclasses
import pickle
import shlex
from pathlib import Path

import pytest
from verbs import called

from polypool.infra.errors import InputError, MissingError
from polypool.infra.files import existing, existing_folder
from polypool.infra.registry import READERS, RECIPES
from polypool.pipelines.data.public_sets import DEPTH, SETS, found_below, report, summary, where_published
from polypool.pipelines.recipes.load import Ensemble
from polypool.tasks.datasets import FeatureReader

INGESTS = [
    (name, shlex.split(command)[2:])
    for name, of in SETS.items()
    for command in of.commands
    if command.startswith("polypool ingest ")
]


@pytest.mark.parametrize(("name", "words"), INGESTS, ids=[f"{name} {words[0]}" for name, words in INGESTS])
def test_commands_name_flags_that_there_are_and_files_that_are_listed(name, words):
    verb, *rest = words
    reader = READERS.get(verb)
    options = {field.name for field in dataclasses.fields(reader)} | {"out"}
    options |= {"corpus"} if issubclass(reader, FeatureReader) else set()
    assert {word[2:].replace("-", "_") for word in rest if word.startswith("--")} <= options
    files = {file.name.rstrip("/") for file in SETS[name].files}
    given = [
        word for word in rest if not word.startswith("--") and word != "." and not word.startswith("data/")
    ]
    for word in given:
        assert any(Path(file).match(word) or word.startswith(f"{file}/") for file in files), word


def test_every_public_recipe_has_its_data_set():
    runs = [made for name in RECIPES.names() if not isinstance(made := RECIPES.get(name)(), Ensemble)]
    corpora = {run.data.corpus for run in runs if run.data.corpus}
    rendered = {"data/scenes", "data/moving_scenes", "data/scene_questions"}
    small = {"data/coco_mini", "data/msrvtt_mini", "data/daquar"}
    assert corpora - rendered - small <= {f"data/{name}" for name in SETS}


def test_files_are_found_where_archives_leave_them(tmp_path):
    nested = tmp_path / "a" / "caption_datasets"
    nested.mkdir(parents=True)
    (nested / "dataset_coco.json").touch()
    (tmp_path / "coco" / "train2014").mkdir(parents=True)
    (tmp_path / "val2014").touch()  # a file is no folder
    (tmp_path / ".hidden" / "val2014").mkdir(parents=True)
    deep = tmp_path.joinpath(*"x" * (DEPTH + 1))
    deep.mkdir(parents=True)
    (deep / "dataset_flickr30k.json").touch()
    names = {file.name for each in SETS.values() for file in each.files}
    found = found_below(tmp_path, names)
    assert found == {
        "dataset_coco.json": nested / "dataset_coco.json",
        "train2014/": tmp_path / "coco" / "train2014",
    }
    assert summary(SETS["coco"], found).endswith("2 of 3 files here")
    shown = report("coco", SETS["coco"], found)
    assert f"here: {nested / 'dataset_coco.json'}" in shown
    assert "not here: http://images.cocodataset.org/zips/val2014.zip, 6 GB" in shown
    _, shown, _ = called("data", "--folder", tmp_path)
    assert "coco        COCO captions, in Karpathy's splits: 2 of 3 files here" in shown
    refusals = [(["cocoo"], "Did you mean 'coco'"), (["--folder", tmp_path / "no"], "no such folder")]
    for words, message in refusals:
        code, _, said = called("data", *words)
        assert (code, message in said) == (2, True)


def test_ingest_says_where_a_missing_file_is_to_be_had(tmp_path):
    files = ("--json", tmp_path / "dataset_coco.json", "--images", ".", "--out", tmp_path / "o")
    code, _, said = called("ingest", "karpathy", *files)
    assert code == 2
    assert "no such file" in said
    assert "polypool data coco says where it can be had" in said
    assert where_published(Path("mine.json")) == ""
    assert "data coco vqa2 says" in where_published(Path("x/train2014"))


def test_what_is_missing_crosses_processes(tmp_path):
    for look in (existing, existing_folder):
        with pytest.raises(MissingError) as caught:
            look(tmp_path / "no", what="something")
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, InputError)
        assert (str(again), again.path) == (str(caught.value), tmp_path / "no")
