"""The best of many scores, in an order that does not depend on how the work was cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from infra.errors import InputError


class Best(NamedTuple):
    """Places in a gallery, the best first; equal scores in the gallery's order."""

    place_K: Tensor
    score_K: Tensor


def best(score_G: Tensor, k: int) -> Best:
    """Return the k best of a gallery's scores, or all where it is smaller.

    Raises:
        InputError: a score is no number.
    """
    if not torch.isfinite(score_G).all():
        raise InputError(
            "the model gives scores that are no numbers; it has diverged, or the features of the query or of the "
            "gallery hold NaN"
        )
    threshold = score_G.topk(min(k, len(score_G))).values[-1]
    place_C = (score_G >= threshold).nonzero().squeeze(1)
    place_K = place_C[score_G[place_C].argsort(descending=True, stable=True)[:k]]
    return Best(place_K, score_G[place_K])


def best_of_parts(parts: Iterable[Tensor], k: int) -> Best:
    """Return the k best of scores that come part by part, in the gallery's order; only the best so far are held."""
    place_K, score_K, start = torch.empty(0, dtype=torch.int64), torch.empty(0), 0
    for score_P in parts:
        score_P = score_P.float().cpu()
        place_C = torch.cat([place_K, torch.arange(start, start + len(score_P))])
        chosen, score_K = best(torch.cat([score_K, score_P]), k)
        place_K, start = place_C[chosen], start + len(score_P)
    return Best(place_K, score_K)
