"""The slots of many role graphs in a few flat arrays, and batches of them as tensors."""

from __future__ import annotations

from array import array

import numpy as np
import torch
from torch import Tensor

from tasks.parsers.role_graph import RoleSlots


class SlotStore:
    """Graphs by number; some tens of bytes each.

    Args:
        count: how many there are.
        slots: slots P of each.
    """

    def __init__(self, count: int, slots: int) -> None:
        self.filled_U = np.zeros(count, dtype=bool)
        self._role_UP = np.zeros((count, slots), np.uint8)
        self._words, self._edges = _Lists(count), _Lists(count)

    def put(self, number: int, slots: RoleSlots) -> None:
        """Keep a graph, in place of an earlier one of that number."""
        self.filled_U[number] = True
        self._role_UP[number] = 0
        for slot, role in slots.roles.items():
            self._role_UP[number, slot] = role
        self._words.put(number, [(slot, word) for slot, words in slots.spans.items() for word in words])
        self._edges.put(number, slots.edges)

    def batch(self, number_B: np.ndarray, *, length: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return spans `(B, P, L)`, roles `(B, P)` (int64) and edges `(B, 1 + P, 1 + P)`, [target, source].

        Args:
            number_B: numbers of graphs.
            length: tokens L of the texts.
            first: token of each text's first word.
        """
        slots = self._role_UP.shape[1]
        span_BPL = np.zeros((len(number_B), slots, length), dtype=bool)
        row, slot, word = self._words.of(number_B)
        span_BPL[row, slot, word + first] = True
        edge_BKK = np.zeros((len(number_B), 1 + slots, 1 + slots), dtype=bool)
        edge_BKK[self._edges.of(number_B)] = True
        role_BP = self._role_UP[number_B].astype(np.int64)
        return torch.from_numpy(span_BPL), torch.from_numpy(role_BP), torch.from_numpy(edge_BKK)


class _Lists:
    """A list of pairs of whole numbers for each of `count` owners, written one after another into two arrays."""

    def __init__(self, count: int) -> None:
        self._one, self._other = array("B"), array("i")
        self._begin_U, self._size_U = np.zeros(count, np.int64), np.zeros(count, np.int32)

    def put(self, number: int, pairs: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> None:
        self._begin_U[number], self._size_U[number] = len(self._one), len(pairs)
        self._one.extend(one for one, _ in pairs)
        self._other.extend(other for _, other in pairs)

    def of(self, number_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all pairs of some owners: which of them, and the two numbers."""
        begin_B, size_B = self._begin_U[number_B], self._size_U[number_B]
        row_W = np.repeat(np.arange(len(number_B)), size_B)
        from_W = np.arange(len(row_W)) + np.repeat(begin_B - (np.cumsum(size_B) - size_B), size_B)
        one, other = np.frombuffer(self._one, np.uint8), np.frombuffer(self._other, np.int32)
        return row_W, one[from_W].astype(np.int64), other[from_W].astype(np.int64)
