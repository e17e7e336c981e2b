"""The demo's rendered scenes."""

from __future__ import annotations

from dataclasses import replace

from infra.registry import RECIPES
from pipelines.config import Run
from pipelines.recipes.coco_mini import coco_mini


@RECIPES.register("demo")
def demo() -> Run:
    """Pictures of coloured shapes, described by `cells`: half a minute of training on two cores."""
    run = coco_mini()
    return replace(
        run,
        recipe="demo",
        data=replace(run.data, dataset="scenes", corpus="data/scenes", features="data/scenes/cells"),
        visual="regions(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1)",
        optim=replace(run.optim, epochs=10, warmup_steps=20),
    )
