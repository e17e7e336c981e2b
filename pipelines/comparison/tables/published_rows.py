"""Published numbers of other methods, under protocols for which no recipe repeats a paper, to be shown beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A method's number.

    Attributes:
        method: its name.
        value: of the metric.
        source: the table that prints it.
        references: whether the method reads captions that people wrote for the image; ours read the image alone.
    """

    method: str
    value: float
    source: str
    references: bool = False


_CLIPSCORE = "Hessel et al., CLIPScore, EMNLP 2021, table"
_PACS = "Sarto et al., PAC-S, CVPR 2023, table 1"


def _rows(
    *, table: int, clipscore: Mapping[str, float], pacs: Mapping[str, float]
) -> tuple[PublishedRow, ...]:
    sources = {f"{_CLIPSCORE} {table}": clipscore, _PACS: pacs}
    return tuple(
        PublishedRow(method=name, value=value, references=name not in ("CLIP-S", "PAC-S"), source=source)
        for source, values in sources.items()
        for name, value in values.items()
    )


PUBLISHED: Mapping[str, tuple[PublishedRow, ...]] = {
    "f8k-1k/rsum": (
        PublishedRow(method="UVSE", value=214.9, source="Kiros et al., 2014, arXiv 1411.2539"),
        PublishedRow(
            method="UVSE, the released code", value=247.4, source="ryankiros/visual-semantic-embedding"
        ),
        PublishedRow(method="CCA on means of word vectors", value=257.4, source="Klein et al., CVPR 2015"),
    ),
    "flickr8k-expert/tau_c": _rows(
        table=1,
        clipscore={
            "BLEU-4": 30.8,
            "ROUGE-L": 32.3,
            "METEOR": 41.8,
            "CIDEr": 43.9,
            "SPICE": 44.9,
            "TIGEr": 49.3,
            "ViLBERTScore-F": 50.1,
            "CLIP-S": 51.2,
            "RefCLIP-S": 53.0,
        },
        pacs={"PAC-S": 54.3, "RefPAC-S": 55.9},
    ),
    "flickr8k-crowd/tau_b": _rows(
        table=2,
        clipscore={
            "BLEU-4": 16.9,
            "ROUGE-L": 19.9,
            "METEOR": 22.2,
            "SPICE": 24.4,
            "CIDEr": 24.6,
            "CLIP-S": 34.4,
            "RefCLIP-S": 36.4,
        },
        pacs={"PAC-S": 36.0, "RefPAC-S": 37.6},
    ),
}
"""By protocol and metric. Kendall's tau is in per cent, of all pairs that the protocol scores; an RSUM sums the six
recalls that the source prints, on full-size photographs."""
