"""A few learned values stretched over sets of any size, as FSPool has them (Zhang, Hare and Prügel-Bennett 2020)."""

from __future__ import annotations

from torch import Tensor, arange


def stretch(value_VC: Tensor, size_S: Tensor) -> Tensor:
    """Interpolate linearly between values that lie evenly from a set's first rank to its last.

    Args:
        value_VC: two values or more, for C channels.
        size_S: how many elements each set has; the only rank of a set of one gets the first value.

    Returns:
        `(S, largest size, C)`; what lies beyond a set's size means nothing.
    """
    last = len(value_VC) - 1
    rank_N = arange(int(size_S.max()), device=value_VC.device)
    steps_S1 = (size_S.to(value_VC.device) - 1).clamp(min=1)[:, None]
    place_SN = (rank_N * last).clamp(max=steps_S1 * last)
    below_SN = (place_SN // steps_S1).clamp(max=last - 1)
    part_SN = (place_SN - below_SN * steps_S1).to(value_VC.dtype) / steps_S1
    return value_VC[below_SN].lerp(value_VC[below_SN + 1], part_SN[..., None])
