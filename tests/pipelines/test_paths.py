"""Relative paths start at the current folder if typed, at the home in recipes; runs record absolute ones."""

from __future__ import annotations

import inspect
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus
from places import ROOT
from verbs import called

import polypool as pp
from polypool.aggregators.aggregator import Aggregator
from polypool.infra.paths import FilePath, ModelName, here, home, keep_out_of_jobs
from polypool.infra.ray import private_head
from polypool.infra.registry import AGGREGATORS, ENCODERS, KINDS, TASKS
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.comparison.grouping import deviations
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.record import at_home
from polypool.pipelines.training.sweep import comparable
from polypool.tasks.run import located, portable

SMALL = ("--optim.epochs", "1", "--no-figures")


class Looked(Aggregator):
    """Plug-in aggregator that reads a file."""

    def __init__(self, dim: int, *, table: FilePath = "", then: str = "mean") -> None:
        super().__init__()


@pytest.fixture
def places(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """Return the home and the current folder."""
    for name in ("home", "there"):
        (tmp_path / name / "data").mkdir(parents=True)
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path / "there")
    return tmp_path / "home", tmp_path / "there"


def write_glove(path: Path, words: tuple[str, ...], *, dim: int) -> dict[str, torch.Tensor]:
    """Write a GloVe file; return its vectors."""
    vectors = {
        word: torch.randn(dim, generator=torch.Generator().manual_seed(n)) for n, word in enumerate(words)
    }
    path.write_text("".join(f"{word} {' '.join(map(str, x.tolist()))}\n" for word, x in vectors.items()))
    return vectors


def test_path_parameters_are_known_without_import():
    types, found = {"FilePath": FilePath, "ModelName": ModelName}, set()
    for registry in KINDS.values():
        for name in registry.built_in():
            unimported = registry.paths(name)
            parameters = inspect.signature(registry.get(name)).parameters.values()
            declared = {p.name: types[p.annotation] for p in parameters if p.annotation in types}
            assert declared.items() <= unimported.items()
            assert unimported.keys() & {p.name for p in parameters} == declared.keys()
            found |= {(registry.kind, each) for each in declared}
    assert {("encoder", "glove"), ("model", "graphs"), ("task", "cxc"), ("backbone", "name")} <= found


@pytest.mark.parametrize(
    ("registry", "spec", "absolute"),
    [
        (ENCODERS, "bigru(glove='data/g.txt', width=8)", "bigru(glove='{there}/data/g.txt', width=8)"),
        (ENCODERS, "bigru(glove=g.txt, start=data)", "bigru(glove='{there}/g.txt', start=data)"),
        (ENCODERS, "cnn(name=data, weights=w.pth)", "cnn(name=data, weights='{there}/w.pth')"),
        (ENCODERS, "bert(name=data)", "bert(name='{there}/data')"),
        (ENCODERS, "bert(name='google/other')", "bert(name='google/other')"),
        (ENCODERS, "bert(name='./gone')", "bert(name='{there}/gone')"),
        (ENCODERS, "bigru(glove='/a/g.txt')", "bigru(glove='/a/g.txt')"),
        (ENCODERS, "bigru(glove='s3://b/g.txt')", "bigru(glove='s3://b/g.txt')"),
        (ENCODERS, "other(glove='g.txt')", "other(glove='g.txt')"),
        (TASKS, "image_text(cxc='data/cxc')", "image_text(cxc='{there}/data/cxc')"),
        (KINDS["model"], "hgr(graphs='g.json')", "hgr(graphs='{there}/g.json')"),
        (AGGREGATORS, f"{__name__}:Looked(table=t.csv)", f"{__name__}:Looked(table='{{there}}/t.csv')"),
        (AGGREGATORS, "", ""),
    ],
)
def test_spec_paths_become_absolute(registry, spec, absolute, places):
    pp.infra.spec.trust_specs(spec or "mean")
    found = registry.located(spec, here)
    assert found == absolute.format(there=places[1])
    assert registry.located(found, home) == found


