"""New texts for models trained on stored text features, encoded by the backbone that the store names."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from searchable import untrained, with_pictures, with_texts
from tiny_models import save_bert
from untrained_runs import track_untrained

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.models.exporting import export
from polypool.pipelines.models.search import Query
from polypool.pipelines.models.trained import load
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A folder with a tiny BERT, of whose path stores record only the last part."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    save_bert(folder / "tiny-bert")
    return folder


@pytest.fixture(autouse=True)
def here(new_home, monkeypatch, model_folder) -> Path:
    """A new home; the current folder contains the backbone."""
    monkeypatch.chdir(model_folder)
    return new_home


def made(folder: Path, model_folder: Path, *, questions: bool = False) -> Run:
    run = with_pictures(folder, questions=questions, train=8, val=4, test=6)
    return with_texts(run, folder / "texts", f"bert(name={str(model_folder / 'tiny-bert')!r})")


@pytest.fixture(scope="module")
def run(tmp_path_factory, model_folder) -> Run:
    return made(tmp_path_factory.mktemp("pictures"), model_folder)


def sets(adapter, ids) -> list[np.ndarray]:
    return [np.array(adapter.store[row], np.float32) for row in adapter.store.rows(ids)]


def test_exported_model_encodes_texts_like_its_store(here, model_folder):
    run, expected = made(here, model_folder), {}
    for aggregator in ("mean", "slots(k=2, heads=2, head_width=8)", "score_attention(heads=2)"):
        of_store = untrained(replace(run, aggregator=aggregator))
        pairs = of_store.adapter.data("test")
        expected_VT = of_store.adapter.scorer(of_store.model, "test")(slice(0, 6), slice(0, 12))
        assert expected_VT.std() > 1e-4
        out = here / f"model{len(expected)}"
        export(track_untrained(of_store.run), out)
        expected[out] = expected_VT
        hits = load(out).search(pairs.texts[3], k=6)
        best = expected_VT[:, 3].sort(descending=True).values
        np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-3)
    visuals = sets(of_store.adapter, pairs.item_ids.tolist())
    for folder in ("corpus", "cells", "texts"):
        shutil.rmtree(here / folder)
    for out, expected_VT in expected.items():
        model = load(out)
        torch.testing.assert_close(model.scores(visuals, pairs.texts).cpu(), expected_VT, atol=1e-3, rtol=0)
        alone = model.scores(visuals, ["a dog that nobody described"])
        both = model.scores(visuals, ["a", "a dog that nobody described"])
        torch.testing.assert_close(both[:, 1:], alone, atol=1e-3, rtol=0)
    assert "first encoded by `bert(name='tiny-bert')`" in (out / "README.md").read_text()


def test_new_questions_are_encoded_and_answered(here, model_folder):
    model = untrained(made(here, model_folder, questions=True))
    expected_QA = model.adapter.scorer(model.model, "test")(slice(0, 4), slice(None))
    questions = model.adapter.texts("test")[:4]
    ids = [question.image_id for question in model.adapter.corpus.questions("test")[:4]]
    answers = model.answers(sets(model.adapter, ids), questions)
    np.testing.assert_allclose([p for _, p in answers], expected_QA.max(dim=1).values, atol=1e-3)
    found = model.open_search().find(Query(id=ids[0], text=questions[0]), 3)
    assert found[0][1] == pytest.approx(answers[0][1], abs=1e-3)
    assert len(model.open_search().find(Query(id=ids[0], text="is this new?"), 3)) == 3


def test_backbone_with_changed_weights_is_refused(here, run, model_folder, monkeypatch):
    model = untrained(run)
    shutil.copytree(model_folder / "tiny-bert", here / "tiny-bert")
    path = here / "tiny-bert" / "model.safetensors"
    weights = load_file(path)
    weights["embeddings.word_embeddings.weight"] += 1
    save_file(weights, path, metadata={"format": "pt"})
    monkeypatch.chdir(here)
    with pytest.raises(InputError, match=r"its backbone cannot be built as it was \(sha256 '[^)]*'\)"):
        model.encode_text(["a dog"])


def test_store_without_extractor_refuses_new_texts(run):
    trained = untrained(run)
    assets = trained.adapter.assets
    told = TASKS.build(run.task, run, assets=assets | {"texts": assets["texts"] | {"extractor": None}})
    with pytest.raises(InputError, match=r"do not come from `polypool extract --texts`"):
        told.text_inputs(["a dog"])
    with pytest.raises(InputError, match=r"the text 'dog dog .*' cannot be read: 82 tokens"):
        trained.encode_text(["a", "dog " * 80])
