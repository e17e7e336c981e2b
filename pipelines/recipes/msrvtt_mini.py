"""A small corpus of MSR-VTT clips: trains from scratch in a minute or two on two cores."""

from __future__ import annotations

from pipelines.recipe import derive, recipe
from tasks.run import Data, Optim, Run


@recipe("msrvtt_mini")
def msrvtt_mini() -> Run:
    """1,200 clips, each frame described by `cells(grid=3)`, a BiGRU, InfoNCE; the test split has 240 clips.

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
