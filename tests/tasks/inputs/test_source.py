"""How features were made, as the assets of a run keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from searchable import with_clips, with_pictures

from encoders.backbones.cells import Cells
from infra.registry import TASKS
from infra.store import FeatureStore, StoreWriter
from tasks.inputs.source import FeatureSource


def test_assets_name_the_store_as_the_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    run = with_pictures(tmp_path, train=4, val=2, test=2)
    run = replace(run, data=replace(run.data, corpus="corpus", features="cells"))
    backbone = Cells(grid=2, pixels=8)
    assert TASKS.build(run.task, run).assets["feature_source"] == {
        "store": "cells",
        "dim": backbone.dim,
        "dtype": "float16",
        "source": {"extractor": backbone.describe(), "batch": 16},
    }


def test_what_a_store_of_videos_says_is_kept(tmp_path: Path) -> None:
    store = FeatureStore.open(with_clips(tmp_path).data.features)
    made, said = FeatureSource.of(store), store.manifest.source
    assert (made.store, made.dim) == (str(tmp_path / "cells"), store.dim)
    assert made.source == {name: said[name] for name in ("extractor", "video", "batch")}


def test_of_another_program_the_reader_is_kept_and_nothing_of_this_machine(tmp_path: Path) -> None:
    source = {"reader": "scan", "files": ["/home/me/test_ims.npy"]}
    with StoreWriter(tmp_path, dim=2, dtype="float32", source=source) as writer:
        writer.add("a", np.ones((1, 2)))
    assert FeatureSource.of(FeatureStore.open(tmp_path)).source == {"reader": "scan"}
