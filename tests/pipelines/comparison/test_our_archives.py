"""The archives of our own runs give the tables that this repository shows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from places import ROOT

from polypool.pipelines.comparison.choice import Choice
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.result_files import read_results

RESULTS = ROOT / "docs" / "results"
OVER_FOUR = ["mean", "max", "kmax", "gpo", "lip", "esa", "softpool", "attention", "abmilp", "logsumexp"]
OVER_FOUR += ["acmil", "dsmil", "simpool"]
TABLES = {
    "tuned": (["coco_mini"], {"baseline": "mean"}),
    "tuned_four": (
        ["coco_mini_all", "msrvtt_mini_all", "daquar", "flickr8k"],
        {"choice": Choice(aggregators=OVER_FOUR)},
    ),
    "tuned_four_xeon": (
        ["coco_mini", "msrvtt_mini", "daquar", "flickr8k"],
        {"choice": Choice(aggregators=OVER_FOUR)},
    ),
    "tuned_all": (["coco_mini_all"], {"baseline": "mean"}),
    "tuned_three": (["coco_mini_all", "msrvtt_mini_all", "daquar", "daquar_more", "daquar_blocks"], {}),
    "elements": (["elements"], {}),
    "tuned_both": (
        ["coco_mini_both", "coco_mini"],
        {"choice": Choice(aggregators=("mean", "max", "esa", "softpool", "lip", "gpo"))},
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_poolings_tuned_alike(table, tmp_path: Path):
    names, options = TABLES[table]
    archives = [RESULTS / "runs" / f"{name}.parquet" for name in names]
    found = compare(f"sqlite:///{tmp_path}/none.db", "none", archives=archives, **options).results
    shown = read_results(RESULTS / f"rows.csv#{table}")
    assert len(found) == len(shown)
    for ours, theirs in zip(found, shown, strict=True):
        for field in fields(ours):
            if field.name not in ("compared_by", "table"):
                value, expected = getattr(ours, field.name), getattr(theirs, field.name)
                exact = not isinstance(expected, float)
                assert value == (expected if exact else pytest.approx(expected, rel=1e-8, nan_ok=True)), field
