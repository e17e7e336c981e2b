"""Inputs of a corpus: items, and texts stored as features."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from PIL import Image
from searchable import with_texts
from tiny_models import save_bert
from toy import trainer_of

from polypool.encoders.backbones import recorded_spec
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES, TASKS
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.grouping import notes_on
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.train import prepare
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.inputs.corpus_inputs import present
from polypool.tasks.run import Run

MAKERS = {"image_text": make_corpus, "vqa": make_questions}


def without(run: Run, folder: Path, *lacking: str, plus: float = 0.0, **source: Any) -> Run:
    """Return a run on a store without some sets, with another source and `plus` added to all values."""
    store = FeatureStore.open(run.data.features)
    with StoreWriter(
        folder, dim=store.dim, dtype="float32", source=source or {"made": "by a test"}
    ) as writer:
        for row, id in enumerate(store.ids.to_pylist()):
            if id not in lacking:
                writer.add(id, np.array(store[row]) + np.float32(plus))
        writer.close(statistics_of=["1", "2"])
    return replace(run, data=replace(run.data, features=str(folder)))


RESNET = {"backbone": "resnet", "name": "microsoft/resnet-152", "size": 224}


@pytest.mark.parametrize(
    ("wanted", "source", "other"),
    [
        ("resnet(name='microsoft/resnet-152', size=224)", {"extractor": RESNET | {"sha256": "a"}}, ""),
        ("resnet(name='microsoft/resnet-152')", {"extractor": RESNET | {"name": "resnet-152"}}, ""),
        ("butd", {"reader": "butd"}, ""),
        ("", {"extractor": RESNET}, ""),
        (
            "resnet(name='microsoft/resnet-152', size=224)",
            {"extractor": RESNET | {"size": None}},
            "backbone resnet, name microsoft/resnet-152, size None",
        ),
        ("butd", {"extractor": RESNET}, "backbone resnet"),
    ],
)
def test_extractor_mismatch_warns_and_is_tagged(wanted, source, other, tmp_path, capsys):
    run = without(make_corpus(tmp_path), tmp_path / "store", **source)
    described = prepare(replace(run, data=replace(run.data, extractor=wanted))).describe()
    assert described.get("other_extractor", "") == other
    said = capsys.readouterr().err
    assert (f"features of {other}, where the recipe has {wanted}: the scores do not" in said) == bool(other)


def test_stores_of_same_extraction_share_an_origin(tmp_path):
    run = make_corpus(tmp_path)

    def described(name: str, **given: Any) -> tuple[str, str | None]:
        tags = prepare(without(run, tmp_path / name, **given)).describe()
        return tags["features"], tags.get("features_origin")

    extractor = {"backbone": "cells", "grid": 3}
    (here, origin), (there, same) = (described(f"{n}", plus=n * 1e-6, extractor=extractor) for n in range(2))
    assert here != there
    assert origin == same is not None
    assert described("other", extractor=extractor | {"grid": 4})[1] not in (origin, None)
    assert described("own") == (here, None)
    first = FeatureStore.open(run.data.features).ids.to_pylist()[0]
    fewer = without(run, tmp_path / "fewer", first, extractor=extractor)
    assert FeatureStore.open(fewer.data.features).origin not in (origin, ""), "origin must depend on the sets"


@pytest.mark.parametrize("task", MAKERS)
def test_missing_features_are_refused_or_skipped(task, tmp_path):
    whole = MAKERS[task](tmp_path)
    full = TASKS.build(whole.task, whole)
    of_split = {split: [item.id for item in full.corpus.items(split)] for split in ("train", "val", "test")}
    lacking = [of_split["train"][0], of_split["train"][5], of_split["test"][3]]
    run = without(whole, tmp_path / "fewer", *lacking)
    with pytest.raises(
        InputError, match=f"2 of {len(of_split['train'])} images of the split 'train' .*missing skip"
    ):
        prepare(run)
    adapter = prepare(replace(run, data=replace(run.data, missing="skip")))
    for split, ids in of_split.items():
        assert [item.id for item in adapter.corpus.items(split)] == [id for id in ids if id not in lacking]
    counts = {split: full.corpus.splits[split] - adapter.corpus.splits[split] for split in of_split}
    assert adapter.left_out == {split: count for split, count in counts.items() if count}
    assert adapter.left_out.keys() == {"train", "test"}
    assert adapter.corpus.digest == full.corpus.digest
    described = adapter.describe()
    assert described["left_out_test"] == str(counts["test"])
    assert "left_out_val" not in described
    assert not [name for name in full.describe() if "left_out" in name]
    kept = adapter.data("train")
    share = adapter.corpus.splits["train"] / full.corpus.splits["train"]
    assert len(kept) == len(full.data("train")) * share
    adapter.evaluate(adapter.model(), "test", run.protocol)


def test_images_without_files_are_skipped(tmp_path):
    (tmp_path / "pictures").mkdir()
    run = make_corpus(tmp_path, images=tmp_path / "pictures")
    corpus = Corpus.open(run.data.corpus)
    for number in range(60):
        Image.new("L", (2, 2)).save(tmp_path / "pictures" / f"{number}.png")
    kept = present(corpus, None)
    assert [item.id for split in kept.splits for item in kept.items(split)] == [str(n) for n in range(60)]
    assert corpus.splits["val"] - kept.splits["val"] == 4
    assert "test" not in kept.splits
    with pytest.raises(InputError, match="no items in the split 'test'"):
        kept.items("test")


def test_tables_note_incomplete_runs():
    def record(**tags: str) -> RunRecord:
        tags = {f"data.{name}": value for name, value in tags.items()}
        return RunRecord(
            run_id="a", name="", status="FINISHED", started=0, ended=0, tags=tags, params={}, metrics={}
        )

    lacking = record(left_out_test="3", left_out_train="1")
    runs = [record(images_test="20"), lacking, record(left_out_test="3")]
    assert [*notes_on("t", runs[:1])] == []
    assert [*notes_on("t", [*runs, lacking])] == [
        "t: INCOMPLETE: 2 of 4 runs skip items without features or file: test lacks 3, train lacks 1",
        "t: INCOMPLETE: 1 of 4 runs skip items without features or file: test lacks 3",
    ]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


def made(task: str, folder: Path) -> Run:
    return MAKERS[task](folder, train=24, val=6, test=8)


@pytest.fixture(scope="module")
def texts(tmp_path_factory, bert) -> Run:
    """A run on stored caption features."""
    folder = tmp_path_factory.mktemp("texts")
    return with_texts(made("image_text", folder), folder / "texts", f"bert(name={bert!r})")


@pytest.mark.parametrize("task", MAKERS)
def test_stored_texts_match_a_frozen_bert(task, tmp_path, bert):
    run = made(task, tmp_path)
    run = derive(run, data={"max_words": 0, "text_augment": ""}, text=f"bert(name={bert!r}, width=16)")
    stored = with_texts(run, tmp_path / "texts", f"bert(name={bert!r})", dtype="float32")
    stored = derive(stored, data={"text_augment": ""})
    in_loop, by_store = (TASKS.build(each.task, each) for each in (run, stored))
    torch.manual_seed(0)
    models = in_loop.model(), by_store.model()
    state = models[0].state_dict().items()
    kept = {key: value for key, value in state if not key.startswith("text.encoder.bert.")}
    models[1].load_state_dict(kept)  # parameter names must be identical
    scorers = [
        adapter.scorer(model, "test") for adapter, model in zip((in_loop, by_store), models, strict=True)
    ]
    scores = [scorer(slice(0, None), slice(0, None)) for scorer in scorers]
    assert scores[0].std() > 1e-3
    torch.testing.assert_close(*scores, atol=1e-5, rtol=0)
    if task != "vqa":
        torch.testing.assert_close(*(scorer.text for scorer in scorers), atol=1e-5, rtol=0)


def test_pooled_bert_returns_the_mean_state(bert):
    states, mean = (BACKBONES.build(f"bert(name={bert!r}, pooled={pooled})") for pooled in (False, True))
    texts = ["a dog", "two cats on a mat"]
    for x_ND, mean_1D in zip(states(texts), mean(texts), strict=True):
        np.testing.assert_allclose(mean_1D, x_ND.mean(axis=0, keepdims=True), rtol=1e-6)
    described = mean.describe()
    assert described == states.describe() | {"pooled": True}
    assert recorded_spec(described, where="extractor") == "bert(name='tiny-bert', pooled=True)"
    long = "a " * 2000
    assert "tokens" in mean([long])[0]


def test_run_on_stored_texts_trains_and_evaluates(tmp_path, texts):
    run = replace(texts, text="stored_text(width=16, standardise=True)", figures=True)
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


def test_text_element_drop_depends_on_sample_not_batch(texts):
    adapter = TASKS.build(texts.task, texts)
    told = TASKS.build(texts.task, texts, assets=json.loads(json.dumps(adapter.assets)))
    data, whole = told.data("train"), adapter.data("train").captions.batch(np.arange(24))
    batch = adapter.data("train").batch(np.arange(24), seed=1, epoch=2)
    part = data.batch(np.arange(7, 9), seed=1, epoch=2)
    kept_B = batch["text_mask"].sum(dim=1)
    assert 0.6 < kept_B.sum() / whole["text_mask"].sum() < 0.95
    assert (kept_B >= 1).all()
    for row in range(24):
        kept_ND = batch["text"][row][batch["text_mask"][row]].tolist()
        own = whole["text"][row][whole["text_mask"][row]].tolist()
        assert [x for x in own if x in kept_ND] == kept_ND, "kept elements must be the text's own, in order"
    assert part["text"][0][part["text_mask"][0]].equal(batch["text"][7][batch["text_mask"][7]])
    other = data.batch(np.arange(24), seed=1, epoch=3)["text_mask"].sum(dim=1)
    assert not other.equal(kept_B)


def test_missing_stored_texts_are_counted_and_named(tmp_path, texts):
    other = make_questions(tmp_path / "other", train=24, val=6, test=8)
    other = derive(other, data={"texts": texts.data.texts, "max_words": 0}, text=texts.text)
    with pytest.raises(InputError) as caught:
        TASKS.build(other.task, other)
    message = str(caught.value)
    assert message.startswith(
        f"{texts.data.texts}: 72 of 72 texts have no features, such as 'What is beside the "
    )
    command = f"polypool extract --texts --corpus {other.data.corpus} --backbone \"bert(name='tiny-bert')\""
    assert command in message


UNCHANGED = "does not change stored features"
CHANGES = [
    ({"data": {"text_augment": "mask_replace_delete(p=0.2)"}}, UNCHANGED),
    ({"data": {"text_augment": "delete"}}, f"{UNCHANGED}, which the text encoder 'stored_text'"),
    (
        {"text": "bigru(width=16)"},
        "'drop(p=0.2)' does not change words, which the text encoder 'bigru' reads",
    ),
    (
        {"data": {"visual_augment": "delete"}},
        "--data.visual-augment 'delete' changes words, and not images; choose one that does, such as 'drop(p=0.2)'",
    ),
    ({"data": {"max_words": 5}}, "--data.max-words 5 cuts words, and"),
    ({"data": {"texts": ""}}, "'stored_text' reads stored features of texts; name a store by --texts"),
    ({"model": "hgr", "aggregator": "attention"}, "the model 'hgr' reads the words of captions"),
    ({"data": {"texts": "nowhere"}}, "nowhere"),
]


def test_incompatible_settings_of_texts_and_augmentations_are_refused(texts):
    for change, message in CHANGES:
        with pytest.raises(InputError) as caught:
            TASKS.build(texts.task, derive(texts, **change))
        assert message in str(caught.value)
