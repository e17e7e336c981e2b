"""Counter-based random numbers, by SplitMix64 (Steele et al. 2014).

The number for word 3 of caption 17 in epoch 5 is the same for any batch and number of workers, and after any restart.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
_LAST = 31


def _mix(z: np.ndarray) -> np.ndarray:
    for shift, factor in _ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(_LAST))


def _states(*coordinates: np.ndarray | int) -> np.ndarray:
    state: np.ndarray = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for coordinate in coordinates:
            state = _mix((state ^ np.asarray(coordinate).astype(np.uint64)) + _STEP)
    return state


def uniform(*coordinates: np.ndarray | int) -> np.ndarray:
    """Return float64 numbers in [0, 1), one per element of the broadcast integer coordinates."""
    shape = np.broadcast_shapes(*map(np.shape, coordinates))
    return ((_states(*coordinates) >> np.uint64(11)) * 2.0**-53).reshape(shape)


def state_of(*coordinates: int) -> int:
    """Return the 64-bit state after some coordinates, as a signed number, from which `words` continues."""
    return int(_states(*coordinates).view(np.int64)[0])


def words(state: Tensor, *coordinates: Tensor | int) -> Tensor:
    """Return 32-bit numbers, int32: the bits of `uniform` times 2**32, computed on the state's device.

    Args:
        state: from `state_of`, int64, on any device.
        coordinates: the remaining integer coordinates, which are broadcast.
    """
    for coordinate in coordinates:
        state = (state ^ coordinate) + _signed(int(_STEP))
        for shift, factor in _ROUNDS:
            state = (state ^ _shifted(state, shift)) * _signed(factor)
        state = state ^ _shifted(state, _LAST)
    return (state >> 32).to(torch.int32)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shift right without sign extension."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
