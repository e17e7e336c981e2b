"""Corpora of which a part has no features, or no files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpora import make_corpus, make_questions
from PIL import Image
from searchable import with_clips, with_pictures

from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.registry import TASKS
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.row_settings import left_out_notes
from polypool.pipelines.training.prepare import prepare
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.inputs.corpus_inputs import FeatureSource, present
from polypool.tasks.run import Run

MAKERS = {"image_text": make_corpus, "vqa": make_questions}


def without(run: Run, folder: Path, *lacking: str) -> Run:
    """Return a run on a store that lacks some sets."""
    store = FeatureStore.open(run.data.features)
    with StoreWriter(folder, dim=store.dim, dtype="float32", source={"made": "by a test"}) as writer:
        for row, id in enumerate(store.ids.to_pylist()):
            if id not in lacking:
                writer.add(id, np.array(store[row]))
        writer.close(statistics_of=["1", "2"])
    return replace(run, data=replace(run.data, features=str(folder)))


@pytest.mark.parametrize("task", MAKERS)
def test_what_has_no_features_is_an_error_before_the_run_or_left_out_of_every_split(
    task: str, tmp_path: Path
) -> None:
    whole = MAKERS[task](tmp_path)
    full = TASKS.build(whole.task, whole)
    of_split = {split: [item.id for item in full.corpus.items(split)] for split in ("train", "val", "test")}
    lacking = [of_split["train"][0], of_split["train"][5], of_split["test"][3]]
    run = without(whole, tmp_path / "fewer", *lacking)
    with pytest.raises(
        InputError, match=f"2 of {len(of_split['train'])} images of the split 'train' .*missing skip"
    ):
        prepare(run)
    adapter = prepare(replace(run, data=replace(run.data, missing="skip")))
    for split, ids in of_split.items():
        assert [item.id for item in adapter.corpus.items(split)] == [id for id in ids if id not in lacking]
    counts = {split: full.corpus.splits[split] - adapter.corpus.splits[split] for split in of_split}
    assert adapter.left_out == {split: count for split, count in counts.items() if count}
    assert adapter.left_out.keys() == {"train", "test"}
    assert adapter.corpus.digest == full.corpus.digest
    described = adapter.describe()
    assert described["left_out_test"] == str(counts["test"])
    assert "left_out_val" not in described
    assert not [name for name in full.describe() if "left_out" in name]
    kept = adapter.data("train")
    assert (
        len(kept) == len(full.data("train")) * adapter.corpus.splits["train"] // full.corpus.splits["train"]
    )
    adapter.evaluate(adapter.model(), "test", run.protocol)


def test_a_picture_without_a_file_is_left_out_where_pictures_are_read(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    run = make_corpus(tmp_path, images=tmp_path / "pictures")
    corpus = Corpus.open(run.data.corpus)
    for number in range(60):
        Image.new("L", (2, 2)).save(tmp_path / "pictures" / f"{number}.png")
    kept = present(corpus, None)
    assert [item.id for split in kept.splits for item in kept.items(split)] == [str(n) for n in range(60)]
    assert corpus.splits["val"] - kept.splits["val"] == 4
    assert "test" not in kept.splits
    with pytest.raises(InputError, match="no items in the split 'test'"):
        kept.items("test")


def test_tables_say_which_runs_are_incomplete() -> None:
    def record(**tags: str) -> RunRecord:
        tags = {f"data.{name}": value for name, value in tags.items()}
        return RunRecord(
            run_id="a", name="", status="FINISHED", started=0, ended=0, tags=tags, params={}, metrics={}
        )

    runs = [
        record(images_test="20"),
        record(left_out_test="3", left_out_train="1"),
        record(left_out_test="3"),
    ]
    assert [*left_out_notes("t", runs[:1])] == []
    assert [*left_out_notes("t", [*runs, runs[1]])] == [
        "t: INCOMPLETE, what has no features or file is left out of 2 of 4 runs: test lacks 3, train lacks 1",
        "t: INCOMPLETE, what has no features or file is left out of 1 of 4 runs: test lacks 3",
    ]


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
