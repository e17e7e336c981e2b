"""Small corpora on features of DINOv2, with a BiGRU or MiniLM for texts, alone and several tasks together.

Stores are made by `extract` with `dinov2(cls=True, grid=4)`, [CLS] and sixteen vectors of an image, and of videos with
`dinov2`, one vector of a frame. Settings were chosen on the validation split and, where it is small, a part of the
training split. A frozen MiniLM is extracted once, by `extract --texts`; a tuned one reads the words. Its tokens are
averaged as in its training, whatever pools the images. It was trained on captions of COCO, maybe on those of the test
split here.
"""

from __future__ import annotations

from dataclasses import replace

from polypool.pipelines.recipes import derive, join, recipe
from polypool.pipelines.recipes.mini import coco_mini, daquar, msrvtt_mini
from polypool.tasks.run import Run

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PATCHES = "regions(width=384, standardise=True)"
INFONCE = "infonce(temperature=0.1)"
GRID = "grid(width=384, standardise=True)"  # in the joint width of all tasks


def _frozen(run: Run, *, width: int = 384) -> Run:
    return derive(
        run,
        data={"texts": f"{run.data.corpus}/minilm", "max_words": 0},
        text=f"stored_text(width={width})",
        text_aggregator="mean",
    )


def _tuned(run: Run, *, width: int = 384) -> Run:
    return derive(
        run,
        text=f"bert(name='{MINILM}', width={width})",
        text_aggregator="mean",
        optim={"lr_factors": (("text.encoder.bert", 0.01),)},
    )


@recipe("coco_mini_dinov2")
def coco_mini_dinov2() -> Run:
    """2,618 photographs, each [CLS] and 4 x 4 mean patches, a BiGRU, InfoNCE."""
    return derive(
        coco_mini(),
        data={"features": "data/coco_mini/dinov2_cls_4x4"},
        visual=PATCHES,
        text="bigru(width=384, embedding=256, min_count=2, dropout=0.3)",
        objective=INFONCE,
        optim={"lr": 1e-3},
    )


@recipe("coco_mini_dinov2_minilm")
def coco_mini_dinov2_minilm() -> Run:
    """The same photographs, and a linear map of a frozen MiniLM; six epochs at twice the rate."""
    run = derive(coco_mini_dinov2(), data={"text_augment": "drop(p=0.2)"}, optim={"epochs": 6, "lr": 2e-3})
    return _frozen(run)


@recipe("coco_mini_dinov2_minilm_pcmepp")
def coco_mini_dinov2_minilm_pcmepp() -> Run:
    """PCME++ without mixed samples: a Gaussian of each photograph and caption.

    Pseudo-positives have a weight of 0.01 instead of the paper's 0.1: the RSUM on val is 257 with 0.1, 284 with 0.01,
    and 290 without them.
    """
    return derive(
        coco_mini_dinov2_minilm(),
        aggregator="probabilistic",
        text_aggregator="probabilistic(mean=mean)",
        objective="pcmepp(pseudo=0.01)",
        regularisers=("vib(weight=1e-4)",),
    )


@recipe("coco_mini_dinov2_minilm_tuned")
def coco_mini_dinov2_minilm_tuned() -> Run:
    """The same photographs, and a MiniLM that learns at a hundredth of the rate."""
    return derive(_tuned(coco_mini_dinov2()), optim={"epochs": 6, "lr": 2e-3})


@recipe("msrvtt_mini_dinov2")
def msrvtt_mini_dinov2() -> Run:
    """1,200 clips of up to 12 frames each, a BiGRU, InfoNCE."""
    return derive(
        msrvtt_mini(),
        data={"features": "data/msrvtt_mini/dinov2", "max_frames": 12},
        visual=PATCHES,
        text="bigru(width=384, embedding=256, min_count=2, dropout=0.3, ends=False)",
        objective=INFONCE,
        optim={"lr": 1e-3},
    )


@recipe("msrvtt_mini_dinov2_minilm")
def msrvtt_mini_dinov2_minilm() -> Run:
    """The same clips, and a linear map of a frozen MiniLM."""
    return _frozen(msrvtt_mini_dinov2())


@recipe("msrvtt_mini_dinov2_minilm_tuned")
def msrvtt_mini_dinov2_minilm_tuned() -> Run:
    """The same clips, and a MiniLM that learns at a hundredth of the rate."""
    return _tuned(msrvtt_mini_dinov2())


@recipe("daquar_dinov2")
def daquar_dinov2() -> Run:
    """DAQUAR's photographs, each [CLS] and 4 x 4 mean patches, and a BiGRU for its questions."""
    return derive(
        daquar(),
        data={"features": "data/daquar/dinov2_cls_4x4"},
        visual="grid(width=256, standardise=True)",
        text="bigru(width=256, embedding=128, min_count=2, dropout=0.3, ends=False, split=questions)",
    )


@recipe("daquar_dinov2_minilm")
def daquar_dinov2_minilm() -> Run:
    """The same questions, and a linear map of a frozen MiniLM."""
    return _frozen(daquar_dinov2(), width=256)


@recipe("daquar_dinov2_minilm_tuned")
def daquar_dinov2_minilm_tuned() -> Run:
    """The same questions, and a MiniLM that learns at a hundredth of the rate."""
    return _tuned(daquar_dinov2(), width=256)


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
    """The same three tasks, and one linear map of a frozen MiniLM.

    By weights and epochs each task sees about as many samples as in its own recipe: 1.06 times as many captions of
    photographs and of clips, and 1.1 times as many questions.
    """
    coco = coco_mini_dinov2_minilm()
    return join(
        image_text=(0.28, coco),
        video_text=(0.37, msrvtt_mini_dinov2_minilm()),
        vqa=(0.35, derive(daquar_dinov2_minilm(), text=coco.text, visual=GRID)),
        optim=replace(coco.optim, epochs=5),
    )
