"""Sets of elements, for models that look at both modalities together and so have no embeddings of one alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from infra.compute.device import on_device
from infra.compute.dist import gather_uneven
from infra.data import Batch
from tasks.models.embeddings import Batches, places


class PaddedSets(NamedTuple):
    """Padded sets."""

    x_BND: Tensor
    """The elements."""
    mask_BN: Tensor
    """True for real elements."""

    @classmethod
    def pad(cls, sets: Sequence[Tensor]) -> PaddedSets:
        """Put `(N, D)` sets of any sizes side by side."""
        size_B = torch.tensor([len(x_ND) for x_ND in sets], device=sets[0].device)
        x_BND = pad_sequence(list(sets), batch_first=True)
        return cls(x_BND, torch.arange(x_BND.shape[1], device=size_B.device) < size_B[:, None])

    def widened(self, size: int) -> PaddedSets:
        """Return the sets with more padding, so that each has `size` elements."""
        more = size - self.mask_BN.shape[1]
        return PaddedSets(F.pad(self.x_BND, (0, 0, 0, more)), F.pad(self.mask_BN, (0, more)))

    def split(self, size: int) -> list[PaddedSets]:
        """Cut into parts of up to `size` sets."""
        return [
            PaddedSets(*part) for part in zip(self.x_BND.split(size), self.mask_BN.split(size), strict=True)
        ]


@torch.inference_mode()
def encode_sets(
    encode_batch: Callable[[Batch], PaddedSets], batches: Batches, *, device: torch.device
) -> list[Tensor]:
    """Encode batch after batch and return the sets of all workers, `(N, D)` each, in the order of their numbers."""
    numbers, elements, sizes = [], [], []
    for number_B, batch in batches:
        x_BND, mask_BN = encode_batch(on_device(batch, device))
        numbers.append(number_B.to(device))
        elements.append(x_BND[mask_BN])
        sizes.append(mask_BN.sum(dim=1))
    sets = gather_uneven(torch.cat(elements)).split(gather_uneven(torch.cat(sizes)).tolist())
    return [sets[place] for place in places(torch.cat(numbers)).tolist()]
