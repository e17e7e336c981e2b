"""A recipe of each task for any corpus and features: `polypool train image_text --corpus DIR --features DIR`.

The name of the data set is that of the corpus's folder. Features are standardised where their store has statistics, as
those of `extract` have. `--texts DIR` reads stored features of the texts instead of their words.
"""

from __future__ import annotations

from polypool.pipelines.recipes import derive, recipe
from polypool.tasks.automatic import AUTO
from polypool.tasks.run import Data, Optim, Run


@recipe("image_text")
def image_text() -> Run:
    """Your own pictures and captions: MLPs of any stored features, a BiGRU, InfoNCE."""
    return Run(
        data=Data(corpus=""),
        visual="regions(width=256, standardise=auto)",
        text=AUTO,
        protocol="whole",
        objective="infonce(temperature=0.05)",
        optim=Optim(
            epochs=10, lr=1e-3, weight_decay=0.1, schedule="cosine", warmup_steps=20, drop_last=False
        ),
    )


@recipe("video_text")
def video_text() -> Run:
    """Your own videos and captions, as `image_text`; at most 32 frames of a video, evenly chosen."""
    return derive(image_text(), task="video_text", data={"max_frames": 32}, protocol="distinct")


@recipe("vqa")
def vqa() -> Run:
    """Your own questions about pictures; the answers are those of the training split, each that occurs."""
    return derive(
        image_text(),
        task="vqa(answers=train, min_count=1)",
        visual="grid(width=256, standardise=auto)",
        protocol=AUTO,
        fusion="product(dropout=0.5)",
        objective="bce",
        optim={"batch": 64},
    )
