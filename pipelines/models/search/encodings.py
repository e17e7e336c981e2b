"""Fixed-dimensional encodings: a vector of each set, whose products are near a similarity of sets.

Source: Dhulipala et al., "MUVERA: Multi-vector retrieval via fixed dimensional encodings", NeurIPS 2024, section 2.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from polypool.tasks.similarities.vectors import mean_vector, real_vectors

BITS = 4  # hyperplanes of a partition, of 16 cells
REPETITIONS = 8
INNER = 32  # numbers that a cell's sum is projected to
COMPONENTS = 128  # what is kept of an encoding
FITTED = 4096  # sets that the components are found from
AT_ONCE = 1024  # sets that are encoded together: 32 MB


class Encoding(Protocol):
    """Encodes sets `(B, K, D)`, or vectors `(B, D)`, so that products of queries and gallery are near a similarity."""

    def queries(self, x: Tensor) -> Tensor:
        """Return the encodings of queries, `(B, F)`."""

    def gallery(self, x: Tensor) -> Tensor:
        """Return the encodings of what is searched, `(B, F)`."""


class Means:
    """The mean of a set's vectors: the encoding of a partition of one cell."""

    name = "means"

    def queries(self, x: Tensor) -> Tensor:
        return mean_vector(x)

    gallery = queries


class FixedDimensional:
    """Encodings of both directions of `maxsim`, by partitions of the sphere.

    Of each repetition, `bits` random hyperplanes cut the sphere into cells. A vector that looks for its closest one is
    added up in its cell, over the number of them all; the vectors that are found are averaged in each cell, and a cell
    without any has the one whose cell differs in the fewest hyperplanes, the first of several. The product of both is
    the mean cosine with what shares a cell. Of both directions, the query's part looks first, and then the gallery's.

    As in the paper, what is in a cell is projected by random signs. All sets are encoded with the same draws.

    Args:
        dim: width of the vectors.
        bits: hyperplanes of a partition.
        repetitions: partitions.
        inner: numbers that a cell's vector is projected to; no projection where it has no more.
        seed: of the draws.
        device: where encodings are computed.
        dtype: of the encodings.
    """

    def __init__(
        self,
        dim: int,
        *,
        bits: int = BITS,
        repetitions: int = REPETITIONS,
        inner: int = INNER,
        seed: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        plane_RDC = torch.randn(repetitions, dim, bits, generator=draw, dtype=dtype)
        sign_RDP = torch.randint(0, 2, (repetitions, dim, inner), generator=draw).to(dtype) * 2 - 1
        whole_RDP = torch.eye(dim, dtype=dtype).expand(repetitions, -1, -1)
        projection_RDP = sign_RDP / inner**0.5 if inner < dim else whole_RDP
        self.plane_RDC, self.projection_RDP = plane_RDC.to(device), projection_RDP.to(device)
        self.power_C = 2 ** torch.arange(bits, device=device)
        code_SC = torch.arange(2**bits, device=device)[:, None] // self.power_C % 2
        self.apart_SS = (code_SC[:, None] != code_SC).sum(dim=2)

    def queries(self, x: Tensor) -> Tensor:
        """Return what looks beside what is found, `(B, F)`."""
        return torch.cat(self._encoded(x), dim=1)

    def gallery(self, x: Tensor) -> Tensor:
        """Return what is found beside what looks, `(B, F)`."""
        return torch.cat(self._encoded(x)[::-1], dim=1)

    def _encoded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what looks and what is found of all repetitions, each `(B, R * S * P)`, with half of the scale."""
        x_BKD = x[:, None] if x.ndim == 2 else x
        real_BK = real_vectors(x_BKD)
        looking, found = [], []
        for plane_DC, projection_DP in zip(self.plane_RDC, self.projection_RDP, strict=True):
            cell_BK = ((x_BKD @ plane_DC > 0) * self.power_C).sum(dim=2)
            member_BSK = (cell_BK[:, None] == torch.arange(len(self.apart_SS), device=x.device)[:, None]) & (
                real_BK[:, None]
            )
            member_BSK, inner_BKP = member_BSK.to(x.dtype), x_BKD @ projection_DP
            sum_BSP, count_BS1 = member_BSK @ inner_BKP, member_BSK.sum(dim=2, keepdim=True)
            apart_BSK = (
                self.apart_SS[:, cell_BK]
                .transpose(0, 1)
                .masked_fill(~real_BK[:, None], len(self.power_C) + 1)
            )
            near_BS1 = apart_BSK.argmin(dim=2, keepdim=True)
            nearest_BSP = inner_BKP.gather(1, near_BS1.expand(-1, -1, inner_BKP.shape[2]))
            looking.append((sum_BSP / real_BK.sum(dim=1).clamp(min=1)[:, None, None]).flatten(1))
            found.append(torch.where(count_BS1 > 0, sum_BSP / count_BS1.clamp(min=1), nearest_BSP).flatten(1))
        scale = (2 * len(looking)) ** -0.5
        return torch.cat(looking, dim=1) * scale, torch.cat(found, dim=1) * scale


class Components:
    """The principal components of a gallery's encodings, in the place of the paper's last projection by random signs.

    The encodings of real sets lie near a space of few dimensions: 128 components of 8,192 numbers find nearly what all
    of them find, and as many random ones next to nothing.

    Args:
        encoding: is shortened.
        embedding_GKD: the gallery's sets.
    """

    name = "fixed-dimensional encodings"

    def __init__(self, encoding: FixedDimensional, embedding_GKD: Tensor) -> None:
        self.encoding = encoding
        step = -(-len(embedding_GKD) // FITTED)
        sample_SF = torch.cat([encoding.gallery(x_BKD) for x_BKD in embedding_GKD[::step].split(AT_ONCE)])
        kept = min(COMPONENTS, *sample_SF.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.basis_FE = torch.svd_lowrank(sample_SF, q=kept, niter=2)[2]

    def queries(self, x: Tensor) -> Tensor:
        return self.encoding.queries(x) @ self.basis_FE

    def gallery(self, x: Tensor) -> Tensor:
        return self.encoding.gallery(x) @ self.basis_FE


def encoded(encoding: Encoding, embedding_GKD: Tensor) -> Tensor:
    """Return the encodings of a gallery, `(G, F)`, computed part by part."""
    return torch.cat([encoding.gallery(x_BKD) for x_BKD in embedding_GKD.split(AT_ONCE)])
