"""Ours beside the published numbers of other methods, under protocols that have some."""

from __future__ import annotations

from collections.abc import Mapping

from polypool.infra.text_tables import Table
from polypool.pipelines.comparison.groups import Group
from polypool.pipelines.comparison.tables.published_rows import PUBLISHED

OURS = "ours"


def methods(group: Group) -> Table | None:
    """Return the table of a group's rows and other methods; None if its protocol has no published numbers."""
    if group.metric is None:
        return None
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
    lines = [(value, name, "no", OURS) for name, value in ours.items()]
    lines += [(of.value, of.method, "yes" if of.references else "no", of.source) for of in published]
    lines.sort(key=lambda line: (-line[0], line[1]))
    told = any(of.references for of in published)
    return Table(
        title=title,
        legend=("references: whether captions that people wrote for the image are read",) if told else (),
        header=("method", metric, *(("references",) if told else ()), "source"),
        rows=tuple(
            (name, f"{value:.1f}", *((read,) if told else ()), source) for value, name, read, source in lines
        ),
    )
