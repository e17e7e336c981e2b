"""What an evaluation's numbers mean, as JSON beside a run, and checked when it is read back.

A run's tag `metrics.<protocol>` holds its metrics, the primary one first, so that runs are ranked by their tags alone;
`protocol_version.<protocol>` says by which version of the protocol they were computed;
`per_query/<protocol>.json` says how metrics follow from the arrays in the file of that name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from infra.errors import InputError, unknown
from tasks.base import Metric, QueryMetric

TAG = "metrics."
VERSION_TAG = "protocol_version."
LIMIT = 5000
"""Characters of a tag that every version of MLflow's stores keeps."""
Record = TypeVar("Record")
_EXPECTED = {str: "text", bool: "true or false", float: "a number"}


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
    metrics = _read_list(Metric, _parsed(tags[TAG + protocol], where), where)
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
    return _read_list(QueryMetric, _parsed(text, where), where)


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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is no JSON: {error}; score the run again with `pipelines.evaluate`"
        ) from None


def _read_list(kind: type[Record], values: Any, where: str) -> tuple[Record, ...]:
    if not isinstance(values, list):
        raise InputError(f"{where} is {type(values).__name__}, expected a list")
    return tuple(_read(kind, value, f"{where}, [{place}]") for place, value in enumerate(values))


def _read(kind: type[Record], values: Any, where: str) -> Record:
    if not isinstance(values, dict):
        raise InputError(f"{where} is {values!r}, expected fields by name")
    types = typing.get_type_hints(kind)
    for name in values:
        if name not in types:
            raise unknown(f"field in {where}:", name, types)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in values:
            raise InputError(f"{where} has no {field.name}")
    return kind(**{name: _value(types[name], value, f"{where}.{name}") for name, value in values.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} is {value!r}, expected a list")
        item = typing.get_args(kind)[0]
        return tuple(_value(item, part, f"{where}[{place}]") for place, part in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _read(kind, value, where)
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if not (number or isinstance(value, kind)) or (kind is float and not math.isfinite(value)):
        raise InputError(f"{where} is {value!r}, expected {_EXPECTED[kind]}")
    return float(value) if kind is float else value
