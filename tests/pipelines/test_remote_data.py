from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import in_process
import pytest
from corpora import make_corpus, make_questions
from object_storage import KEYS, Bucket, Fault, cut
from searchable import with_texts
from tiny_models import save_bert

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import launch
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.open_corpora import open_corpus
from polypool.tasks.run import Run


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "fit", in_process.fit)
    monkeypatch.setattr(launch, "ray_beside", nullcontext)
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "home").mkdir()


def moved(run: Run, bucket: Bucket) -> Run:
    """Return the run on a copy of its data in a bucket; the data here is deleted."""
    data = run.data
    folders = {name: Path(getattr(data, name)) for name in ("corpus", "features", "texts")}
    urls = {name: bucket.put(folder, f"data/{name}") for name, folder in folders.items()}
    shutil.rmtree(Path(data.corpus).parent)
    return replace(run, data=replace(data, **urls))


def test_a_run_on_remote_data_ends_as_one_on_local_data(bucket, tmp_path, capsys, monkeypatch):
    bert = save_bert(tmp_path / "tiny-bert")
    monkeypatch.chdir(tmp_path)  # where search finds it by its name
    corpus = make_corpus(tmp_path / "data", train=16, val=4, test=6)
    run = with_texts(corpus, tmp_path / "data" / "texts", f"bert(name={bert!r})")
    run = replace(run, optim=replace(run.optim, epochs=1), figures=False)
    local = launch.start(run)
    found = [hit.id for hit in load(local).search("a dog", k=3)]
    fault = Fault(spoil=cut(300), key="arrow", times=2)
    bucket.server.faults.append(fault)
    remote = launch.start(moved(run, bucket))
    assert fault.times == 0
    uri = tracking_uri(tmp_path / "home")
    here, there = (Tracker.attach(uri, run_id, running=False) for run_id in (local, remote))
    for name in ("whole/rsum", "dev/rsum", "train/loss"):
        assert here.metrics()[name] == there.metrics()[name]
    for digest in ("data.corpus", "data.features", "data.texts"):
        assert here.tag(digest) == there.tag(digest)
    model = load(remote)
    assert model.evaluate().metrics["rsum"] == there.metrics()["whole/rsum"]
    assert [hit.id for hit in model.search("a dog", k=3)] == found
    written = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert len(written) > 10
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    assert not [path for path in written if secret.encode() in path.read_bytes()]
    said = capsys.readouterr()
    assert secret not in said.out + said.err


def test_corpora_of_both_kinds_are_opened_by_their_url(bucket, tmp_path):
    for make in (make_corpus, make_questions):
        run = make(tmp_path / make.__name__, train=4, val=2, test=2)
        here, url = open_corpus(run.data.corpus), bucket.put(Path(run.data.corpus), f"{make.__name__}/corpus")
        there = open_corpus(url)
        assert type(there) is type(here)
        assert (there.digest, str(there.folder)) == (here.digest, url)
        assert there.items("train") == here.items("train")


def test_a_corpus_that_comes_cut_or_other_than_written(bucket, tmp_path):
    run = make_corpus(tmp_path / "data", train=4, val=2, test=2)
    url = bucket.put(Path(run.data.corpus), "corpus")
    bucket.server.faults.append(Fault(spoil=lambda body: [bytes(len(body))], key="corpus.arrow", times=2))
    with pytest.raises(InputError, match=r"s3://.*/corpus.arrow: its bytes are not those that were written"):
        Corpus.open(url)
    bucket.server.faults.append(Fault(spoil=cut(50), key="corpus.arrow", times=3))
    assert Corpus.open(url).splits == Corpus.open(run.data.corpus).splits
    with pytest.raises(
        InputError, match=r"s3://.*/nowhere/corpus.json: no such file; expected the manifest of a corpus"
    ):
        open_corpus(f"{bucket.url}/nowhere")
    bucket.server.faults.append(Fault(key="corpus.json", status="403 Forbidden", method="HEAD", times=99))
    with pytest.raises(InputError, match=r"may not be read: .* Credentials are taken from the environment"):
        Corpus.open(url)
