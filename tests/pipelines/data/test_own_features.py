"""Features of one's own in every layout that people bring, ingested, trained on and searched."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from annotations import write_hgr
from corpora import make_corpus
from describing import in_this_process
from pictures import noise
from toy import trainer_of
from verbs import called, ingested, refused, sets_of

from polypool.infra.store import FeatureStore
from polypool.pipelines.models.search.queries import Query
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.prepare import prepare

IDS = [str(number) for number in range(19)]
SMALL = ("--visual", "regions(width=16, standardise=auto)", "--optim.epochs", "1", "--no-figures")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 19 pictures, 8 of them to train on."""
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder, train=8, val=4, test=7, images=folder / "images")
    for id in IDS:
        noise(seed=int(id)).save(folder / "images" / f"{id}.png")
    return folder / "corpus"


def walked(corpus: Path, store: Path, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Train on a store as `polypool train image_text` does; return the test scores, and whom a picture is nearest."""
    run = read_run("image_text", ("--corpus", str(corpus), "--features", str(store), *SMALL))
    trainer = trainer_of(run, folder, adapter=prepare(run))
    trainer.train()
    scores = {name: value for name, value in trainer.log.rows[-1][1].items() if name.startswith("whole/")}
    search = TrainedModel(run=run, adapter=trainer.adapter, model=trainer.model.eval()).open_search()
    return scores, [hit.id for hit in search.find(Query(text="a dog and a cat"), 7)]


def test_features_score_the_same_by_ingest_as_by_extract(corpus, tmp_path, monkeypatch, capsys):
    in_this_process(monkeypatch)
    extracted = ("--backbone", "cells(grid=2, pixels=8)", "--out", tmp_path / "extracted")
    assert called("extract", "--corpus", corpus, *extracted)[0] == 0
    (tmp_path / "in").mkdir()
    for id, x_ND in sets_of(tmp_path / "extracted").items():
        np.save(tmp_path / "in" / f"{id}.npy", x_ND)
    words = ("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert "no statistics to standardise features by: extract, and ingest with --corpus" in ingested(*words)
    prepare(read_run("image_text", ("--corpus", str(corpus), "--features", str(tmp_path / "out"))))
    assert f"{tmp_path / 'out'}: features are not standardised" in capsys.readouterr().err
    refused("ingest does with --replace", *words, "--corpus", corpus)
    said = ingested(*words, "--corpus", corpus, "--replace")
    assert "mean and deviation of the 8 sets of the split train" in said
    stores = [FeatureStore.open(tmp_path / name) for name in ("extracted", "out")]
    assert stores[0].manifest.statistics == stores[1].manifest.statistics
    one, other = (walked(corpus, store.folder, tmp_path / store.folder.name) for store in stores)
    assert one == other
    assert "not standardised" not in capsys.readouterr().err


def test_a_refused_store_gives_way_to_the_corrected_command(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(10):
        x_ND = np.full((2, 4), number if number else np.nan, np.float32)
        np.savez(tmp_path / "in" / f"{number}.npz", x=x_ND, bbox=np.ones((2, 4)), image_w=9, image_h=9)
    words = ("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    refused("1 of 10 sets (10.0%) were left out", *words, code=1)
    np.savez(tmp_path / "in" / "0.npz", x=np.ones((2, 4), np.float32))
    ingested(*words, "--dtype", "float32")
    assert len(sets_of(tmp_path / "out")) == 10
    assert FeatureStore.open(tmp_path / "out").column("boxes").ids.to_pylist() == IDS[:10]
    refused("--replace", *words)
    assert FeatureStore.open(tmp_path / "out").dtype == "float32"
    ingested(*words, "--replace")
    assert FeatureStore.open(tmp_path / "out").dtype == "float16"


def test_one_duplicate_name_among_many_is_skipped(tmp_path):
    names = {"trn": [f"v{n}" for n in range(50)], "val": [f"w{n}" for n in range(10)], "tst": ["v3"]}
    _, splits = write_hgr(tmp_path, names)
    (tmp_path / "SA").mkdir()
    for split, listed in names.items():
        with h5py.File(tmp_path / "SA" / f"{split}_ft.hdf5", "w") as file:
            for name in listed:
                file[name] = np.ones((2, 8), np.float32)
    words = ("hgr-features", "--dir", tmp_path / "SA", "--splits", splits, "--out", tmp_path / "out")
    assert "1 x duplicate id; the first is kept: tst_names.npy, v3" in ingested(*words)
    assert len(sets_of(tmp_path / "out")) == 60
