"""The demo's rendered scenes and videos, and questions about the scenes."""

from __future__ import annotations

from pipelines.recipe import derive, recipe
from pipelines.recipes.mini import coco_mini, daquar, msrvtt_mini
from tasks.run import Run


@recipe("demo")
def demo() -> Run:
    """Pictures of coloured shapes, described by `cells`: half a minute of training on two cores."""
    return derive(
        coco_mini(),
        data={"dataset": "scenes", "corpus": "data/scenes", "features": "data/scenes/cells"},
        visual="regions(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1)",
        optim={"epochs": 10, "warmup_steps": 20},
    )


@recipe("demo_videos")
def demo_videos() -> Run:
    """Videos of moving shapes, described by `cells` frame by frame."""
    return derive(
        msrvtt_mini(),
        data={
            "dataset": "moving_scenes",
            "corpus": "data/moving_scenes",
            "features": "data/moving_scenes/cells",
        },
        visual="regions(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1)",
        optim={"epochs": 12, "warmup_steps": 20},
    )


@recipe("demo_questions")
def demo_questions() -> Run:
    """Questions about the pictures of `demo`, whose features they share; half a minute of training, as there."""
    return derive(
        daquar(),
        task="vqa(answers=train, min_count=5)",
        data={
            "dataset": "scene_questions",
            "corpus": "data/scene_questions",
            "features": "data/scenes/cells",
        },
        visual="grid(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1, ends=False, split=questions)",
        optim={"epochs": 10, "warmup_steps": 20},
    )
