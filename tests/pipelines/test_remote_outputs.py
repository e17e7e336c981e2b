from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import make_corpus
from kept import keep_run
from object_storage import KEYS, Fault
from verbs import exit_code, run, sets_of

import polypool
from polypool.infra.errors import InputError
from polypool.infra.storage import cache, remote
from polypool.pipelines.commands import export
from polypool.pipelines.models.exporting import export as export_model
from polypool.tasks.datasets.corpus import Corpus, Item, Tolerance, write_corpus

LOOSE = Tolerance(allow_skipped=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def items(word: str) -> list[Item]:
    return [Item(id=str(n), split="train", captions=(f"{word} {n}", "")) for n in range(3)]


def test_a_corpus_is_written_and_replaced(bucket, tmp_path):
    url = f"{bucket.url}/corpus"
    bucket.server.faults.append(Fault(method="PUT", key="corpus.json", times=remote.ATTEMPTS))
    with pytest.raises(InputError, match=r"corpus.json: cannot be written"):
        write_corpus(url, items("nil"), source={}, tolerance=LOOSE)
    assert bucket.keys("corpus") == ["corpus/corpus.arrow", "corpus/corpus.skipped.jsonl"]
    for word in ("one", "two"):  # of one size
        write_corpus(url, items(word), source={}, tolerance=LOOSE)
        write_corpus(tmp_path / word, items(word), source={}, tolerance=LOOSE)
        assert Corpus.open(url).items("train") == Corpus.open(tmp_path / word).items("train")
    names = ["corpus.arrow", "corpus.json", "corpus.skipped.jsonl"]
    assert bucket.keys("corpus") == [f"corpus/{name}" for name in names]
    assert all(bucket.read(f"corpus/{name}") == (tmp_path / "two" / name).read_bytes() for name in names)


def test_ingest_writes_a_store_and_says_where(bucket, tmp_path):
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
    assert not [*(cache.folder() / "writing").iterdir()]


def test_a_model_is_exported_loaded_and_cached(bucket, tmp_path, capsys):
    run_id, url = keep_run(make_corpus(tmp_path, train=8, val=2, test=2)), f"{bucket.url}/models/mine"
    fault = Fault(method="PUT", key="model.safetensors")
    bucket.server.faults.append(fault)
    assert exit_code(export.main, run_id, "--out", url) == 0
    assert fault.times == 0
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
    bucket.system.delete_file(f"{bucket.name}/models/mine/run.json")
    with pytest.raises(InputError, match=rf"{url}/run.json: no such file"):
        polypool.load(url)
    assert all(
        KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in bucket.read(key) for key in bucket.keys("models")
    )
