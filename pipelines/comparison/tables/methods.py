"""Ours beside the published numbers of other methods, under protocols that have some."""

from __future__ import annotations

from collections.abc import Mapping

from polypool.infra.text_tables import Table
from polypool.pipelines.comparison.groups import Group

OURS = "ours"
PUBLISHED = {
    "f8k-1k/rsum": (
        ("UVSE", 214.9, "Kiros et al., 2014, arXiv 1411.2539"),
        ("UVSE, the released code", 247.4, "ryankiros/visual-semantic-embedding"),
        ("CCA on means of word vectors", 257.4, "Klein et al., CVPR 2015"),
    ),
}
"""Methods with their values and sources, by protocol and metric, where no recipe repeats a paper."""


def methods(group: Group) -> Table | None:
    """Return the table of a group's rows and other methods; None if its protocol has no published numbers."""
    means = {row.label: group.mean(row) for row in group.known}
    return methods_table(f"{group.title}: ours and other methods", group.protocol, group.metric.name, means)


def methods_table(title: str, protocol: str, metric: str, ours: Mapping[str, float]) -> Table | None:
    """Return ours and other methods, the best first; None if there are no published numbers.

    Args:
        title: of the table.
        protocol: under which ours were scored.
        metric: that is compared, of which more is better.
        ours: its values by the names of our rows.
    """
    published = PUBLISHED.get(f"{protocol}/{metric}")
    if not published:
        return None
    lines = [(value, name, OURS) for name, value in ours.items()]
    lines += [(value, name, source) for name, value, source in published]
    lines.sort(key=lambda line: (-line[0], line[1]))
    return Table(
        title=title,
        header=("method", metric, "source"),
        rows=tuple((name, f"{value:.1f}", source) for value, name, source in lines),
    )
