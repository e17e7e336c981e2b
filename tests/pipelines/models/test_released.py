"""Released models: files made to the authors' shape become runs, and nothing in a file is ever run."""

import json
import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from corpora import NOUNS, make_corpus
from pictures import noise
from released_models import (
    DIM,
    WORDS,
    bert,
    bigru,
    bigru_code,
    grid,
    grid_code,
    pooled,
    region_code,
    regions,
    save,
)
from tiny_models import save_bert
from torch import Tensor
from verbs import ingested, refused

from polypool.encoders.visual import cnn
from polypool.infra.compute.device import device_of, on_device
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.released_parts import read_release
from polypool.pipelines.models.trained import TrainedModel, load_run


@pytest.fixture(scope="module", autouse=True)
def made(home):
    """A corpus of pictures in the home, and the words of a model."""
    make_corpus(home / "data", images=home / "images", dim=DIM, train=6, val=3, test=10)
    for number in range(19):
        noise(50, 40, seed=number).save(home / "images" / f"{number}.png")
    row = {word: number for number, word in enumerate(WORDS)}
    idx2word = {str(number): word for word, number in row.items()}
    vocab = {"word2idx": row, "idx2word": idx2word, "idx": len(WORDS)}
    (home / "vocab.json").write_text(json.dumps(vocab))


@pytest.fixture
def tiny_network(monkeypatch):
    tiny = {"depths": (1, 1, 1, 1), "base": 2}
    monkeypatch.setitem(cnn.NETWORKS, "resnet101_caffe", tiny | {"caffe": True})
    monkeypatch.setitem(cnn.NETWORKS, "resnet152", tiny)


def places(home: Path) -> list[object]:
    return ["--corpus", home / "data" / "corpus", "--features", home / "data" / "features"]


def vocab(home: Path) -> list[object]:
    return ["--vocab", home / "vocab.json"]


def converted(home: Path, path: Path, *more: object) -> TrainedModel:
    out = ingested("vse-infinity", path, *places(home), *more)
    assert "epoch 17" in out
    assert "412.5" in out
    return load_run(out.partition("\nnext:")[0].split()[-1])


def embeddings(trained: TrainedModel) -> tuple[Tensor, Tensor, object]:
    """The embeddings of the test split's images and captions, and the split."""
    pairs, device = trained.adapter.data("test"), device_of(trained.model)
    with torch.no_grad():
        image = trained.model.encode_visual(on_device(next(pairs.items(100))[1], device)).vectors
        order, batch = next(pairs.sentences(100))
        text = trained.model.encode_text(on_device(batch, device)).vectors
        return image.cpu(), text.cpu()[order.argsort()], pairs


@pytest.mark.parametrize(("old", "parallel"), [(False, True), (True, False)])
@torch.no_grad()
def test_regions_and_a_bigru(home, tmp_path, old, parallel):
    path = tmp_path / "model_best.pth"
    weights = save(path, regions(), bigru(), old=old, parallel=parallel)
    trained = converted(home, path, *vocab(home))
    run = trained.run
    assert (run.visual, run.text) == ("regions(width=16)", "bigru(width=16, embedding=8, split=treebank)")
    assert (run.aggregator, run.text_aggregator) == ("gpo(positions=4, hidden=6)", "")
    assert (run.data.dataset, run.protocol, run.optim.milestones) == ("coco", "coco-5k", (15,))
    ours_image, ours_text, pairs = embeddings(trained)
    store = trained.adapter.store
    for i, row in enumerate(store.rows(list(pairs.item_ids))):
        theirs = region_code(torch.from_numpy(store[row].copy()), weights)
        torch.testing.assert_close(ours_image[i], theirs, atol=1e-5, rtol=1e-5)
    assert any(NOUNS[-1] in text for text in pairs.texts)
    for ours, caption in zip(ours_text, pairs.texts, strict=True):
        torch.testing.assert_close(ours, bigru_code(caption, weights), atol=1e-5, rtol=1e-5)
    found = run_evaluation.evaluate([trained], protocols=["whole"], split="test")[0]
    assert 0 <= found.metrics["rsum"] <= 600
    tracker = Tracker.attach(tracking_uri(home), trained.tracker.run_id, running=False)
    assert tracker.metrics()["released/best_rsum"] == 412.5
    assert tracker.tag("kind") == "released"


