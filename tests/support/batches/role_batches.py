"""Inputs for tests of HGR: model parts, videos, and captions with role graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polypool.aggregators.aggregator import Aggregator
from polypool.encoders.encoder import Encoder
from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames
from polypool.infra.compute.dist import rank, world
from polypool.infra.registry import AGGREGATORS, OBJECTIVES, SIMILARITIES
from polypool.tasks.hgr.hgr import HGR
from polypool.tasks.objectives.objective import Objective
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Similarity

VERBS, NOUNS, FEATURES, WORDS = 2, 3, 5, 12


class MadeUpParts:
    """Stand-in for `polypool.tasks.models.parts.Parts`."""

    def __init__(self, *, width: int = 8, aggregator: str = "attention", text_width: int = 0) -> None:
        self.width, self.aggregator, self.text_width = width, aggregator, text_width or width

    def objective(self) -> Objective:
        return OBJECTIVES.build("triplet(warmup_epochs=0, margin=0.9)")

    def regularisers(self) -> list[Regulariser]:
        return []

    def visual(self) -> Encoder:
        return Frames({"dim": FEATURES}, width=self.width)

    def text(self) -> Encoder:
        return BiGRU({"words": [f"w{i}" for i in range(WORDS)]}, width=self.text_width, embedding=6)

    def visual_aggregator(self, width: int) -> Aggregator:
        return AGGREGATORS.build(self.aggregator, width)

    text_aggregator = visual_aggregator

    def similarity(self, visual: Aggregator, text: Aggregator, *, width: int) -> Similarity:
        return SIMILARITIES.build("smooth_chamfer" if visual.num_embeddings > 1 else "cosine")


def model_of(
    dtype: torch.dtype = torch.float64, *, params: dict[str, Any] | None = None, **changes: Any
) -> HGR:
    """Return a small model without dropout; its weights are the same in every precision."""
    torch.manual_seed(0)
    model = HGR(MadeUpParts(**changes), verbs=VERBS, nouns=NOUNS, **({"dropout": 0.0} | (params or {})))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.bias"):
            torch.nn.init.normal_(parameter)
    return model.to(dtype).eval()


def video(number: int) -> Tensor:
    """Return the `(N, F)` frames of a video, 1 to 4 of them."""
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randn(1 + number % 4, FEATURES, generator=generator, dtype=torch.float64)


def caption(number: int) -> dict[str, Tensor]:
    """Return a caption of 3 to 7 words; one slot, which depends on `number`, is unused, the others are random."""
    generator = torch.Generator().manual_seed(2000 + number)
    size, slots = 3 + number % 5, VERBS + NOUNS
    span_PL = torch.rand(slots, size, generator=generator) < 0.4
    span_PL[number % slots] = False
    edge_VV = torch.rand(1 + slots, 1 + slots, generator=generator) < 0.4
    edge_VV[0] = False
    role_P = torch.randint(16, (slots,), generator=generator).masked_fill(~span_PL.any(dim=1), 0)
    token_L = torch.randint(WORDS, (size,), generator=generator)
    return {"text": token_L, "text_spans": span_PL, "text_roles": role_P, "text_edges": edge_VV}


def videos_of(numbers: Sequence[int], *, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the video part of a batch, padded with large numbers."""
    frames = [video(number) for number in numbers]
    mask_BN = pad_sequence([torch.ones(len(x), dtype=torch.bool) for x in frames], batch_first=True)
    visual = pad_sequence(frames, batch_first=True, padding_value=1e3).to(dtype)
    return {"visual": visual, "visual_mask": mask_BN}


def captions_of(numbers: Sequence[int]) -> dict[str, Tensor]:
    """Return the caption part of a batch."""
    captions = [caption(number) for number in numbers]
    longest = max(len(one["text"]) for one in captions)
    spans = [torch.nn.functional.pad(one["text_spans"], (0, longest - len(one["text"]))) for one in captions]
    return {
        "text": pad_sequence([one["text"] for one in captions], batch_first=True),
        "text_mask": torch.arange(longest) < torch.tensor([[len(one["text"])] for one in captions]),
        "text_spans": torch.stack(spans),
        "text_roles": torch.stack([one["text_roles"] for one in captions]),
        "text_edges": torch.stack([one["text_edges"] for one in captions]),
    }


def batch_of(numbers: Sequence[int], *, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return a batch of pairs."""
    place = {"item": torch.tensor(numbers), "row": torch.arange(len(numbers))}
    return videos_of(numbers, dtype=dtype) | captions_of(numbers) | place


def dealt(make: Any, count: int, size: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield this worker's batches of all samples, distributed as in `polypool.tasks.inputs.pairs`."""
    parts = torch.arange(count).split(size)
    for turn in range(-(-len(parts) // world())):
        number_B = parts[(turn * world() + rank()) % len(parts)]
        yield number_B, make(number_B.tolist())
