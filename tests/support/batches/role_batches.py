"""Inputs for tests of HGR: model parts, videos, and captions with role graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from toy import toy_run

from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Frames
from polypool.tasks.hgr.hgr import HGR
from polypool.tasks.models.parts import Parts

VERBS, NOUNS, FEATURES, WORDS = 2, 3, 5, 12


def role_model(*, aggregator: str = "attention", dropout: float = 0.0) -> HGR:
    """Return a small model in float64; its weights do not depend on the default dtype."""
    torch.manual_seed(0)
    run = toy_run(aggregator=aggregator, objective="triplet(warmup_epochs=0, margin=0.9)")
    words = {"words": [f"w{i}" for i in range(WORDS)]}
    parts = Parts(
        run,
        visual=lambda: Frames({"dim": FEATURES}, width=8),
        text=lambda: BiGRU(words, width=8, embedding=6),
    )
    model = HGR(parts, verbs=VERBS, nouns=NOUNS, dropout=dropout)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.bias"):
            torch.nn.init.normal_(parameter)
    return model.double().eval()


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


def videos_of(numbers: Sequence[int]) -> dict[str, Tensor]:
    """Return the video part of a batch, padded with large numbers."""
    frames = [video(number) for number in numbers]
    mask_BN = pad_sequence([torch.ones(len(x), dtype=torch.bool) for x in frames], batch_first=True)
    visual = pad_sequence(frames, batch_first=True, padding_value=1e3)
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


def role_batch(numbers: Sequence[int]) -> dict[str, Tensor]:
    """Return a batch of pairs."""
    place = {"item": torch.tensor(numbers), "row": torch.arange(len(numbers))}
    return videos_of(numbers) | captions_of(numbers) | place
