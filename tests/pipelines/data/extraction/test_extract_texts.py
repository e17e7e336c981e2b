from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from fake_extractor import in_this_process
from tiny_models import save_bert, save_clip, save_siglip
from verbs import exit_code, reasons

from polypool.encoders.backbones.model_folders import remembered_model
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES, ENCODERS
from polypool.infra.store import FeatureStore
from polypool.infra.store.feature_store import text_id
from polypool.pipelines.commands import extract as verb
from polypool.tasks.datasets.corpus import Item, Tolerance, open_corpus, write_corpus
from polypool.tasks.inputs.texts import Captions
from polypool.tasks.run import Run


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, new_home: Path) -> list[str]:
    return in_this_process(monkeypatch)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture
def corpus(tmp_path: Path) -> Run:
    return make_corpus(tmp_path, train=24, val=6, test=8)


def states(name: str, texts: list[str]) -> list[np.ndarray]:
    """Return the last hidden states of each unpadded text, by transformers' tokenizer and model."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy() for text in texts]


def test_each_distinct_text_stores_its_token_states(tmp_path, bert):
    run = make_questions(tmp_path, train=24, val=6, test=8)
    what = {"corpus": Path(run.data.corpus), "backbone": f"bert(name={bert!r})", "texts": True}
    verb.extract(**what, out=tmp_path / "texts", dtype="float32", batch=5)
    store, opened = FeatureStore.open(tmp_path / "texts"), open_corpus(run.data.corpus)
    by_split = {split: [q.question for q in opened.questions(split)] for split in opened.splits}
    distinct = list(dict.fromkeys(text for texts in by_split.values() for text in texts))
    assert 10 < len(distinct) < sum(map(len, by_split.values()))
    assert store.ids.to_pylist() == [text_id(text) for text in distinct]
    for row, expected_LD in enumerate(states(bert, distinct)):
        np.testing.assert_allclose(store[row], expected_LD, atol=1e-5)
    train = np.concatenate(
        [store[int(row)] for row in store.rows([*{text_id(t) for t in by_split["train"]}])]
    )
    np.testing.assert_allclose(store.manifest.statistics["mean"], train.mean(0), atol=1e-5)
    extractor = store.manifest.source["extractor"]
    assert extractor["name"] == "tiny-bert"
    assert remembered_model(extractor) == Path(bert)


def test_bfloat16_states_are_close_and_recorded(bert):
    texts = ["a dog and the house", "the dog"]
    half = BACKBONES.build(f"bert(name={bert!r}, bfloat16=True)")
    assert half.describe()["bfloat16"] is True
    for found_LD, expected_LD in zip(half(texts), states(bert, texts), strict=True):
        assert 0 < np.abs(found_LD - expected_LD).max() < 0.05


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_clip_and_siglip_text_features_match_encoders(kind, tmp_path):
    name = {"clip": save_clip, "siglip": save_siglip}[kind](tmp_path / kind)
    texts = ["a dog and the house", "the dog", "!"]
    encoder_kind = ENCODERS.get(f"{kind}_text")
    for pooled in (False, True):
        more = ", pooled=True" if pooled else ""
        backbone = BACKBONES.build(f"{kind}_text(name={name!r}{more})")
        assert backbone.describe().get("pooled", False) == pooled
        assets = encoder_kind.prepare((), name=name)
        encoder = encoder_kind(assets, name=name, pooled=pooled).eval()
        encoder.load_pretrained()
        batch = Captions(texts, encoder_kind.tokenizer(assets)).batch(np.arange(3))
        with torch.no_grad():
            x_BND, mask_BN = encoder(batch["text"], batch["text_mask"])
        for row, found_ND in enumerate(backbone(texts)):
            assert found_ND.shape == (int(mask_BN[row].sum()), backbone.dim)
            with torch.no_grad():
                made_ND = torch.from_numpy(found_ND)
                made_ND = made_ND if pooled else encoder.fc(made_ND)
            torch.testing.assert_close(made_ND, x_BND[row][mask_BN[row]], atol=1e-5, rtol=0)


def test_too_long_text_is_skipped_with_reason(corpus, bert, tmp_path):
    backbone = BACKBONES.build(f"bert(name={bert!r})")
    fits, longer, short = backbone(["dog " * 62, "dog " * 63, "a"])
    assert (fits.shape, longer, short.shape) == ((64, 8), "65 tokens, and the model reads 64", (3, 8))
    assert backbone(["dog " * 63]) == [longer]
    items = [
        Item(id=split, split=split, captions=("a dog", "dog " * 100 + split)) for split in ("train", "test")
    ]
    write_corpus(tmp_path / "long", items, source={})
    where = tmp_path / "store"
    what = {"corpus": tmp_path / "long", "out": where, "backbone": f"bert(name={bert!r})", "texts": True}
    with pytest.raises(InputError, match="2 x 103 tokens, and the model reads 64"):
        verb.extract(**what)
    verb.extract(**what, tolerance=Tolerance(allow_skipped=True))
    assert [why for _, why in reasons(where)] == ["103 tokens, and the model reads 64"] * 2
    assert FeatureStore.open(where).ids.to_pylist() == [text_id("a dog")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "--backbone", "cells"], "'cells' reads images, not texts: leave out --texts"),
        (["--video", "--texts", "--backbone", "bert(name={bert})"], "--video and --texts make two stores"),
        (["--backbone", "bert(name={bert})"], "reads texts, not images: add --texts"),
    ],
)
def test_wrong_modality_exits_2_with_message(corpus, bert, tmp_path, capsys, arguments, message):
    words = [word.format(bert=repr(bert)) for word in arguments]
    assert exit_code(verb.main, "--corpus", corpus.data.corpus, "--out", tmp_path / "store", *words) == 2
    assert message in capsys.readouterr().err
