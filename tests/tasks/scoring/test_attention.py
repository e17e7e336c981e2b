from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from pictures import noise

from polypool.aggregators.aggregator import Context
from polypool.infra.registry import TASKS
from polypool.tasks.inputs.pairs import Pairs
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.scoring.attention_maps import attended, caption_pairs, nearest_captions

SLOTS = "slots(k=3, iterations=1, heads=2, head_width=4)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A retrieval run with pictures, and a question-answering run."""
    folder = tmp_path_factory.mktemp("attention")
    runs = make_corpus(folder / "pairs", images=folder / "images"), make_questions(folder / "asked")
    for number in range(84):
        noise(40, 60, seed=number).save(folder / "images" / f"{number}.png")
    return runs


def built(run, **changes):
    torch.manual_seed(0)
    adapter = TASKS.build(run.task, replace(run, **changes))
    return adapter, adapter.model(pretrained=False)


def test_attention_matches_single_pairs_and_keeps_model_state(tiny):
    adapter, model = built(
        tiny[0], aggregator=SLOTS, text_aggregator="attention", similarity="smooth_chamfer"
    )
    model.train()
    model.visual.encoder.norm.eval()
    pairs = adapter.data("test")
    found = attended(model, caption_pairs(pairs, count=5))
    assert model.training
    assert not model.visual.encoder.norm.training
    assert not model.visual.aggregator._forward_hooks
    model.eval()
    assert len({it.item for it in found}) == 5
    for it in found:
        assert pairs.owner_T[it.text] == it.item
        visual, mask = pairs.visual.batch(np.array([it.item]), sample_B=np.array([0]), draw=None)
        text = pairs.captions.batch(np.array([it.text]))
        with torch.no_grad():
            weight_KN = model.visual.aggregator(*model.visual.encoder(visual, mask)).weights[0]
            weight_L = model.text.aggregator(*model.text.encoder(text["text"], text["text_mask"])).weights[0]
        np.testing.assert_allclose(it.weights["visual"], weight_KN, rtol=1e-5)
        np.testing.assert_allclose(it.weights["text"], weight_L[None], rtol=1e-5)
    again = attended(model, caption_pairs(pairs, count=5))
    assert [it.text for it in again] == [it.text for it in found]


def test_channel_weights_are_averaged_and_context_is_used(tiny):
    parts = {"aggregator": "score_attention(k=2, heads=2)", "text_aggregator": "softpool"}
    adapter, model = built(tiny[0], **parts, similarity="smooth_chamfer")
    model.eval()
    for it in attended(model, caption_pairs(adapter.data("test"), count=3)):
        batch = it.batch
        with torch.no_grad():
            visual, text = model.encode_visual(batch), model.encode_text(batch)
            weight_KN = model.visual.aggregator(*visual, context=Context(*text)).weights[0]
            weight_L = model.text.aggregator(*text).weights[0].mean(dim=1)
        assert weight_KN.shape[0] == 2
        np.testing.assert_allclose(it.weights["visual"], weight_KN, rtol=1e-5)
        np.testing.assert_allclose(it.weights["text"], weight_L[None], rtol=1e-5)


def test_evaluation_returns_lazy_attention_records(tiny):
    adapter, model = built(tiny[0], aggregator=SLOTS, similarity="smooth_chamfer")
    record = adapter.evaluate(model, "test", "whole").pictures[-1]()
    pairs, files = adapter.data("test"), {it.path for it in adapter.corpus.items("test")}
    assert (record.split, record.modality, record.text_kind) == ("test", "image", "captions")
    assert (record.texts, len(record.examples)) == (len(pairs.texts), 12)
    for example in record.examples:
        item = pairs.item_ids.tolist().index(example.item.id)
        assert example.text in np.array(pairs.texts)[pairs.owner_T == item]
        assert example.item.file.name in files
        assert example.visual.shape[0] == len(example.nearest) == 3
        assert example.subwords[0] == "<start>"
    adapter, model = built(tiny[1], aggregator="attention")
    record = adapter.evaluate(model, "test", "vqa").pictures[-1]()
    questions = {(it.question, it.image_id) for it in adapter.corpus.questions("test")}
    assert record.text_kind == "questions"
    assert {(it.text, it.item.id) for it in record.examples} <= questions
    assert all(it.nearest == () and it.item.file is None for it in record.examples)


def test_nearest_caption_is_found_for_every_vector(monkeypatch):
    monkeypatch.setattr("polypool.tasks.scoring.attention_maps._CAPTIONS", 4)
    generator = torch.Generator().manual_seed(0)
    visual = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    texts = [[f"{item} {n}" for n in range(count)] for item, count in enumerate((4, 3, 4))]
    pairs = Pairs("abc", texts, visual=None, captions=None)
    for shape in ((11, 6), (11, 2, 6)):
        text = torch.randn(shape, generator=generator, dtype=torch.float64)
        embeddings = SplitEmbeddings(visual=visual, text=text, similarity=None)
        for item in range(3):
            found = nearest_captions(embeddings, pairs, item)
            for embedding_D, near in zip(visual[item], found, strict=True):
                cosines = [
                    max(float(t @ embedding_D / t.norm() / embedding_D.norm()) for t in of_one.reshape(-1, 6))
                    for of_one in text
                ]
                assert near.text == pairs.texts[int(np.argmax(cosines))]
                assert near.own == near.text.startswith(f"{item} ")
                assert near.cosine == pytest.approx(max(cosines), abs=1e-6)
