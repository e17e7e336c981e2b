"""Flickr8k whole, in its official split, on frozen DINOv2-S, with a frozen MiniLM or a BiGRU from nothing.

The store is made by `extract` with `dinov2(name='facebook/dinov2-small', cls=True, grid=4, layers=4)`: [CLS] and
sixteen vectors of a photograph, the last four layers side by side. That of the texts has one vector a caption,
`bert(name='sentence-transformers/all-MiniLM-L6-v2', pooled=True)`. Settings were chosen on the validation split.
"""

from __future__ import annotations

from polypool.pipelines.recipes import derive, recipe
from polypool.tasks.run import Data, Optim, Run


@recipe("flickr8k_dinov2")
def flickr8k_dinov2() -> Run:
    """8,000 photographs, each [CLS] and 4 x 4 mean patches of four layers, a BiGRU, InfoNCE."""
    return Run(
        data=Data(
            dataset="flickr8k",
            corpus="data/flickr8k",
            captions=5,
            features="data/flickr8k/dinov2_cls_4x4_layers4",
            sample="image",
        ),
        visual="regions(width=512, hidden=512, standardise=True)",
        text="bigru(width=512, embedding=300, min_count=2, dropout=0.3)",
        protocol="f8k-1k",
        objective="infonce(temperature=0.05)",
        optim=Optim(epochs=10, batch=128, lr=1e-3, weight_decay=0.1, schedule="cosine", warmup_steps=50),
    )


@recipe("flickr8k_dinov2_minilm")
def flickr8k_dinov2_minilm() -> Run:
    """The same photographs, and MLPs on the sentence embeddings of a frozen MiniLM."""
    return derive(
        flickr8k_dinov2(),
        data={"texts": "data/flickr8k/minilm_pooled"},
        text="stacked_regions(width=512, hidden=512, dropout=0.2, standardise=True)",
        text_aggregator="mean",
    )
