"""Small retrieval models, and batches of the toy task for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from toy import WORDS, ToyData, toy_run

from polypool.encoders.encoder import Encoder
from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames, Regions
from polypool.tasks.models.pair_encoder import PairEncoder
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import Run

CROSS = "cross_modal(heads=2, dropout=0.0)"
PAIR_MODELS = [
    (CROSS, "mean"),
    (CROSS, "score_attention(k=2, heads=2)"),
    ("", "score_attention(k=3, heads=4)"),
]


def small_parts(
    run: Run,
    *,
    visual: Callable[[], Encoder] = lambda: Regions({"dim": 6}, width=8),
    dropout: float = 0.0,
) -> Parts:
    """Return a run's parts with small encoders; `dropout` is the text encoder's."""
    text = {"width": 8, "embedding": 4, "dropout": dropout}
    return Parts(run, visual=visual, text=lambda: BiGRU({"words": WORDS}, **text))


def small_model(**changes: Any) -> RetrievalModel:
    """Return a small model in float64 with dropout on both sides and without batch normalisation."""
    torch.manual_seed(0)
    run = toy_run(**changes)
    parts = small_parts(run, visual=lambda: Frames({"dim": 6}, width=8, dropout=0.3), dropout=0.2)
    return retrieval_model(run, parts).double()


def pair_model(cross: str, aggregator: str) -> PairEncoder:
    """Return a small model of pairs in float64 without dropout; its weights do not depend on the default dtype."""
    torch.manual_seed(0)
    run = toy_run(cross=cross, aggregator=aggregator)
    return retrieval_model(run, small_parts(run)).double()


def batch_of(*index: int) -> dict[str, torch.Tensor]:
    """Return samples of the toy task; captions from index 20 on are cut, so that lengths differ."""
    batch = ToyData().batch(np.array(index), seed=1, epoch=0)
    batch["text_mask"][torch.tensor(index) >= 20, 3:] = False
    longest = int(batch["text_mask"].sum(dim=1).max())
    batch |= {key: batch[key][:, :longest] for key in ("text", "text_mask")}
    return {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
