"""Stored vectors of a gallery's sets: float32, a byte a number, or a bit a number."""

from __future__ import annotations

import tempfile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Stored(Protocol):
    """The sets of a gallery."""

    name: str
    nbytes: int
    """What they take in memory."""

    def sets(self, place_C: Tensor) -> Tensor:
        """Return sets of the gallery, `(C, K, D)` in float32; zero vectors stay zero."""


def _rows(part_GKX: Tensor, place_C: Tensor) -> Tensor:
    """Return `part_GKX[place_C]`, in a fifth of the time."""
    return part_GKX.flatten(1).index_select(0, place_C).unflatten(1, part_GKX.shape[1:])


class Float32:
    """The vectors as they are."""

    name = "float32"

    def __init__(self, embedding_GKD: Tensor) -> None:
        self.embedding_GKD, self.nbytes = embedding_GKD, embedding_GKD.nbytes

    def sets(self, place_C: Tensor) -> Tensor:
        return _rows(self.embedding_GKD, place_C)


class Int8:
    """Each number in a byte, with a factor for each vector: its largest number is 127 times that.

    Args:
        embedding_GKD: the gallery's sets.
        on_disk: keep the bytes in a temporary file, of which what is read is in memory as long as there is room.
    """

    name = "int8"

    def __init__(self, embedding_GKD: Tensor, *, on_disk: bool = False) -> None:
        self.device = embedding_GKD.device
        self.scale_GK1 = np.empty((*embedding_GKD.shape[:2], 1), np.float32)
        if on_disk:
            with tempfile.TemporaryFile() as file:
                file.truncate(embedding_GKD.numel())
                self.number_GKD: np.ndarray = np.memmap(file, np.int8, shape=tuple(embedding_GKD.shape))
        else:
            self.number_GKD = np.empty(tuple(embedding_GKD.shape), np.int8)
        for start in range(0, len(embedding_GKD), 1024):
            part_GKD = embedding_GKD[start : start + 1024].float()
            scale_GK1 = part_GKD.abs().amax(dim=2, keepdim=True) / 127
            number_GKD = (part_GKD / scale_GK1.clamp(min=torch.finfo(torch.float32).tiny)).round()
            self.scale_GK1[start : start + 1024] = scale_GK1.cpu()
            self.number_GKD[start : start + 1024] = number_GKD.to(torch.int8).cpu()
        self.nbytes = self.scale_GK1.nbytes + (0 if on_disk else self.number_GKD.nbytes)

    def sets(self, place_C: Tensor) -> Tensor:
        places = place_C.cpu().numpy()
        number_CKD, scale_CK1 = (
            torch.from_numpy(part[places]).to(self.device) for part in (self.number_GKD, self.scale_GK1)
        )
        return number_CKD.float().mul_(scale_CK1)


class Binary:
    """The sign of each number, in a bit, and the length of each vector: 32 times less memory than float32.

    Args:
        embedding_GKD: the gallery's sets.
    """

    name = "binary"

    def __init__(self, embedding_GKD: Tensor) -> None:
        self.dim = embedding_GKD.shape[2]
        parts = [np.packbits((part_GKD > 0).cpu().numpy(), axis=2) for part_GKD in embedding_GKD.split(1024)]
        self.bit_GKB = torch.from_numpy(np.concatenate(parts)).to(embedding_GKD.device)
        self.length_GK1 = embedding_GKD.norm(dim=2, keepdim=True).half()
        self.table = torch.from_numpy(
            np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1
        ).to(embedding_GKD.device)
        self.nbytes = self.bit_GKB.nbytes + self.length_GK1.nbytes

    def sets(self, place_C: Tensor) -> Tensor:
        byte_CKB = _rows(self.bit_GKB, place_C).int()
        sign_CKD = nn.functional.embedding(byte_CKB, self.table).flatten(2)[..., : self.dim]
        return sign_CKD * (self.length_GK1[place_C].float() / self.dim**0.5)
