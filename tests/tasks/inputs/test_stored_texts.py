"""Texts that a frozen encoder described once: what is learnt of them, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from searchable import with_texts
from tiny_models import save_bert
from toy import trainer_of

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.store import FeatureStore
from polypool.pipelines.recipes import derive
from polypool.tasks.run import Run

TASKS_OF = {"image_text": make_corpus, "video_text": make_corpus, "vqa": make_questions}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


def made(task: str, folder: Path) -> Run:
    run = TASKS_OF[task](folder, train=24, val=6, test=8)
    return replace(run, task="video_text", protocol="distinct") if task == "video_text" else run


@pytest.mark.parametrize("task", TASKS_OF)
def test_stored_texts_are_what_a_frozen_bert_makes(task, tmp_path, bert):
    run = made(task, tmp_path)
    run = derive(run, data={"max_words": 0, "text_augment": ""}, text=f"bert(name={bert!r}, width=16)")
    stored = with_texts(run, tmp_path / "texts", f"bert(name={bert!r})", dtype="float32")
    stored = derive(stored, data={"text_augment": ""})
    in_loop, by_store = (TASKS.build(each.task, each) for each in (run, stored))
    torch.manual_seed(0)
    models = in_loop.model(), by_store.model()
    kept = {
        key: value
        for key, value in models[0].state_dict().items()
        if not key.startswith("text.encoder.bert.")
    }
    models[1].load_state_dict(kept)  # the same names, all of them
    scores = [
        adapter.scorer(model, "test")(slice(0, None), slice(0, None))
        for adapter, model in zip((in_loop, by_store), models, strict=True)
    ]
    assert scores[0].std() > 1e-3
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=0)
    if task != "vqa":
        texts = [
            adapter.scorer(model, "test").text
            for adapter, model in zip((in_loop, by_store), models, strict=True)
        ]
        torch.testing.assert_close(texts[0], texts[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("task", TASKS_OF)
def test_a_run_on_stored_texts_learns_and_is_evaluated(task, tmp_path, bert):
    run = with_texts(made(task, tmp_path), tmp_path / "texts", f"bert(name={bert!r})")
    run = replace(run, text="stored_text(width=16, standardise=True)", figures=True)
    run = derive(run, text_aggregator="lip", optim={"epochs": 2, "batch": 12})
    trainer = trainer_of(run, tmp_path)
    trainer.train()
    losses = [row["train/loss"] for _, row in trainer.log.rows if "train/loss" in row]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    page = (tmp_path / "figures" / "test_attention.html").read_text()
    assert ">[CLS]<" in page
    assert ">dog<" in page
    assert trainer.adapter.describe()["texts"] == FeatureStore.open(run.data.texts).digest


def test_elements_are_dropped_by_sample_alike_on_any_worker(tmp_path, bert):
    run = with_texts(made("image_text", tmp_path), tmp_path / "texts", f"bert(name={bert!r})")
    adapter = TASKS.build(run.task, run)
    told = TASKS.build(run.task, run, assets=json.loads(json.dumps(adapter.assets)))
    data, whole = told.data("train"), adapter.data("train").captions.batch(np.arange(24))
    batch = adapter.data("train").batch(np.arange(24), seed=1, epoch=2)
    part = data.batch(np.arange(7, 9), seed=1, epoch=2)
    kept_B = batch["text_mask"].sum(dim=1)
    assert 0.6 < kept_B.sum() / whole["text_mask"].sum() < 0.95
    assert (kept_B >= 1).all()
    for row in range(24):
        kept_ND = batch["text"][row][batch["text_mask"][row]].tolist()
        own = whole["text"][row][whole["text_mask"][row]].tolist()
        assert [x for x in own if x in kept_ND] == kept_ND, "of its own elements, in order"
    assert part["text"][0][part["text_mask"][0]].equal(batch["text"][7][batch["text_mask"][7]])
    other = data.batch(np.arange(24), seed=1, epoch=3)["text_mask"].sum(dim=1)
    assert not other.equal(kept_B)


def test_texts_that_are_not_in_the_store_are_counted_and_named(tmp_path, bert):
    run = with_texts(made("image_text", tmp_path), tmp_path / "texts", f"bert(name={bert!r})")
    other = make_questions(tmp_path / "other", train=24, val=6, test=8)
    other = derive(other, data={"texts": run.data.texts, "max_words": 0}, text=run.text)
    with pytest.raises(InputError) as caught:
        TASKS.build(other.task, other)
    message = str(caught.value)
    assert message.startswith(
        f"{run.data.texts}: 72 of 72 texts have no features, such as 'What is beside the "
    )
    command = f"polypool extract --texts --corpus {other.data.corpus} --backbone \"bert(name='tiny-bert')\""
    assert command in message


CHANGES = [
    ({"data": {"text_augment": "mask_replace_delete(p=0.2)"}}, "does not change stored features"),
    (
        {"data": {"text_augment": "delete"}},
        "does not change stored features, which the text encoder 'stored_text'",
    ),
    (
        {"text": "bigru(width=16)"},
        "'drop(p=0.2)' does not change words, which the text encoder 'bigru' reads",
    ),
    ({"data": {"max_words": 5}}, "--data.max-words 5 cuts words, and"),
    ({"data": {"texts": ""}}, "'stored_text' reads stored features of texts; name a store by --data.texts"),
    ({"model": "hgr", "aggregator": "attention"}, "the model 'hgr' reads the words of captions"),
    ({"data": {"texts": "nowhere"}}, "nowhere"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_settings_that_do_not_fit_are_refused_before_training(change, message, tmp_path, bert):
    run = with_texts(made("image_text", tmp_path), tmp_path / "texts", f"bert(name={bert!r})")
    with pytest.raises(InputError) as caught:
        TASKS.build(run.task, derive(run, **change))
    assert message in str(caught.value)
