"""User features in every supported layout: ingested, trained on and searched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from corpora import make_corpus
from downloads import write_questions, write_tsv
from fake_extractor import in_this_process
from pictures import noise
from toy import trainer_of
from verbs import called, ingested, refused, sets_of

from polypool.infra.store import FeatureStore
from polypool.pipelines.models.search import Query
from polypool.pipelines.models.trained import TrainedModel
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.train import prepare

IDS = [str(number) for number in range(19)]
SMALL = ("--visual", "regions(width=16, standardise=auto)", "--optim.epochs", "1", "--no-figures")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 19 images, 8 of them for training."""
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder, train=8, val=4, test=7, images=folder / "images")
    for id in IDS:
        noise(seed=int(id)).save(folder / "images" / f"{id}.png")
    return folder / "corpus"


DIM = 12
RANDOM = np.random.default_rng(0)
ADAPTIVE = {id: RANDOM.standard_normal((2 + int(id) % 4, DIM)).astype(np.float32) for id in IDS}
FIXED = {id: RANDOM.standard_normal((4, DIM)).astype(np.float32) for id in IDS}
Sets = Mapping[str, np.ndarray]


def openvqa(folder: Path, sets: Sets) -> str:
    """Archives of bottom-up-attention.pytorch, transposed as for OpenVQA and MCAN."""
    for id, x_ND in sets.items():
        sides = {"image_w": 640, "image_h": 480, "info": np.array({"objects": []}, object)}
        boxes = {"bbox": np.ones((len(x_ND), 4), "f4"), "num_bbox": len(x_ND)}
        np.savez_compressed(folder / f"{id}.npz", x=x_ND.T, **boxes, **sides)
    return f"arrays --dir {folder}"


def vatex(folder: Path, sets: Sets) -> str:
    """I3D arrays, 1 x T x D; mmf writes an info object for each."""
    for id, x_ND in sets.items():
        np.save(folder / f"{id}.npy", x_ND[None])
        np.save(folder / f"{id}_info.npy", np.array({"image_id": id}, object), allow_pickle=True)
    return f"arrays --dir {folder}"


def paths(folder: Path, sets: Sets) -> str:
    for id, x_ND in sets.items():
        np.save(folder / f"picture {id}.npy", x_ND)
    rows = "".join(f"picture {id}.npy,{id}\n" for id in sets)
    (folder / "list.csv").write_text(f"path,id\n{rows}")
    return f"arrays --file {folder / 'list.csv'}"


def grid(folder: Path, sets: Sets) -> str:
    """Tensors of grid-feats-vqa, 1 x D x H x W."""
    for id, x_ND in sets.items():
        torch.save(torch.tensor(x_ND.T.reshape(1, DIM, 2, 2)), folder / f"{id}.pth")
    return f"arrays --dir {folder} --channels-first"


def archive(folder: Path, sets: Sets) -> str:
    np.savez(folder / "features.npz", **sets)
    return f"arrays --file {folder / 'features.npz'}"


def rows(folder: Path, sets: Sets) -> str:
    np.save(folder / "features.npy", np.stack([*sets.values()]))
    (folder / "ids.json").write_text(json.dumps([*map(int, sets)]))
    return f"arrays --file {folder / 'features.npy'} --ids {folder / 'ids.json'}"


def precomp(folder: Path, sets: Sets) -> str:
    """Arrays and files of ids by split; ids repeat for five captions, in one split rows too."""
    for name, each, ids in (("train", 5, IDS[:10]), ("test", 1, IDS[10:])):
        np.save(folder / f"{name}_ims.npy", np.repeat([sets[id] for id in ids], each, axis=0))
        (folder / f"{name}_ids.txt").write_text("\n".join(id for id in ids for _ in range(5)))
    return f"arrays --dir {folder}"


def hdf5_groups(folder: Path, sets: Sets, member: str = "features") -> str:
    with h5py.File(folder / "f.h5", "w") as file:
        for id, x_ND in sets.items():
            file[f"{id}/{member}"], file[f"{id}/boxes"] = x_ND, np.ones((len(x_ND), 4))
    return f"hdf5 --file {folder / 'f.h5'}"


def hdf5_frames(folder: Path, sets: Sets) -> str:
    return f"{hdf5_groups(folder, sets, 'frames')} --key frames"


