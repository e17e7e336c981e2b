"""Corpora, features and models in object storage: read like local ones, and written by verbs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus
from object_storage import KEYS, Bucket
from searchable import with_texts
from tiny_models import save_bert
from untrained_runs import track_untrained
from verbs import exit_code, run, sets_of

import polypool
from polypool.infra.errors import InputError
from polypool.infra.storage import cache_folder
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.commands import export
from polypool.pipelines.models.exporting import export as export_model
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import train as training
from polypool.tasks.datasets.corpus import Corpus, Item, Tolerance, write_corpus
from polypool.tasks.run import Run


@pytest.fixture(autouse=True)
def here(new_home, monkeypatch) -> None:
    monkeypatch.chdir(new_home)


def moved(run: Run, bucket: Bucket) -> Run:
    """Return the run on a copy of its data in a bucket; the local data is deleted."""
    data = run.data
    folders = {name: Path(getattr(data, name)) for name in ("corpus", "features", "texts")}
    urls = {name: bucket.put(folder, f"data/{name}") for name, folder in folders.items()}
    shutil.rmtree(Path(data.corpus).parent)
    return replace(run, data=replace(data, **urls))


def test_remote_and_local_data_give_equal_results(bucket, tmp_path, capsys, monkeypatch):
    bert = save_bert(tmp_path / "tiny-bert")
    monkeypatch.chdir(tmp_path)  # search finds the text model from here
    corpus = make_corpus(tmp_path / "data", train=16, val=4, test=6)
    run = with_texts(corpus, tmp_path / "data" / "texts", f"bert(name={bert!r})")
    run = replace(run, optim=replace(run.optim, epochs=1), figures=False)
    local = training.start(run)
    found = [hit.id for hit in load(local).search("a dog", k=3)]
    remote = training.start(moved(run, bucket))
    assert len(bucket.asked("corpus.arrow")) == 1
    uri = tracking_uri(tmp_path)
    here, there = (Tracker.attach(uri, run_id, running=False) for run_id in (local, remote))
    for name in ("whole/rsum", "dev/rsum", "train/loss"):
        assert here.metrics()[name] == there.metrics()[name]
    for digest in ("data.corpus", "data.features", "data.texts"):
        assert here.tag(digest) == there.tag(digest)
    model = load(remote)
    assert model.evaluate().metrics["rsum"] == there.metrics()["whole/rsum"]
    assert [hit.id for hit in model.search("a dog", k=3)] == found
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    assert not [path for path in written if secret.encode() in path.read_bytes()]
    said = capsys.readouterr()
    assert secret not in said.out + said.err


LOOSE = Tolerance(allow_skipped=True)


def items(word: str) -> list[Item]:
    return [Item(id=str(n), split="train", captions=(f"{word} {n}", "")) for n in range(3)]


def test_remote_corpus_is_written_and_replaced(bucket, tmp_path):
    url = f"{bucket.url}/corpus"
    for word in ("one", "two"):  # equal file sizes
        write_corpus(url, items(word), source={}, tolerance=LOOSE)
        write_corpus(tmp_path / word, items(word), source={}, tolerance=LOOSE)
        assert Corpus.open(url).items("train") == Corpus.open(tmp_path / word).items("train")
    names = ["corpus.arrow", "corpus.json", "corpus.skipped.jsonl"]
    assert bucket.keys("corpus") == [f"corpus/{name}" for name in names]
    assert all(bucket.read(f"corpus/{name}") == (tmp_path / "two" / name).read_bytes() for name in names)


def test_ingest_writes_feature_store_to_bucket(bucket, tmp_path):
    (tmp_path / "arrays").mkdir()
    for n in range(3):
        np.save(tmp_path / "arrays" / f"{n}.npy", np.full((2, 4), n, np.float32))
    write_corpus(f"{bucket.url}/corpus", items("one"), source={}, tolerance=LOOSE)
    url, corpus = f"{bucket.url}/data/store", ["--corpus", f"{bucket.url}/corpus"]
    code, out, err = run("arrays", "--dir", tmp_path / "arrays", "--out", url, *corpus)
    assert code == 0, err
    assert f"{url}: 3 sets" in out
    assert json.loads(bucket.read("data/store/unmatched.json")) == {"captions only": [], "features only": []}
    assert {id: x_ND[0, 0] for id, x_ND in sets_of(url).items()} == {"0": 0, "1": 1, "2": 2}
    assert run("verify", "--store", url)[0] == 0
    code, _, err = run("arrays", "--dir", tmp_path / "arrays", "--out", url)
    assert code == 2
    assert f"error: {url}: is complete" in err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("s3")]
    assert not [*(cache_folder() / "writing").glob("*/*")]


def test_exported_remote_model_is_loaded_and_cached(bucket, tmp_path, capsys):
    run_id, url = track_untrained(make_corpus(tmp_path, train=8, val=2, test=2)), f"{bucket.url}/models/mine"
    assert exit_code(export.main, run_id, "--out", url) == 0
    said = capsys.readouterr().out
    assert f"written to {url}" in said
    assert f"pp.load('{url}')" in said
    export_model(run_id, tmp_path / "here")
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert [key.rpartition("/")[2] for key in bucket.keys("models")] == names
    sets, texts = [np.ones((2, 10), np.float32)], ["a dog"]
    expected = polypool.load(tmp_path / "here").scores(sets, texts)
    assert torch.equal(polypool.load(url).scores(sets, texts), expected)
    asked = len(bucket.asked("model.safetensors"))
    assert torch.equal(polypool.load(url).scores(sets, texts), expected)
    assert len(bucket.asked("model.safetensors")) == asked
    with pytest.raises(InputError, match="exists already"):
        export_model(run_id, Path(url))
    bucket.system.delete_file(f"{bucket.name}/models/mine/digests.json")
    with pytest.raises(InputError, match=rf"{url}/digests.json: no such file"):
        polypool.load(url)
    assert all(
        KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in bucket.read(key) for key in bucket.keys("models")
    )
