"""The archives of our own runs give the tables that this repository shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from places import ROOT

from polypool.pipelines.comparison.choice import Choice
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.results import read_results

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


SLOW = ("tuned_four", "tuned_all", "tuned_three")
EVERY = [pytest.param(table, marks=[pytest.mark.slow] if table in SLOW else []) for table in TABLES]


@pytest.mark.parametrize("table", EVERY)
def test_poolings_tuned_alike(table, tmp_path: Path):
    names, options = TABLES[table]
    archives = [RESULTS / "runs" / f"{name}.parquet" for name in names]
    found = compare(f"sqlite:///{tmp_path}/none.db", "none", archives=archives, **options).results
    shown = read_results(RESULTS / f"rows.csv#{table}")
    for table in (found, shown):
        table.drop(columns=["compared_by", "table"], inplace=True)
    pd.testing.assert_frame_equal(found, shown, rtol=1e-8)
