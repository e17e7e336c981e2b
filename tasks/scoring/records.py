"""What an evaluation's numbers mean, as JSON beside a run, and checked when it is read back.

A run's tag `metrics.<protocol>` holds its metrics, the primary one first, so that runs are ranked by their tags alone;
`protocol_version.<protocol>` says by which version of the protocol they were computed;
`per_query/<protocol>.json` says how metrics follow from the arrays in the file of that name.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from infra.errors import InputError
from infra.fields import from_plain
from tasks.base import Metric, QueryMetric

TAG = "metrics."
LEFT_OUT = "left_out_"
"""Before the name of a split, what the number of its samples that were left out is called among a run's data."""
VERSION_TAG = "protocol_version."
LIMIT = 5000
"""Characters of a tag that every version of MLflow's stores keeps."""


def metrics_tag(protocol: str, metrics: Sequence[Metric]) -> dict[str, str]:
    """Return the tag that describes metrics, of at most `LIMIT` characters.

    What does not fit is left out from the end, and first what tables do not show unasked; it cannot be sorted by.
    """
    as_json = [json.dumps(_plain(metric), ensure_ascii=False, separators=(",", ":")) for metric in metrics]
    room, fitting = LIMIT - len("[]"), set()
    for place in sorted(range(len(metrics)), key=lambda place: not metrics[place].in_tables):
        room -= len(as_json[place]) + len(",")
        if room < 0:
            break
        fitting.add(place)
    return {TAG + protocol: f"[{','.join(text for place, text in enumerate(as_json) if place in fitting)}]"}


def metrics_from(tags: Mapping[str, str], protocol: str, *, run: str) -> tuple[Metric, ...]:
    """Return the metrics that a run's tags describe, the primary one first; empty where the run has no such tag.

    Args:
        tags: of the run.
        protocol: under which it was scored.
        run: its id, for messages.

    Raises:
        InputError: the tag is damaged; the message names run, tag, place and field.
    """
    if TAG + protocol not in tags:
        return ()
    where = f"run {run}: the tag {TAG}{protocol}"
    metrics = _read(tuple[Metric, ...], tags[TAG + protocol], where=where)
    if not metrics:
        raise InputError(f"{where} describes no metric, expected at least the primary one")
    return metrics


def queries_json(query_metrics: Sequence[QueryMetric]) -> str:
    """Return as JSON how metrics follow from single queries."""
    return json.dumps([_plain(metric) for metric in query_metrics], indent=1)


def queries_from(text: str, *, where: str) -> tuple[QueryMetric, ...]:
    """Return what `queries_json` wrote.

    Raises:
        InputError: it is damaged; the message begins with `where` and names place and field.
    """
    return _read(tuple[QueryMetric, ...], text, where=where)


def _plain(record: Any) -> dict[str, Any]:
    """Return a record's fields that differ from their defaults; NaN, which JSON lacks, is always a default."""
    fields = {
        field.name: (getattr(record, field.name), field.default) for field in dataclasses.fields(record)
    }
    return {
        name: [_plain(part) if dataclasses.is_dataclass(part) else part for part in value]
        if isinstance(value, tuple)
        else value
        for name, (value, default) in fields.items()
        if value != default and not (isinstance(value, float) and math.isnan(value))
    }


_READ: dict[tuple[Any, str], Any] = {}
"""What was read before: thousands of runs have the same text."""


def _read(kind: Any, text: str, *, where: str) -> Any:
    """Return the records in a text; `where` begins the message where it is damaged."""
    if (kind, text) not in _READ:
        _READ[kind, text] = from_plain(kind, _parsed(text, where), where=where)
    return _READ[kind, text]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of over 4,300 digits
        raise InputError(
            f"{where} is no JSON: {error}; score the run again with `pipelines.evaluate`"
        ) from None
