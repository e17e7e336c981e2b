"""Descriptions of an evaluation's metrics, as JSON artifacts of a run, validated on reading.

`metrics/<protocol>.json` describes the metrics, the primary one first; the tag `metrics.<protocol>` holds the SHA-256
of that file, so that equal files of many runs are read once. `per_query/<protocol>.json` describes how metrics are
computed from the arrays in the file of that name. The tag `protocol_version.<protocol>` holds the protocol's version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain
from polypool.infra.files import parse_json
from polypool.tasks.adapter import Metric, QueryMetric

TAG = "metrics."
# Prefix of the name of a split in `TaskAdapter.describe`: the number of its samples that were left out.
LEFT_OUT = "left_out_"
ORIGIN = "_origin"
"""Suffix of the tag with the origin of a feature store, see `polypool.infra.store.manifest.Manifest.origin`."""
VERSION_TAG = "protocol_version."
TRAINED_ON = "trained_on"
"""Tag of a run with scores on other data than its training data: the name of the training data set."""
FOLDER = "metrics"  # artifact folder of the descriptions of metrics
QUERIES = "per_query"  # artifact folder of per-query results
_DIGEST = "sha256:"
_WHAT = "descriptions of metrics, which `polypool evaluate` writes"


def file_name(protocol: str) -> str:
    """Return the name of a protocol's files, without suffix."""
    return protocol.replace("/", "-")


def metrics_file(protocol: str) -> str:
    """Return the artifact that describes the metrics of a protocol."""
    return f"{FOLDER}/{file_name(protocol)}.json"


def query_files(protocol: str) -> tuple[str, str]:
    """Return the artifacts with the per-query results, and with the definition of metrics from them."""
    return f"{QUERIES}/{file_name(protocol)}.npz", f"{QUERIES}/{file_name(protocol)}.json"


def metrics_json(metrics: Sequence[Metric]) -> bytes:
    """Return descriptions of metrics as JSON."""
    return json.dumps([_plain(metric) for metric in metrics], indent=1).encode()


def metrics_tag(protocol: str, description: bytes) -> dict[str, str]:
    """Return the tag of a description from `metrics_json`."""
    return {TAG + protocol: _DIGEST + hashlib.sha256(description).hexdigest()}


def metrics_from(
    tags: Mapping[str, str], protocol: str, *, run: str, read: Callable[[str], bytes]
) -> tuple[Metric, ...]:
    """Return the metrics that a run describes, the primary one first; empty if it describes none.

    Args:
        tags: of the run.
        protocol: under which it was scored.
        run: its id, for messages.
        read: returns an artifact of the run by name; called on a cache miss.

    Raises:
        InputError: the description is missing, damaged, or does not match the tag; the message names run, file, place
            and field.
    """
    tag = tags.get(TAG + protocol)
    if tag is None:
        return ()
    if tag in _BY_DIGEST:
        return _BY_DIGEST[tag]
    name = metrics_file(protocol)
    text = read(name)
    if metrics_tag(protocol, text)[TAG + protocol] != tag:
        raise InputError(
            f"run {run}: the tag {TAG}{protocol} is not that of {name}; score the run again with `polypool evaluate`"
        )
    where = f"run {run}: {name}"
    _BY_DIGEST[tag] = from_plain(tuple[Metric, ...], parse_json(text, where=where, what=_WHAT), where=where)
    return _BY_DIGEST[tag]


_BY_DIGEST: dict[str, tuple[Metric, ...]] = {}


def queries_json(query_metrics: Sequence[QueryMetric]) -> str:
    """Return the definition of metrics from per-query results, as JSON."""
    return json.dumps([_plain(metric) for metric in query_metrics], indent=1)


def queries_from(text: str, *, where: str) -> tuple[QueryMetric, ...]:
    """Return the definitions from `queries_json`.

    Raises:
        InputError: invalid JSON; the message starts with `where` and names place and field.
    """
    return from_plain(
        tuple[QueryMetric, ...], parse_json(text.encode(), where=where, what=_WHAT), where=where
    )


def _plain(record: Any) -> dict[str, Any]:
    """Return the fields of a record that differ from their defaults; NaN, which JSON lacks, is always a default."""
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
