"""HGR's attention of phrases to frames: by products alone, against a vector for every video and phrase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measure import Measurement, Scale, Size, apart, by_turns, growth, seconds
from benchmarks.random_data import random_tensors
from polypool.tasks.hgr.hgr import phrase_scores
from polypool.tasks.models.pair_encoder import PaddedSets


@dataclass(frozen=True, kw_only=True)
class PhraseSize(Size):
    """A part of an evaluation as the authors' code has it."""

    quick: ClassVar = {"videos": 100, "texts": 100, "rounds": 5}
    tiny: ClassVar = {"videos": 4, "texts": 5, "frames": 3, "phrases": 2, "width": 8}
    videos: int = 300
    texts: int = 300
    frames: int = 20
    phrases: int = 6
    width: int = 1024


def phrases(scale: Scale = "full") -> list[Measurement]:
    """Measure time and memory of one level's scores."""
    size = PhraseSize.of(scale)
    frame_VFD, phrase_TPD = embeddings(size)
    with torch.inference_mode():
        torch.testing.assert_close(
            ours(frame_VFD[:2], phrase_TPD), direct(frame_VFD[:2], phrase_TPD), rtol=0, atol=1e-5
        )
        times = by_turns(
            lambda _: seconds(lambda: ours(frame_VFD, phrase_TPD)),
            lambda _: seconds(lambda: direct(frame_VFD, phrase_TPD)),
            rounds=size.rounds,
        )
    peak, direct_peak = apart(growth, [(embeddings, work, size) for work in (ours, direct)])
    measured = (
        f"scores of {size.videos} videos of {size.frames} frames and {size.texts} texts of {size.phrases} "
        f"phrases, width {size.width}"
    )
    vectors = size.videos * size.texts * size.phrases * size.width * 4 / 1e6
    return [
        Measurement(
            name="phrases to frames",
            measured=f"time of {measured}",
            unit="s",
            target=2.0,
            note="Reference: every phrase's weighted sum of every video's frames, then their cosines.",
            **times.numbers(invert=True),
        ),
        Measurement.of_two(
            peak,
            direct_peak,
            name="phrases: memory",
            measured=f"peak memory beyond the embeddings, {measured}",
            unit="MB",
            target=0.1,
            note=f"Reference: the same; its vectors take {vectors:,.0f} MB.",
        ),
    ]


def embeddings(size: PhraseSize) -> tuple[Tensor, ...]:
    """Return random frames and phrases."""
    return random_tensors((size.videos, size.frames, size.width), (size.texts, size.phrases, size.width))


def ours(frame_VFD: Tensor, phrase_TPD: Tensor) -> Tensor:
    """Return the scores, from products."""
    frames = PaddedSets(frame_VFD, torch.ones(frame_VFD.shape[:2], dtype=torch.bool))
    used_TP = torch.ones(phrase_TPD.shape[:2], dtype=torch.bool)
    return phrase_scores(frames, phrase_TPD, used_TP, sharpness=4.0)


def direct(frame_VFD: Tensor, phrase_TPD: Tensor) -> Tensor:
    """Return the scores, from a vector for every video and phrase; none of them is copied."""
    unit_SD = normalize(phrase_TPD.flatten(0, 1), dim=-1)
    fit_VSF = (normalize(frame_VFD, dim=-1) @ unit_SD.T).mT.relu()
    weight_VSF = (4.0 * normalize(fit_VSF, dim=-1)).softmax(dim=-1)
    attended_VSD = weight_VSF @ frame_VFD
    product_VS = torch.stack([(a_SD[:, None] @ unit_SD[..., None]).flatten() for a_SD in attended_VSD])
    return (product_VS / attended_VSD.norm(dim=-1)).unflatten(1, phrase_TPD.shape[:2]).mean(dim=2)
