"""Whole runs from image files: trained with a frozen first epoch, rebuilt from a checkpoint, scored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import NOUNS, make_corpus
from PIL import Image
from safetensors.torch import load_file
from tiny_models import save_vit
from toy import trainer_of

from polypool.encoders.visual.cnn import NETWORKS
from polypool.encoders.visual.resnet import ResNet
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.training.checkpoint import load_weights
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.adapter import Evaluation, TaskAdapter
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.run import Run

COLOURS = np.random.default_rng(5).integers(0, 256, (len(NOUNS), 3))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Run:
    """A corpus of pictures: the two nouns of a caption are colours, side by side."""
    folder = tmp_path_factory.mktemp("pictures")
    run = make_corpus(folder, images=folder / "images")
    corpus = Corpus.open(folder / "corpus")
    for split in corpus.splits:
        for item in corpus.items(split):
            words = item.captions[0].split()
            shown = COLOURS[[NOUNS.index(words[1]), NOUNS.index(words[4])]].astype(np.uint8)
            image = Image.fromarray(shown[None]).resize((50, 40), Image.Resampling.NEAREST)
            image.save(corpus.image_path(item))
    return run


def from_pixels(run: Run, visual: str, part: str, *, frozen: float, epochs: int) -> Run:
    optim = replace(run.optim, epochs=epochs, freeze=((part, frozen),), lr_factors=((part, 0.1),), lr=1e-2)
    data = replace(run.data, features="", visual_augment="grid_drop(p=0.2)")
    return replace(run, visual=visual, data=data, optim=optim, protocol="whole")


def trained(run: Run, folder: Path) -> Trainer:
    made = trainer_of(run, folder)
    made.before = {name: x.clone() for name, x in made.model.state_dict().items()}
    made.train()
    return made


def test_a_cnn_is_frozen_for_an_epoch_learns_and_needs_its_file_no_more(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", {"depths": (1, 1, 1, 1), "base": 8})
    torch.manual_seed(0)
    torch.save(ResNet(**NETWORKS["tiny"]).state_dict(), tmp_path / "net.pth")
    spec = f"cnn(name=tiny, width=16, size=64, weights={str(tmp_path / 'net.pth')!r})"
    part = "visual.encoder.cnn"
    still = trained(from_pixels(pictures, spec, part, frozen=1, epochs=1), tmp_path / "still")
    for name, x in still.model.state_dict().items():
        assert torch.equal(x, still.before[name]) == name.startswith(part), name

    run = from_pixels(pictures, spec, part, frozen=1, epochs=8)
    loop = trained(run, tmp_path / "log")
    now = loop.model.state_dict()
    assert not torch.equal(now[f"{part}.conv1.weight"], loop.before[f"{part}.conv1.weight"])
    assert torch.equal(now[f"{part}.bn1.running_var"], loop.before[f"{part}.bn1.running_var"])
    metrics = loop.log.rows[-2][1] | loop.log.rows[-1][1]
    assert metrics["whole/rsum"] > 1.5 * metrics["test/chance"]

    (tmp_path / "net.pth").unlink()
    again, found = rebuilt(run, tmp_path)
    assert found.metrics["rsum"] == pytest.approx(metrics["whole/rsum"])
    with pytest.raises(InputError, match="no weights at"):
        again.model()


def rebuilt(run: Run, folder: Path) -> tuple[TaskAdapter, Evaluation]:
    """Return the adapter of a logged run, made of its assets, and what its model of the logged weights scores."""
    assets = json.loads((folder / "log" / "model" / "assets.json").read_text())
    again = TASKS.build(run.task, run, assets=assets)
    with torch.device("meta"):
        again.model(pretrained=False)
    model = again.model(pretrained=False)
    load_weights(model, folder / "log" / "model" / "model.safetensors")
    return again, again.evaluate(model, "test", "whole")


def test_patches_train_and_are_rebuilt_without_the_hub(pictures, tmp_path):
    name = save_vit(tmp_path / "vit")
    run = from_pixels(
        pictures, f"patches(name={name!r}, width=16, size=32)", "visual.encoder.vit", frozen=0.5, epochs=1
    )
    loop = trained(run, tmp_path / "log")
    published = load_file(tmp_path / "vit" / "model.safetensors")
    before = {key: x for key, x in loop.before.items() if ".vit." in key}
    part = "embeddings.patch_embeddings.projection.weight"
    assert torch.equal(before[f"visual.encoder.vit.{part}"], published[part])
    assert all(
        not torch.equal(loop.model.state_dict()[key], x) for key, x in before.items() if "key.bias" not in key
    )

    for path in (tmp_path / "vit").iterdir():
        path.unlink()
    _, found = rebuilt(run, tmp_path)
    assert found.metrics["rsum"] == pytest.approx(loop.log.rows[-1][1]["whole/rsum"])
