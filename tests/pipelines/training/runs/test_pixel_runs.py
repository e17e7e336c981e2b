"""A run from image files: training with an initially frozen encoder, reload, evaluation."""

import json
from dataclasses import replace

import pytest
import torch
from corpora import make_corpus
from pictures import noise
from safetensors.torch import load_file
from tiny_models import save_vit
from toy import trainer_of

from polypool.infra.registry import TASKS
from polypool.pipelines.training.checkpoint import load_weights
from polypool.tasks.datasets.corpus import Corpus


def test_patch_encoder_trains_and_reloads_without_hub(tmp_path):
    run = make_corpus(tmp_path, images=tmp_path / "images", train=16, val=4, test=6)
    corpus = Corpus.open(tmp_path / "corpus")
    for split in corpus.splits:
        for item in corpus.items(split):
            noise(seed=int(item.id)).save(corpus.image_path(item))
    part, name = "visual.encoder.vit", save_vit(tmp_path / "vit")
    optim = replace(run.optim, epochs=1, freeze=((part, 0.5),), lr_factors=((part, 0.1),), lr=1e-2)
    data = replace(run.data, features="", visual_augment="grid_drop(p=0.2)")
    run = replace(run, visual=f"patches(name={name!r}, width=16, size=32)", data=data, optim=optim)
    loop = trainer_of(run, tmp_path / "log")
    before = {key: x.clone() for key, x in loop.model.state_dict().items() if ".vit." in key}
    loop.train()
    published = load_file(tmp_path / "vit" / "model.safetensors")
    patches = "embeddings.patch_embeddings.projection.weight"
    assert torch.equal(before[f"{part}.{patches}"], published[patches])
    now = loop.model.state_dict()
    assert all(not torch.equal(now[key], x) for key, x in before.items() if "key.bias" not in key)

    for path in (tmp_path / "vit").iterdir():
        path.unlink()
    assets = json.loads((tmp_path / "log" / "model" / "assets.json").read_text())
    again = TASKS.build(run.task, run, assets=assets)
    model = again.model(pretrained=False)
    load_weights(model, tmp_path / "log" / "model" / "model.safetensors")
    found = again.evaluate(model, "test", "whole")
    assert found.metrics["rsum"] == pytest.approx(loop.log.rows[-1][1]["whole/rsum"])