def test_recipe_paths_start_at_home_and_typed_paths_at_cwd(places, tmp_path):
    at, there = places
    own = read_run("msrvtt_hgr", [])
    assert (own.data.corpus, own.data.features) == (f"{at}/data/msrvtt", f"{at}/data/msrvtt/resnet152")
    assert f"glove='{at}/data/glove.42B.300d.txt'" in own.text
    assert own.model == f"hgr(graphs='{at}/data/msrvtt/sent2rolegraph.augment.json')"
    typed = [
        "--corpus",
        "data/msrvtt",
        "--features",
        "s3://b/f",
        "--text",
        "bigru(glove='data/glove.42B.300d.txt')",
    ]
    run = read_run("msrvtt_hgr", typed)
    assert (run.data.corpus, run.data.features) == (f"{there}/data/msrvtt", "s3://b/f")
    assert (run.text, run.model) == (f"bigru(glove='{there}/data/glove.42B.300d.txt')", own.model)
    file = tmp_path / "mine.yaml"
    file.write_text("base: image_text\ntext: bigru(glove=g.txt)\ndata: {corpus: data/mine, features: f}\n")
    of_file = read_run(str(file), ["--features", "f"])
    assert (of_file.data.corpus, of_file.data.features) == (f"{at}/data/mine", f"{there}/f")
    assert of_file.text == f"bigru(glove='{at}/g.txt')"
    for python in (
        pp.recipe("image_text", corpus="data/mine", features="f", texts="t"),
        pp.recipe("image_text", data={"corpus": "data/mine", "features": "f"}, texts="t"),
    ):
        assert [*map(python.data.__getattribute__, ("corpus", "features", "texts", "dataset"))] == [
            *(f"{there}/{name}" for name in ("data/mine", "f", "t")),
            "mine",
        ]
    with pytest.raises(pp.InputError, match="corpsu"):
        pp.recipe("image_text", corpsu="data/mine")
    joint = pp.recipe("mini_dinov2_joint")
    assert all(member.data.corpus.startswith(f"{at}/data/") for member in joint.members.values())


def test_runs_from_different_machines_are_comparable(places, tmp_path):
    at, _ = places
    run = read_run("msrvtt_hgr", [])
    assert located(portable(run, at), home) == run
    assert portable(run, at) == pp.infra.registry.RECIPES.get("msrvtt_hgr")()
    other = located(portable(run, at), lambda: Path("/other"))
    assert comparable(other, "/other") == comparable(run, at)
    assert at_home(other, "/other") == run  # the home of another machine
    assert at_home(run, str(at)) == run
    assert at_home(portable(run, at), "") == run  # an exported model has no home


def test_run_finds_its_data_from_any_folder(places, tmp_path, monkeypatch):
    at, there = places
    made = make_corpus(there / "data", train=8, val=4, test=5, dim=7)
    vectors = write_glove(at / "data/glove.txt", ("dog", "cat"), dim=8)
    Path("mine.yaml").write_text(
        "base: image_text\nvisual: regions(width=16)\n"
        "text: bigru(width=16, embedding=8, min_count=1, glove='data/glove.txt')\noptim: {epochs: 1, lr: 1.0e-9}\n"
    )
    words = ("--corpus", "data/corpus", "--features", "data/features", "--run-id-file", "id", "--no-figures")
    code, said, error = called("train", "mine.yaml", *words)
    assert code == 0, error
    run_id = (there / "id").read_text().strip()
    tracker = Tracker.attach(tracking_uri(at), run_id, running=False)
    assert (tracker.tag("home"), tracker.read_json("run.json")["data"]["corpus"]) == (
        str(at),
        made.data.corpus,
    )
    model = pp.load(run_id)
    number = model.model.text.encoder.words.index("dog")
    torch.testing.assert_close(
        model.model.text.encoder.embed.weight[number].cpu(), vectors["dog"], atol=1e-6, rtol=0
    )
    assert called("train", "mine.yaml", *words)[1].startswith(f"run {run_id} had finished before")
    (record,) = find_runs(tracking_uri(at), "polypool")
    assert record.params["text"] == f"bigru(width=16, embedding=8, min_count=1, glove='{at}/data/glove.txt')"
    assert record.settings["text"] == "bigru(width=16, embedding=8, min_count=1, glove='data/glove.txt')"
    moved = {name: value.replace(str(at), "/other") for name, value in record.params.items()}
    second = replace(record, run_id="b", params=moved, tags={**record.tags, "home": "/other"})
    assert deviations([record, second], "whole")[0] == {record.run_id: {}, "b": {}}
    make_corpus(tmp_path / "third/data", train=8, val=4, test=6, dim=7)
    monkeypatch.chdir(tmp_path / "third")
    assert called("evaluate", run_id)[0] == 0
    other = ("--corpus", "data/corpus", "--features", "data/features", "--data.dataset", "more")
    code, said, error = called("evaluate", run_id, *other)
    assert code == 0, error
    assert "more, test under whole" in said
    assert called("export", run_id, "--out", "model")[0] == 0
    exported = json.loads(Path("model/run.json").read_text())
    assert str(at) not in json.dumps(exported)
    assert "glove='data/glove.txt'" in exported["text"]
    assert pp.load("model").scores is not None


