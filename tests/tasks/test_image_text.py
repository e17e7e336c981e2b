import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from toy import trainer_of

from polypool.encoders.text.tokenizers import count_words
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.spec import changed
from polypool.tasks.image_text import ImageText


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return replace(make_corpus(tmp_path_factory.mktemp("tiny")), figures=False)


def test_training_on_tiny_corpus_beats_chance(run, tmp_path):
    trainer = trainer_of(run, tmp_path)
    adapter, log = trainer.adapter, trainer.log
    trainer.train()
    metrics = log.rows[-2][1] | log.rows[-1][1]
    assert metrics["whole/rsum"] > 2 * metrics["test/chance"]
    ranks = np.load(tmp_path / "per_query" / "whole.npz", allow_pickle=False)
    assert ranks["image_id"].tolist() == [str(i) for i in range(64, 84)]
    assert np.mean(ranks["t2i_rank"] < 1) * 100 == pytest.approx(metrics["whole/t2i/R1"])
    again = ImageText(run, assets=json.loads((tmp_path / "model" / "assets.json").read_text()))
    assert again.assets == adapter.assets


def test_vocabulary_uses_configured_splits(run):
    texts, text = {}, changed(run.text, min_count=30)
    for item_split in ("train", "val"):
        items = TASKS.build(run.task, run).corpus.items(item_split)
        texts[item_split] = [caption for item in items for caption in item.captions[:2]]
    for splits in (("train",), ("train", "val")):
        of = replace(run, text=text, data=replace(run.data, vocabulary=splits))
        words = TASKS.build(of.task, of).assets["text"]["words"]
        assert words == count_words([t for split in splits for t in texts[split]], min_count=30)


def test_samples_depend_on_seed_and_epoch_not_on_batch(run):
    data = TASKS.build(run.task, run).data("train")
    together, alone = (data.batch(np.array(index), seed=1, epoch=2) for index in ([3, 9, 50], [9]))
    for key in ("visual", "text"):
        size = int(alone[f"{key}_mask"].sum())
        assert int(together[f"{key}_mask"][1].sum()) == size
        assert torch.equal(together[key][1, :size], alone[key][0, :size])
    first, *others = (data.batch(np.arange(96), seed=s, epoch=e)["text"] for s, e in ((1, 2), (1, 3), (2, 2)))
    assert not any(torch.equal(first, other) for other in others)


def test_ensemble_of_different_images_is_refused(run, tmp_path):
    ours, same = TASKS.build(run.task, run), TASKS.build(run.task, run)
    ours.check_same_data(same, "test")
    other = make_corpus(tmp_path, seed=1)
    with pytest.raises(InputError, match="cannot be one ensemble"):
        ours.check_same_data(TASKS.build(other.task, other), "test")