@pytest.mark.parametrize(
    ("source", "network"),
    [("detector", "size=64"), ("imagenet_res152", "size=64, name=resnet152, layout=caffe")],
)
@torch.no_grad()
def test_a_grid_and_bert(home, tmp_path, tiny_network, source, network):
    folder = save_bert(tmp_path / "bert")
    path = tmp_path / "model_best.pth"
    text = bert(folder).eval()
    options = {"precomp_enc_type": "backbone", "input_scale_factor": 0.25, "backbone_source": source}
    weights = save(path, grid(), text, parallel=True, **options)
    assert "img_enc.backbone.resnet.fc.weight" in weights
    assert "txt_enc.bert.pooler.dense.weight" in weights
    trained = converted(home, path, "--bert", folder)
    assert trained.run.visual == f"cnn(width=16, {network})"
    assert trained.run.data.features == ""
    ours_image, ours_text, pairs = embeddings(trained)
    pixels_B3SS = next(pairs.items(100))[1]["visual"]
    assert pixels_B3SS.shape[1:] == (3, 64, 64)
    for ours, pixels_3SS in zip(ours_image, pixels_B3SS, strict=True):
        torch.testing.assert_close(ours, grid_code(pixels_3SS, weights), atol=1e-4, rtol=1e-4)
    order, batch = next(pairs.sentences(100))
    for number, token_L, mask_L in zip(order, batch["text"], batch["text_mask"], strict=True):
        states = text["bert"](input_ids=token_L[mask_L][None]).last_hidden_state[0]
        theirs = pooled(text["linear"](states), weights, "txt_enc.gpool")
        torch.testing.assert_close(ours_text[number], theirs, atol=1e-5, rtol=1e-5)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("old", [False, True])
def test_code_in_a_file_is_refused_and_not_run(home, tmp_path, old):
    path, marker = tmp_path / "model_best.pth", tmp_path / "ran"
    save(path, regions(), bigru(), old=old, bomb=Bomb(marker))
    said = ".mkdir, which is neither a tensor nor plain data"
    refused(said, "vse-infinity", path, *places(home), *vocab(home))
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file would have run code"


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_cut_short(home, tmp_path, old, share):
    path = tmp_path / "model_best.pth"
    save(path, regions(), bigru(), old=old)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    refused("fetch it again", "vse-infinity", path, *places(home))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"base": {}, "top": {}}, "found base, top"),
        ([1], "found list"),
        ({"model": [{}, {}]}, "found model"),
        (None, "model_best.pth: no such file"),
    ],
)
def test_files_that_are_something_else(home, tmp_path, held, said):
    path = tmp_path / "model_best.pth"
    if held:
        torch.save(held, path)
    refused(said, "vse-infinity", path, *places(home))


def change(path: Path, edit) -> None:
    """Rewrite a released file after `edit(image_state, text_state, opt)`."""
    with torch.serialization.safe_globals([Namespace]):
        held = torch.load(path, weights_only=True)
    edit(*held["model"], held["opt"])
    torch.save(held, path)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda image, text, opt: (image.pop("mlp.layers.1.bias"), image.update(extra=torch.ones(2))),
            "missing img_enc.mlp.layers.1.bias; unexpected img_enc.extra",
        ),
        (lambda image, text, opt: image.pop("fc.weight"), "missing img_enc.fc.weight"),
        (lambda image, text, opt: text.clear(), "missing txt_enc.linear.weight"),
        (
            lambda image, text, opt: image.update({"fc.bias": torch.ones(3)}),
            "other shapes visual.encoder.fc.bias",
        ),
        (lambda image, text, opt: vars(opt).update(no_txtnorm=True), "--no_txtnorm"),
        (
            lambda image, text, opt: image.update({"fc.weight": torch.ones(16, 12)}),
            "reads features of width 12, and those of",
        ),
    ],
)
def test_another_architecture(home, tmp_path, edit, said):
    path = tmp_path / "model_best.pth"
    save(path, regions(), bigru())
    change(path, edit)
    refused(said, "vse-infinity", path, *places(home), *vocab(home))


@pytest.mark.parametrize("said", ["'imagenet_res50'", "detector, imagenet_res152, imagenet_resnext, wsl"])
def test_an_unknown_backbone(home, tmp_path, tiny_network, said):
    path = tmp_path / "model_best.pth"
    save(path, grid(), bigru(), backbone_source="imagenet_res50")
    refused(said, "vse-infinity", path, *places(home), *vocab(home))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "give SCAN's coco_precomp_vocab.json"),
        ({"word2idx": {"<pad>": 0, "a": 1}}, "it lacks <start>, <end>, <unk>"),
        ({"word2idx": {word: i for i, word in enumerate(WORDS[:-1])}}, "has 16 words with <mask>, and"),
        ({"word2idx": {"a": 1}}, "expected `word2idx`"),
        ([], "expected `word2idx`"),
    ],
)
def test_the_wrong_vocabulary(home, tmp_path, content, said):
    path, vocab = tmp_path / "model_best.pth", tmp_path / "vocab.json"
    save(path, regions(), bigru())
    vocab.write_text(json.dumps(content))
    given = [] if content is None else ["--vocab", vocab]
    refused(said, "vse-infinity", path, *places(home), *given)


def test_what_is_read_is_all_that_was_written(tmp_path):
    weights = save(tmp_path / "model_best.pth", regions(), bigru(), learning_rate=2e-4)
    release = read_release(tmp_path / "model_best.pth")
    assert release.weights.keys() == weights.keys()
    assert all(torch.equal(release.weights[name], x) for name, x in weights.items())
    assert release.options["learning_rate"] == 2e-4
    assert (release.epoch, release.best_rsum) == (17, 412.5)
