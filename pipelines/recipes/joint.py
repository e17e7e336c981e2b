"""Several tasks trained together: one text encoder and one aggregator for photographs, clips and questions."""

from __future__ import annotations

from dataclasses import replace

from pipelines.recipe import derive, join, recipe
from pipelines.recipes.dinov2 import (
    coco_mini_dinov2,
    coco_mini_dinov2_minilm,
    daquar_dinov2,
    daquar_dinov2_minilm,
    msrvtt_mini_dinov2,
    msrvtt_mini_dinov2_minilm,
)
from tasks.run import Run

GRID = "grid(width=384, standardise=True)"
"""Of questions' photographs: as wide as the other tasks' vectors, which an aggregator in common asks for."""


@recipe("mini_dinov2_joint")
def mini_dinov2_joint() -> Run:
    """COCO's photographs, clips of MSR-VTT and DAQUAR's questions, with one BiGRU for all their words."""
    text = "bigru(width=384, embedding=256, min_count=2, dropout=0.3, ends=False)"
    return join(
        image_text=(0.5, derive(coco_mini_dinov2(), text=text)),
        video_text=(0.3, derive(msrvtt_mini_dinov2(), text=text)),
        vqa=(0.2, derive(daquar_dinov2(), text=text, visual=GRID)),
        optim=coco_mini_dinov2().optim,
    )


@recipe("mini_dinov2_minilm_joint")
def mini_dinov2_minilm_joint() -> Run:
    """The same three tasks, and one linear map of what a frozen MiniLM stored of their texts.

    Weights and epochs are such that each task sees about the samples that its own recipe trains it on: 1.06 times as
    many captions of photographs and of clips, and 1.1 times as many questions.
    """
    coco = coco_mini_dinov2_minilm()
    return join(
        image_text=(0.28, coco),
        video_text=(0.37, msrvtt_mini_dinov2_minilm()),
        vqa=(0.35, derive(daquar_dinov2_minilm(), text=coco.text, visual=GRID)),
        optim=replace(coco.optim, epochs=5),
    )
