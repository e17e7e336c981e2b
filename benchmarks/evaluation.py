"""An evaluation from embeddings to metrics, against the matrix product that every evaluation needs."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.random_data import image_run
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.infra.registry import SIMILARITIES, TASKS
from polypool.tasks.models.dual_encoder import SplitEmbeddings


@torch.inference_mode()
def products(visual_VD: Tensor, text_TD: Tensor) -> None:
    """Compute the products of all vectors, some rows at a time into one buffer."""
    buffer_RT = torch.empty(max(1, (1 << 25) // len(text_TD)), len(text_TD))
    for part_RD in visual_VD.split(len(buffer_RT)):
        torch.mm(part_RD, text_TD.T, out=buffer_RT[: len(part_RD)])


def main(*, quick: bool = False) -> None:
    images, width, protocol, rounds = (12, 8, "whole", 1) if quick else (5000, 1024, "coco-5k", 3)
    with tempfile.TemporaryDirectory() as folder:
        made = image_run(
            Path(folder),
            images=2,
            words=1000,
            regions=1,
            dim=8,
            test=images,
            protocol=protocol,
            text="bigru(min_count=1)",
        )
        adapter = TASKS.build(made.task, made)
        adapter.data("test")  # read before anything is timed
        for similarity, shape in (("cosine", (width,)), ("smooth_chamfer", (4, width))):
            generator = torch.Generator().manual_seed(0)
            visual, text = (
                torch.nn.functional.normalize(torch.randn(count, *shape, generator=generator), dim=-1)
                for count in (images, 5 * images)
            )
            score = SplitEmbeddings(visual=visual, text=text, similarity=SIMILARITIES.build(similarity))
            compare(
                f"evaluation by {similarity} / product, {images:,} x {5 * images:,} of {shape}",
                milliseconds(partial(adapter.evaluate_scores, score, "test", protocol)),
                milliseconds(partial(products, visual.reshape(-1, width), text.reshape(-1, width))),
                rounds=rounds,
            )


if __name__ == "__main__":
    run(main)