def test_rayignore_excludes_written_data_from_jobs(places, monkeypatch):
    at, there = places
    make_corpus(there / "data")
    for written in ("s3://b/c", at.parent / "data", at, there):
        keep_out_of_jobs(written)
    assert not (at / ".rayignore").exists()
    assert not (there / ".rayignore").exists()
    keep_out_of_jobs("mine/c")
    assert (there / ".rayignore").read_text().endswith(".git\nmine\n")
    (there / ".rayignore").unlink()
    for written in ("runs", "features/regions", "features"):
        keep_out_of_jobs(at / written)
    lines = (at / ".rayignore").read_text().splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ["data", "runs", "mlartifacts", "mlflow.db*", ".venv*", ".git", "features"]
    (at / ".rayignore").write_text("mine\n")
    keep_out_of_jobs(at / "other")
    assert (at / ".rayignore").read_text() == "mine\n"
    (there / "t.csv").write_text("image,text\na.jpg,a dog\n")
    monkeypatch.setenv("POLYPOOL_HOME", str(there))
    assert called("ingest", "arrays", "--dir", "gone", "--out", "o")[0] == 2
    assert not (there / ".rayignore").exists()


@pytest.mark.slow
def test_glove_and_role_graph_recipe_trains_as_two_worker_job(places):
    """Run the job of docs/train.md from a folder other than the home."""
    at, there = places
    made = make_corpus(at / "data", train=8, val=4, test=4, dim=7)
    (at / "data/corpus").rename(at / "data/msrvtt")
    (at / "data/features").rename(at / "data/msrvtt/resnet152")
    write_glove(at / "data/glove.42B.300d.txt", ("dog", "cat", "a"), dim=300)
    graph = [{"0": {"role": "ROOT", "spans": []}, "1": {"role": "V", "spans": [0]}}, [["0", "1", "V"]]]
    (at / "data/msrvtt/sent2rolegraph.augment.json").write_text(json.dumps({"a dog and a cat": graph}))
    assert made.data.corpus == f"{at}/data/corpus"
    words = [
        "train",
        "msrvtt_hgr",
        "--workers",
        "2",
        "--cpus",
        "1",
        "--protocol",
        "whole",
        "--optim.batch",
        "4",
        *SMALL,
    ]
    shown: list[str] = []

    holding = threading.Event()
    with private_head(cpus=2) as head, ThreadPoolExecutor(1) as pool:
        hold = {"folder": there, "env": {}, "show": lambda line: line == "holding" and holding.set()}
        holder = pool.submit(head.run, ["python", "-c", HOLDER], **hold)
        assert holding.wait(120)
        env = {"POLYPOOL_HOME": str(at), "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}
        head.run(["python", "-m", "polypool", *words], folder=there, env=env, show=shown.append)
        holder.result()
    (run,) = find_runs(tracking_uri(at), "polypool")
    assert run.params["workers"] == "2"
    assert run.params["model"] == f"hgr(graphs='{at}/data/msrvtt/sent2rolegraph.augment.json')"
    assert run.metrics["whole/rsum"] > 0
    assert any("role graphs of" in line and "from" in line for line in shown)
    (said, *_) = (line for line in shown if "waiting for 2 cores" in line)
    assert re.search(r"\(0 are free\); `python -c .*` uses 2 \(job raysubmit_\w+, `ray job stop", said)
    assert not any("training failed" in line for line in shown)


HOLDER = """
import ray, time
ray.init()
@ray.remote(num_cpus=2)
class Holder:
    def hold(self, seconds):
        time.sleep(seconds)
holder = Holder.remote()
ray.get(holder.hold.remote(0))
print("holding", flush=True)
ray.get(holder.hold.remote(90))
"""
