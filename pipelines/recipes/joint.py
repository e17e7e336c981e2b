"""Several tasks trained together: one text encoder and one aggregator for photographs, clips and questions."""

from __future__ import annotations

from pipelines.recipe import derive, join, recipe
from pipelines.recipes.dinov2 import coco_mini_dinov2, daquar_dinov2, msrvtt_mini_dinov2
from tasks.run import Run


@recipe("mini_dinov2_joint")
def mini_dinov2_joint() -> Run:
    """COCO's photographs, clips of MSR-VTT and DAQUAR's questions, with one BiGRU for all their words."""
    text = "bigru(width=384, embedding=256, min_count=2, dropout=0.3, ends=False)"
    return join(
        image_text=(0.5, derive(coco_mini_dinov2(), text=text)),
        video_text=(0.3, derive(msrvtt_mini_dinov2(), text=text)),
        vqa=(0.2, derive(daquar_dinov2(), text=text, visual="grid(width=384, standardise=True)")),
        optim=coco_mini_dinov2().optim,
    )
