"""The archives of our own runs give the tables that this repository shows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from places import ROOT

from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.result_files import read_results

RESULTS = ROOT / "docs" / "results"


def test_photographs_tuned_alike(tmp_path: Path):
    archive = RESULTS / "runs" / "coco_mini.parquet"
    found = compare(f"sqlite:///{tmp_path}/none.db", "none", archives=[archive], baseline="mean").results
    shown = read_results(RESULTS / "rows.csv#tuned_bfloat16")
    assert len(found) == len(shown)
    for ours, theirs in zip(found, shown, strict=True):
        for field in fields(ours):
            if field.name not in ("compared_by", "table"):
                value, expected = getattr(ours, field.name), getattr(theirs, field.name)
                exact = not isinstance(expected, float)
                assert value == (expected if exact else pytest.approx(expected, rel=1e-8, nan_ok=True)), field
