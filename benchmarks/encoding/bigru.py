"""The GRU of captions on a CPU, forward and backward, against torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from polypool.infra.compute.gru import GRU


@dataclass(frozen=True, kw_only=True)
class CaptionSize(Size):
    """A batch of captions of up to `words`, and the widths of word embeddings and of both directions."""

    quick: ClassVar = {"rounds": 3}
    tiny: ClassVar = {"captions": 4, "words": 5, "widths": ((3, 4),), "rounds": 1}
    captions: int = 128
    words: int = 16
    widths: tuple[tuple[int, int], ...] = ((64, 128), (300, 512))
    rounds: int = 9


def bigru(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure forward and backward at a narrow and a common width."""
    size = CaptionSize.of(scale)
    torch.manual_seed(0)
    for inputs, hidden in size.widths:
        gru, x_BNE = GRU(inputs, hidden), torch.randn(size.captions, size.words, inputs, requires_grad=True)
        size_B = torch.randint(size.words // 2, size.words + 1, (size.captions,))
        theirs = torch.nn.GRU(inputs, hidden, batch_first=True, bidirectional=True)

        def torchs(x_BNE: Tensor = x_BNE, size_B: Tensor = size_B, gru: torch.nn.GRU = theirs) -> Tensor:
            packed = pack_padded_sequence(x_BNE, size_B, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(gru(packed)[0], batch_first=True)[0]

        def ours(x_BNE: Tensor = x_BNE, size_B: Tensor = size_B, gru: GRU = gru) -> Tensor:
            return gru(x_BNE, size_B)[0]

        yield Measurement(
            name=f"bigru {hidden}",
            measured=f"forward and backward of {size.captions} captions of {size.words // 2} to {size.words} words, "
            f"{inputs} to {hidden} in each direction, on the CPU",
            unit="ms",
            target=1.1,
            note="Reference: torch's GRU over packed captions.",
            **by_turns(_pass(ours), _pass(torchs), rounds=size.rounds).numbers(invert=True),
        )


def _pass(forward: Callable[[], Tensor]) -> Callable[[int], float]:
    return lambda _: 1e3 * seconds(lambda: forward().sum().backward())
