"""Zero-shot runs of pretrained pairs: their scores, and their comparison with trained runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from searchable import with_texts
from tiny_models import save_clip, save_siglip

from polypool.infra.registry import BACKBONES, ENCODERS, TASKS, Spec
from polypool.infra.store import StoreWriter
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models.trained import load
from polypool.pipelines.training.train import start
from polypool.tasks.datasets.corpus import Item, write_corpus
from polypool.tasks.run import Data, Optim, Run

KINDS = ("clip", "siglip")
WORDS = ("dog", "cat", "car", "tree", "boat", "bird")


@pytest.fixture(scope="module")
def pairs(home) -> dict[str, Run]:
    """An untrained run of each kind, on clips of one to four frames."""
    rng = np.random.default_rng(0)
    items = []
    for i, split in enumerate(["train"] * 8 + ["val"] * 6 + ["test"] * 12):
        captions = (f"a {WORDS[i % 6]} and the {WORDS[i % 5]}", f"one {WORDS[i % 6]}")
        items.append(Item(id=str(i), split=split, captions=captions))
    write_corpus(home / "corpus", items, source={"made": "by a test"})
    made = {}
    for kind, save in (("clip", save_clip), ("siglip", save_siglip)):
        name = save(home / kind)
        backbone = BACKBONES.build(f"{kind}(name={name!r}, pooled=True)")
        with StoreWriter(home / f"{kind}-features", dim=backbone.dim, dtype="float32", source={}) as writer:
            for item in items:
                writer.add(item.id, rng.normal(size=(rng.integers(1, 5), backbone.dim)).astype(np.float32))
            writer.close(statistics_of=[item.id for item in items[:8]])
        data = Data(dataset="clips", corpus="corpus", features=f"{kind}-features", captions=2)
        optim = Optim(epochs=0, batch=4, schedule="cosine")
        parts = {"visual": "stored(unit=True)", "text": f"{kind}_text(name={name!r}, pooled=True)"}
        run = Run(recipe="pair", task="video_text", data=data, **parts, protocol="whole", optim=optim)
        run = replace(run, aggregator="mean", objective="infonce", experiment=f"of {kind}")
        made[kind] = replace(run, cpus=1, retries=0)
    return made


def expected_scores(kind: str, run_id: str) -> np.ndarray:
    """Return cosines of mean unit frames and texts, by the full transformers model."""
    from transformers import AutoModel

    trained = load(run_id)
    adapter, data = trained.adapter, trained.adapter.data("test")
    model = AutoModel.from_pretrained(trained.model.text.encoder.name).eval()
    words, rows = ENCODERS.get(f"{kind}_text").tokenizer(adapter.assets["text"]), []
    for text in data.texts:
        ids = [number for word in next(iter(words.encode([text]))) for number in word]
        ids = [0, *ids, 1] if kind == "clip" else [*ids, *[1] * (64 - len(ids))]
        with torch.no_grad():
            features = model.get_text_features(input_ids=torch.tensor([ids]))
        rows.append(getattr(features, "pooler_output", features)[0].numpy())
    sets = [adapter.store[row] for row in adapter.store.rows([*data.item_ids])]
    means = [(x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)).mean(axis=0) for x_ND in sets]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (np.stack(means), np.stack(rows))]
    return unit[0] @ unit[1].T


@pytest.mark.parametrize("kind", KINDS)
def test_zero_shot_scores_match_transformers_model(home, pairs, kind):
    run = pairs[kind]
    run_id = start(run)
    trained = load(run_id)
    found_VT = trained.adapter.scorer(trained.model, "test")(slice(None), slice(None)).numpy()
    expected_VT = expected_scores(kind, run_id)
    np.testing.assert_allclose(found_VT, expected_VT, atol=1e-5)
    assert expected_VT.std() > 0.05
    logged = trained.tracker.metrics()
    name = Spec.parse(run.text).params["name"]
    spec = f"{kind}_text(name={name!r}, pooled=True)"
    stored = with_texts(run, home / f"{kind}-texts", spec, dtype="float32")
    stored = replace(stored, text="stored", data=replace(stored.data, text_augment=""))
    adapter = TASKS.build(stored.task, stored)
    of_stored_VT = adapter.scorer(adapter.model(), "test")(slice(None), slice(None)).numpy()
    np.testing.assert_allclose(of_stored_VT, expected_VT, atol=1e-5)
    best_T = found_VT.argmax(axis=0)
    assert logged["whole/t2v/R1"] == pytest.approx(100 * np.mean(best_T == np.repeat(np.arange(12), 2)))


def test_comparison_labels_zero_shot_and_trained_rows(home, pairs):
    run = replace(pairs["clip"], experiment="beside")
    start(run)
    start(replace(run, optim=replace(run.optim, epochs=1, lr=1e-3)))
    compared = compare(tracking_uri(home), run.experiment)
    (group,) = (group for group in compared.groups if group.protocol == "whole")
    labels = {row.label for row in group.rows}
    assert any("zero-shot" in label for label in labels)
    assert any("optim.epochs=1" in label for label in labels)
