"""Runs from video files, end to end: LoRA training, reload, search with a new clip."""

import json
from dataclasses import replace

import pytest
import torch
from clips import write_clip
from corpora import make_corpus
from PIL import Image
from tiny_models import save_vit
from toy import trainer_of

from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.pipelines.models.search import Query
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.training.checkpoint import load_weights
from polypool.pipelines.training.train import prepare
from polypool.tasks.datasets.corpus import Corpus, write_corpus
from polypool.tasks.run import Run

WORDS = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run on clips of one to five frames that reads at most three of them."""
    folder = tmp_path_factory.mktemp("clips")
    made = make_corpus(folder, images=folder / "clips", train=12, val=4, test=4)
    corpus = Corpus.open(folder / "corpus")
    items = []
    for split in corpus.splits:
        for item in corpus.items(split):
            items.append(replace(item, path=f"{item.id}.mp4"))
            write_clip(folder / "clips" / items[-1].path, 1 + int(item.id) % 5, seed=int(item.id))
    write_corpus(folder / "corpus", items, source={"made": "by a test"}, images=folder / "clips")
    data = replace(made.data, features="", visual_augment="drop(p=0.2)", text_augment="", max_frames=3)
    return replace(
        made,
        task="video_text",
        protocol="distinct",
        visual=f"patches(name={save_vit(folder / 'vit')!r}, width=16, size=32, class_token=True)",
        text=WORDS,
        adapt="lora(r=2, sides=visual)",
        data=data,
        figures=True,
        optim=replace(made.optim, epochs=2, batch=4, recompute=True),
    )


def test_video_run_reloads_and_searches_new_clips(run, tmp_path):
    whole = trainer_of(run, tmp_path / "whole")
    before = {name: x.clone() for name, x in whole.model.state_dict().items()}
    whole.train()
    now = whole.model.state_dict()
    assert any(not torch.equal(now[name], x) for name, x in before.items() if ".lora_" in name)

    assets = json.loads((tmp_path / "whole" / "model" / "assets.json").read_text())
    adapter = TASKS.build(run.task, run, assets=assets)
    model = adapter.model()
    load_weights(model, tmp_path / "whole" / "model" / "model.safetensors")
    scored = adapter.evaluate(model, "test", "distinct")
    assert scored.metrics["rsum"] == pytest.approx(whole.log.rows[-1][1]["distinct/rsum"])

    trained = TrainedModel(run=run, adapter=adapter, model=model.eval())
    finder = trained.open_search()
    item = finder.items[1]
    clip, long = adapter.corpus.image_path(item), write_clip(tmp_path / "long.mp4", 40)
    assert finder.find(Query(file=clip, video=True), 3) == finder.find(Query(id=item.id), 3)
    together = trained.encode_visual([clip, long])
    torch.testing.assert_close(together[:1], trained.encode_visual([clip]), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="reads the pixels of videos; give one with --video FILE"):
        finder.find(Query(file=clip), 3)
    Image.new("RGB", (9, 9)).save(tmp_path / "picture.png")
    for name, why in (("picture.png", "a picture"), ("gone.mp4", "no ")):
        with pytest.raises(InputError, match=rf"{name}.*{why}|{why}.*{name}"):
            finder.find(Query(file=tmp_path / name, video=True), 3)


def test_reading_every_frame_is_refused_before_training(run):
    with pytest.raises(InputError, match=r"--data.max-frames 0 has the visual encoder read every frame"):
        prepare(replace(run, data=replace(run.data, max_frames=0)))
