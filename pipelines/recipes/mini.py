"""Small corpora that train from scratch in a minute or two on two cores, and the demo's rendered ones."""

from __future__ import annotations

from polypool.pipelines.recipes import derive, recipe
from polypool.tasks.run import Data, Optim, Run


@recipe("coco_mini")
def coco_mini() -> Run:
    """2,618 photographs of COCO on features of `cells`, a BiGRU, InfoNCE; chance is an RSUM of about 3.

    Chosen on the 195 validation images; the test split has 1,064.
    """
    return Run(
        data=Data(
            dataset="coco_mini",
            corpus="data/coco_mini",
            captions=5,
            features="data/coco_mini/cells",
            visual_augment="drop(p=0.2)",
            text_augment="mask_replace_delete(p=0.2)",
        ),
        visual="regions(width=192, standardise=True)",
        text="bigru(width=192, embedding=128, min_count=2, dropout=0.3)",
        protocol="whole",
        objective="infonce(temperature=0.05)",
        optim=Optim(epochs=7, batch=128, lr=2e-3, weight_decay=0.1, schedule="cosine", warmup_steps=50),
    )


@recipe("msrvtt_mini")
def msrvtt_mini() -> Run:
    """1,200 clips of MSR-VTT on frames of `cells(grid=3)`, a BiGRU, InfoNCE; the test split has 240 clips.

    With `--aggregator mean` it is VSE++, with `gpo` VSE-infinity. Chosen on the 60 validation clips.
    """
    return Run(
        task="video_text",
        data=Data(
            dataset="msrvtt_mini",
            corpus="data/msrvtt_mini",
            features="data/msrvtt_mini/cells",
            captions=20,
            max_frames=20,
            max_words=30,
            visual_augment="drop(p=0.2)",
        ),
        visual="regions(width=192, standardise=True)",
        text="bigru(width=192, embedding=128, min_count=2, dropout=0.3, ends=False)",
        protocol="distinct",
        objective="infonce(temperature=0.05)",
        optim=Optim(epochs=3, batch=128, lr=2e-3, weight_decay=0.1, schedule="cosine", warmup_steps=50),
    )


@recipe("msrvtt_mini_hgr")
def msrvtt_mini_hgr() -> Run:
    """HGR on the same clips, with role graphs from rules; with `--aggregator gpo` it is HGR-infinity."""
    return derive(msrvtt_mini(), model="hgr", aggregator="attention")


@recipe("daquar")
def daquar() -> Run:
    """DAQUAR's questions in VQA 2.0's form, on features of `cells`; answers from the training split.

    Chosen on the validation questions, those of a share of 0.15 of the training images; the test split has 5,673.
    """
    return Run(
        task="vqa(answers=train, min_count=3)",
        data=Data(dataset="daquar", corpus="data/daquar", features="data/daquar/cells", max_words=14),
        visual="grid(width=192, standardise=True)",
        text="bigru(width=192, embedding=96, min_count=2, dropout=0.3, ends=False, split=questions)",
        protocol="vqa",
        aggregator="gpo",
        fusion="product(dropout=0.5)",
        objective="bce",
        optim=Optim(epochs=8, batch=64, lr=2e-3, weight_decay=0.05, schedule="cosine", warmup_steps=50),
    )


@recipe("demo")
def demo() -> Run:
    """Rendered pictures of coloured shapes, on features of `cells`: half a minute of training on two cores."""
    return derive(
        coco_mini(),
        data={"dataset": "scenes", "corpus": "data/scenes", "features": "data/scenes/cells"},
        visual="regions(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1)",
        optim={"epochs": 8, "warmup_steps": 20},
    )


@recipe("demo_videos")
def demo_videos() -> Run:
    """Rendered videos of moving shapes, on features of `cells`."""
    return derive(
        msrvtt_mini(),
        data={
            "dataset": "moving_scenes",
            "corpus": "data/moving_scenes",
            "features": "data/moving_scenes/cells",
        },
        visual="regions(width=128, standardise=True)",
        text="bigru(width=128, embedding=64, min_count=1)",
        optim={"epochs": 9, "warmup_steps": 10},
    )


@recipe("demo_questions")
def demo_questions() -> Run:
    """Questions about the pictures of `demo`, on the same features; half a minute of training."""
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
        optim={"epochs": 7, "warmup_steps": 20},
    )
