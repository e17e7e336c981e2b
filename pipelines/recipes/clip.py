"""CLIP (ViT-B/32): zero-shot, pooled over frames, and fine-tuned under GPO.

Videos are read from a store of one embedding for each of 12 evenly spaced frames:

    polypool extract --video --frames 12 --corpus data/msrvtt-1ka --backbone 'clip(pooled=True)' \
      --out data/msrvtt-1ka/clip_vit_b32

So CLIP's image half is fixed, where CLIP4Clip fine-tunes both: its text-to-video R@1 on MSR-VTT, 43.1 (meanP) and 44.5
(seqTransf), is not what these recipes aim at.
"""

from __future__ import annotations

from polypool.pipelines.recipes import derive, recipe
from polypool.pipelines.recipes.vse_infinity import EPOCH, coco_region_bigru
from polypool.tasks.run import Data, Optim, Run

LAYERS, LAYER_DECAY = 12, 0.7


@recipe("msrvtt_1ka_clip_zero_shot")
def msrvtt_1ka_clip_zero_shot() -> Run:
    """CLIP without training: the mean of a video's frames, each of unit length.

    With all frames instead of 12, Portillo-Quintero et al. (MCPR 2021) report an R@1 of 31.2.
    """
    return Run(
        task="video_text",
        data=Data(
            dataset="msrvtt_1ka",
            corpus="data/msrvtt-1ka",
            features="data/msrvtt-1ka/clip_vit_b32",
            captions=20,
            max_frames=12,
        ),
        visual="stored(unit=True)",
        text="clip_text(pooled=True)",
        protocol="msrvtt-1ka",
        aggregator="mean",
        objective="infonce(temperature=0.01, learned=True)",
        optim=Optim(epochs=0),
    )


@recipe("msrvtt_1ka_clip4clip_mean")
def msrvtt_1ka_clip4clip_mean() -> Run:
    """CLIP4Clip's meanP (Luo et al., Neurocomputing 2022, and its code): fine-tuned from zero-shot.

    CLIP learns at a thousandth of the rate. Deviations: captions end after 30 words, in the code after 32 tokens with
    start and end; its AdamW has a second moment of 0.98 and decays no biases; its rate falls along the cosine only
    after the first tenth of all steps; it trains on all 9,000 videos, of which 500 choose the epoch here.
    """
    return derive(
        msrvtt_1ka_clip_zero_shot(),
        data={"max_words": 30},
        optim={
            "epochs": 5,
            "batch": 128,
            "lr": 1e-4,
            "weight_decay": 0.2,
            "lr_factors": (("text.encoder", 1e-3), ("objective", 1e-3)),
            "schedule": "cosine",
            "warmup_steps": 664,  # a tenth of five epochs of 170,000 captions
            "clip": 1.0,
        },
    )


@recipe("msrvtt_1ka_clip4clip_seq")
def msrvtt_1ka_clip4clip_seq() -> Run:
    """CLIP4Clip's seqTransf: four layers of a transformer over the frames, at the whole rate, and then their mean."""
    return derive(
        msrvtt_1ka_clip4clip_mean(),
        visual="stored",
        aggregator="sequential(layers=4, heads=8)",
        text_aggregator="mean",
    )


@recipe("coco_clip_vse_infinity")
def coco_clip_vse_infinity() -> Run:
    """VSE-infinity on both halves of CLIP, from the code of PCME++ (Chun, ICLR 2024; configs/others).

    [CLS] and patches, start and end are elements; the rates of a half fall by 0.7 from each layer to the one below it.
    The image half is frozen for two epochs, with all negatives, and in the third the rate rises (the code multiplies
    the loss). Deviations: AdamW instead of AdamP; CLIP's colour statistics instead of ImageNet's; whole words are
    masked, replaced and dropped instead of subwords, and the mask is the end token, theirs the letter M.
    """
    layers = [(number, LAYER_DECAY ** (LAYERS - number)) for number in range(LAYERS)]
    visual, text = "visual.encoder.vit", "text.encoder.tower"
    return derive(
        coco_region_bigru(),
        visual="patches(name='openai/clip-vit-base-patch32', class_token=True)",
        text="clip_text(width=1024)",
        data={"features": "", "visual_augment": "grid_drop(p=0.2)", "vocabulary": ("train",)},
        objective="triplet(margin=0.2, warmup_epochs=2)",
        optim={
            "weight_decay": 1e-4,
            "lr_factors": (
                (visual, 0.01),
                *((f"{visual}.encoder.layers.{number}.", 0.01 * factor) for number, factor in layers),
                (text, 0.1),
                *((f"{text}.text_model.encoder.layers.{number}.", 0.1 * factor) for number, factor in layers),
            ),
            "freeze": ((visual, 2.0),),
            "warmup_steps": EPOCH - 1,  # the last batch, of fewer, is dropped
            "warmup_start": 2.0,
        },
    )