LAYOUTS = {
    **dict.fromkeys((openvqa, vatex, paths, archive, hdf5_groups, hdf5_frames), ADAPTIVE),
    **dict.fromkeys((grid, rows, precomp), FIXED),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_all_layouts_ingest_to_same_sets(corpus, tmp_path, layout):
    sets = LAYOUTS[layout]
    (tmp_path / "in").mkdir()
    words = layout(tmp_path / "in", sets).split()
    said = ingested(*words, "--corpus", corpus, "--out", tmp_path / "out", "--dtype", "float32")
    assert "mean and deviation of the 8 sets of the split train" in said
    found = sets_of(tmp_path / "out")
    assert found.keys() == sets.keys()
    for id, x_ND in sets.items():
        np.testing.assert_array_equal(found[id], x_ND)
    if layout is openvqa:
        boxes = FeatureStore.open(tmp_path / "out").column("boxes")
        np.testing.assert_allclose(boxes[boxes.rows(["3"])[0]], [[1 / 640, 1 / 480] * 2] * len(sets["3"]))


def test_precomp_without_ids_trains_and_searches(tmp_path):
    (tmp_path / "in").mkdir()
    for split, ids in (("train", IDS[:8]), ("dev", IDS[8:12]), ("test", IDS[12:])):
        np.save(tmp_path / "in" / f"{split}_ims.npy", np.repeat([FIXED[id] for id in ids], 5, axis=0))
        captions = "".join(f"caption {n} of picture {id}\n" for id in ids for n in range(5))
        (tmp_path / "in" / f"{split}_caps.txt").write_text(captions)
    files = [tmp_path / "in" / f"{split}_ims.npy" for split in ("train", "dev", "test")]
    said = ingested("scan", "--file", *files, "--out", tmp_path / "out", "--dtype", "float32")
    assert "19 items (train 8, val 4, test 7), 95 captions" in said
    assert "mean and deviation of the 8 sets of the split train" in said
    found = sets_of(tmp_path / "out" / "regions")
    assert [*found] == [
        *(f"{name}_{n}" for name, many in (("train", 8), ("dev", 4), ("test", 7)) for n in range(many))
    ]
    np.testing.assert_array_equal(np.stack([*found.values()]), np.stack([*FIXED.values()]))
    assert walked(tmp_path / "out", tmp_path / "out" / "regions", tmp_path)[0]["whole/rsum"] > 0


def walked(corpus: Path, store: Path, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Train like `polypool train image_text`; return the test scores and the ids found by a text query."""
    run = read_run("image_text", ("--corpus", str(corpus), "--features", str(store), *SMALL))
    trainer = trainer_of(run, folder, adapter=prepare(run))
    trainer.train()
    scores = {name: value for name, value in trainer.log.rows[-1][1].items() if name.startswith("whole/")}
    search = TrainedModel(run=run, adapter=trainer.adapter, model=trainer.model.eval()).open_search()
    return scores, [hit.id for hit in search.find(Query(text="a dog and a cat"), 7)]


def test_ingested_and_extracted_features_score_equally(corpus, tmp_path, monkeypatch, capsys):
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


def test_refused_store_is_replaced_by_corrected_command(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(10):
        x_ND = np.full((2, 4), number if number else np.nan, np.float32)
        np.savez(tmp_path / "in" / f"{number}.npz", x=x_ND, bbox=np.ones((2, 4)), image_w=9, image_h=9)
    words = ("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    refused("1 of 10 sets (10.0%) were skipped", *words, code=1)
    np.savez(tmp_path / "in" / "0.npz", x=np.ones((2, 4), np.float32))
    ingested(*words, "--dtype", "float32")
    assert len(sets_of(tmp_path / "out")) == 10
    assert FeatureStore.open(tmp_path / "out").column("boxes").ids.to_pylist() == IDS[:10]
    refused("--replace", *words)
    assert FeatureStore.open(tmp_path / "out").dtype == "float32"
    ingested(*words, "--replace")
    assert FeatureStore.open(tmp_path / "out").dtype == "float16"


def test_extend_adds_regions_of_vqa_test_split(tmp_path):
    write_questions(tmp_path)
    write_tsv(tmp_path / "trainval_36", range(20), parts=2)
    write_tsv(tmp_path / "test2015_36", range(100, 104))
    questions = sorted(tmp_path.glob("*_questions.json")), sorted(tmp_path.glob("*_annotations.json"))
    corpus, store = tmp_path / "vqa2", tmp_path / "vqa2/regions"
    ingested("vqa2", "--questions", *questions[0], "--annotations", *questions[1], "--out", corpus)
    to = ("--corpus", corpus, "--out", store)
    ingested("butd", "--dir", tmp_path / "trainval_36", *to)
    before, more = FeatureStore.open(store), ("butd", "--dir", tmp_path / "test2015_36", *to)
    refused("adds to it with --extend", *more)
    assert "questions only: 0" in ingested(*more, "--extend")
    after = FeatureStore.open(store)
    assert after.ids.to_pylist() == [*before.ids.to_pylist(), *map(str, range(100, 104))]
    assert after.column("boxes").ids.to_pylist() == after.ids.to_pylist()
    assert after.manifest.statistics == before.manifest.statistics
    assert len(after.manifest.source["files"]) == 3
    assert "4 x a set that the store has" in ingested(*more, "--extend")
    assert FeatureStore.open(store).digest == after.digest
    (tmp_path / "own").mkdir()
    for name in ("a", "b"):
        np.save(tmp_path / f"own/{name}.npy", np.ones((2, 2048), np.float32))
    words = ("arrays", "--dir", tmp_path / "own", "--out", store, "--extend")
    refused("holds a complete store that was made with another", *words)
