"""The shard that is being filled: its sets, in few bytes beside their vectors, for millions of small ones."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa

from infra.store.shard import check_of


class OpenShard:
    """Sets in the order in which they came.

    Args:
        dim, dtype: of their vectors.
        rows: vectors that make it full; one set is never divided.
    """

    def __init__(self, *, dim: int, dtype: str, rows: int) -> None:
        self._vectors = np.empty((rows, dim), dtype)  # pages that are never touched take no memory
        self.clear()

    def clear(self) -> None:
        """Begin the next one."""
        # of each set its id, where that ends, where its vectors end, and their check: as objects they are 170 bytes
        self._ids, self._id_ends = bytearray(), array("i", [0])
        self._ends, self._checks = array("q", [0]), array("Q")

    def __len__(self) -> int:
        """How many sets there are."""
        return len(self._checks)

    def has_room(self, vectors: int) -> bool:
        """Whether a set of so many vectors belongs into this shard."""
        return not len(self) or self._ends[-1] + vectors <= len(self._vectors)

    def put(self, id: str, x_ND: np.ndarray) -> np.ndarray:
        """Take a set in; return it as it is here."""
        start, end = self._ends[-1], self._ends[-1] + len(x_ND)
        if end > len(self._vectors):  # a set larger than a shard has one to itself
            self._vectors = np.empty((end, self._vectors.shape[1]), self._vectors.dtype)
        self._vectors[start:end] = x_ND
        self._checks.append(check_of(self._vectors[start:end]))
        self._ids += id.encode()
        self._id_ends.append(len(self._ids))
        self._ends.append(end)
        return self._vectors[start:end]

    def columns(self) -> dict[str, Any]:
        """Return it as `infra.store.shard.write_shard` wants it, not copied: no set comes in while these are held."""
        return {
            "ids": pa.StringArray.from_buffers(
                len(self), pa.py_buffer(self._id_ends), pa.py_buffer(self._ids)
            ),
            "offsets": np.frombuffer(self._ends, np.int64),
            "vectors_VD": self._vectors[: self._ends[-1]],
            "checks": np.frombuffer(self._checks, np.uint64),
        }
