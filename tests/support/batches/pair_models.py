"""Small models that encode every pair jointly, and batches for them."""

from __future__ import annotations

import numpy as np
import torch
from toy import WORDS, ToyData, toy_run

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Regions
from polypool.tasks.models.pair_encoder import PairEncoder
from polypool.tasks.models.parts import Parts, retrieval_model

CROSS = "cross_modal(heads=2, dropout=0.0)"
MODELS = [
    (CROSS, "mean"),
    (CROSS, "score_attention(k=2, heads=2)"),
    ("", "score_attention(k=3, heads=4)"),
]


def model_of(cross: str, aggregator: str, **changes) -> PairEncoder:
    """Return a small model in float64; its weights do not depend on the default dtype."""
    torch.manual_seed(0)
    visual, text = Regions({"dim": 6}, width=8), BiGRU({"words": WORDS}, width=8, embedding=4)
    run = toy_run(cross=cross, aggregator=aggregator, **changes)
    return retrieval_model(run, Parts(run, visual=lambda: visual, text=lambda: text)).double()


def batch_of(*index: int) -> dict[str, torch.Tensor]:
    """Return samples of the toy task; captions from index 20 on are cut, so that lengths differ."""
    batch = ToyData().batch(np.array(index), seed=1, epoch=0)
    batch["text_mask"][torch.tensor(index) >= 20, 3:] = False
    longest = int(batch["text_mask"].sum(dim=1).max())
    batch |= {key: batch[key][:, :longest] for key in ("text", "text_mask")}
    return {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
