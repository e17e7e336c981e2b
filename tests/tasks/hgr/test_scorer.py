from __future__ import annotations

import weakref

import pytest
import torch
from role_batches import captions_of, dealt, model_of, videos_of
from torch import Tensor

from polypool.tasks.hgr import hgr


@pytest.mark.parametrize(("videos", "aggregator"), [(64, "attention"), (5, "attention"), (5, "pie(k=2)")])
def test_blocks_of_a_split_are_those_of_the_whole(monkeypatch, videos, aggregator):
    monkeypatch.setattr(hgr, "VIDEOS", videos)
    model = model_of(aggregator=aggregator)
    video, text = model.encode_visual(videos_of(range(23))), model.encode_text(captions_of(range(41)))
    expected = model.score(video, text).float()
    score = model.scorer(dealt(videos_of, 23, 4), dealt(captions_of, 41, 5))
    for images, captions in (
        (slice(None), slice(None)),
        (slice(3, 9), slice(4, 17)),
        (slice(0, 23), slice(14, 15)),
        (slice(22, 23), slice(21, 41)),
        (slice(5, 100), slice(35, 100)),
    ):
        block = score(images, captions)
        assert block.dtype == torch.float32
        torch.testing.assert_close(block, expected[images, captions], rtol=0, atol=1e-6)


def test_captions_may_come_in_any_order_and_twice():
    model = model_of()
    batches = [(part, captions_of(part.tolist())) for part in torch.randperm(30).split(7)]
    score = model.scorer(dealt(videos_of, 6, 4), [*batches, batches[0]])
    ordered = model.scorer(dealt(videos_of, 6, 4), dealt(captions_of, 30, 30))
    torch.testing.assert_close(score(slice(None), slice(None)), ordered(slice(None), slice(None)))


def test_captions_are_forgotten_once_they_are_scored():
    """What is held while a split is scored: the embeddings of one part of the captions, however many there are."""
    model, alive, most = model_of(), weakref.WeakSet(), []
    encode = model.encode_text

    def watched(batch: dict[str, Tensor]):
        most.append(len(alive))
        text = encode(batch)
        for x in (*text, *batch.values()):
            alive.add(x)
        return text

    model.encode_text = watched
    model.scorer(dealt(videos_of, 6, 4), dealt(captions_of, 40, 2))
    assert len(most) == 20
    assert max(most) <= 3 + 5, "three embeddings and five inputs of the part before"
    assert len(alive) == 0
