"""Embeddings of splits in the folder of a run, memory-mapped, so that what is searched is encoded only once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from polypool.infra.batches import Batch
from polypool.infra.compute.device import on_device
from polypool.infra.files import atomic
from polypool.tasks.models.dual_encoder import Batches, encode_split
from polypool.tasks.similarities.similarity import Side


@dataclass(frozen=True, kw_only=True)
class EmbeddingFiles:
    """NumPy files of a split's embeddings, `(S, D)` or `(S, K, D)`, float32, named by what they depend on.

    Attributes:
        folder: made where it does not exist.
        split: of the corpus that is searched, behind its name.
        depends: model, settings and data, as JSON; any other value is another file, which replaces this one.
    """

    folder: Path
    split: str
    depends: object

    def open(self, side: Side) -> Tensor | None:
        """Return the embeddings, mapped; None where they were not written."""
        path = self._path(side)
        return torch.from_numpy(np.load(path, mmap_mode="c")) if path.is_file() else None

    def write(
        self,
        side: Side,
        encode: Callable[[Batch], Tensor],
        batches: Batches,
        *,
        count: int,
        grows: bool,
        device: torch.device,
    ) -> None:
        """Encode `count` samples into a file, batch by batch.

        Args:
            side: what is encoded.
            encode: returns the embeddings of a batch.
            batches: all samples.
            count: how many there are.
            grows: whether embeddings are sets of any size: then all are in memory before they are written.
            device: of the model.

        Raises:
            InputError | OSError: the file cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(side)
        with atomic(path) as file:
            if grows:
                np.save(file, encode_split(encode, batches, device=device).float().cpu().numpy())
            else:
                _write(file, encode, batches, count=count, device=device)
        for other in self.folder.glob(f"{_escaped(self.split)}-{side}-*.npy"):
            if other != path:
                other.unlink(missing_ok=True)

    def _path(self, side: Side) -> Path:
        digest = hashlib.sha256(json.dumps(self.depends, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{_escaped(self.split)}-{side}-{digest[:32]}.npy"


def _escaped(name: str) -> str:
    """Return a name without slashes, and without hyphens, which separate the parts of a file's name."""
    return quote(name, safe="").replace("-", "%2D")


@torch.inference_mode()
def _write(
    file: BinaryIO,
    encode: Callable[[Batch], Tensor],
    batches: Batches,
    *,
    count: int,
    device: torch.device,
) -> None:
    written: np.ndarray | None = None
    for number_B, batch in batches:
        x = encode(on_device(batch, device)).float().cpu().numpy()
        if written is None:
            shape = (count, *x.shape[1:])
            about = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, about)
            start = file.tell()
            # a full disk is an error here, and not a signal at the first number without a place
            os.posix_fallocate(file.fileno(), 0, start + 4 * int(np.prod(shape)))
            file.flush()
            written = np.memmap(file.name, np.float32, "r+", start, shape)
        written[number_B.numpy()] = x
