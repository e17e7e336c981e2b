"""Galleries of many sets of vectors: time, recall and memory of two passes beside exact search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Measurement, Scale, Sides, Size, seconds
from polypool.infra.errors import InputError
from polypool.pipelines.models.search.faiss_index import Faiss
from polypool.pipelines.models.search.indices import AT, Exact, Index, TopK
from polypool.pipelines.models.search.two_pass import Kept, TwoPass
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import l2_normalise

KEPT: tuple[Kept, ...] = ("float32", "int8", "binary")


@dataclass(frozen=True, kw_only=True)
class SetsSize(Size):
    """A gallery, and queries of half as many vectors each, of which as many choose and measure an index."""

    tiny: ClassVar = {"gallery": 300, "vectors": 4, "width": 16, "queries": 4, "themes": 20}
    gallery: int = 100_000
    vectors: int = 16
    width: int = 128
    queries: int = 64
    themes: int = 4_096


def sets(scale: Scale = "full") -> Iterator[Measurement]:
    """Measure a query by `maxsim` in two passes, by turns with exact search, for each way to keep vectors."""
    size = SetsSize.of(scale)
    gallery_GKD, query_QLD = clustered(size)
    similarity = Similarity.build("maxsim", size.width)
    exact = Exact(gallery_GKD, similarity)
    sample, asked = query_QLD[: size.queries], query_QLD[size.queries :]
    what = f"{size.gallery:,} sets of {size.vectors} x {size.width}, queries of {size.vectors // 2} vectors, by maxsim"
    kinds: list[tuple[str, Kept, bool]] = [(kept, kept, False) for kept in KEPT]
    if _has_faiss():
        kinds.append(("faiss", "float32", True))
    for name, kept, faiss in kinds:
        with torch.inference_mode():
            index = TwoPass(gallery_GKD, similarity, sample, kept=kept, faiss=faiss)
        ours, theirs = zip(*(_both(index, exact, query) for query in asked.split(1)), strict=True)
        found = [_shared(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=True)]
        yield Measurement(
            name=f"sets, {name} / exact",
            measured=f"median of a query: {what}; recall@{AT} {np.mean(found):.3f}",
            unit="ms",
            detail=faiss,
            note=f"{index.about}.",
            **Sides(
                ours_R=1e3 * np.array([taken for _, taken in ours]),
                reference_R=1e3 * np.array([taken for _, taken in theirs]),
            ).numbers(invert=True),
        )
        yield Measurement.of_two(
            (index.stored.nbytes + index.encoded_GF.nbytes) / 2**20,
            gallery_GKD.nbytes / 2**20,
            name=f"sets, {name}: memory",
            measured=f"of the index: {what}; reference: the vectors in float32",
            unit="MiB",
            detail=faiss,
        )


def clustered(size: SetsSize) -> tuple[Tensor, Tensor]:
    """Return a gallery whose sets hold vectors near four of many themes, and queries near half of a set's vectors."""
    torch.manual_seed(0)
    count, themes, width = size.vectors, size.themes, size.width
    theme_TD, shared = l2_normalise(torch.randn(themes, width)), count // 4
    gallery_GKD = theme_TD[torch.randint(themes, (size.gallery, 4)).repeat_interleave(shared, dim=1)]
    gallery_GKD = l2_normalise(gallery_GKD + 0.8 * l2_normalise(torch.randn_like(gallery_GKD)))
    place_Q1 = torch.randint(size.gallery, (2 * size.queries, 1))
    near_QLD = gallery_GKD[place_Q1, torch.rand(len(place_Q1), count).argsort(dim=1)[:, : count // 2]]
    return gallery_GKD, l2_normalise(near_QLD + 0.6 * l2_normalise(torch.randn_like(near_QLD)))


def _both(index: Index, exact: Exact, query: Tensor) -> tuple[tuple[TopK, float], tuple[TopK, float]]:
    """Return what both find, each with its seconds, one after the other."""
    found: list[list[TopK]] = [[], []]
    taken = [
        seconds(lambda each=each, into=into: into.extend(each.top(query, AT)))
        for each, into in zip((index, exact), found, strict=True)
    ]
    return (found[0][0], taken[0]), (found[1][0], taken[1])


def _shared(ours: TopK, theirs: TopK) -> float:
    return float(torch.isin(ours.place_K, theirs.place_K).double().mean())


def _has_faiss() -> bool:
    try:
        Faiss(torch.eye(2), torch.eye(2))
    except InputError:
        return False
    return True
