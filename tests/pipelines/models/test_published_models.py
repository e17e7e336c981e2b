"""Models on the Hugging Face hub: pushed with a model card, loaded by URL, refused if damaged."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from huggingface_hub import ModelCard
from untrained_runs import track_untrained
from verbs import called

import polypool as pp
from polypool.infra.errors import AwayError, InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.tasks.scoring.records import VERSION_TAG

URL = "hf://user/name"
SETS, TEXTS = [np.ones((3, 10), dtype=np.float32)], ["a dog and a cat"]


@pytest.fixture
def run_id(new_home, monkeypatch):
    monkeypatch.chdir(new_home)
    return track_untrained(make_corpus(new_home, train=8, val=4, test=6))


def test_pushed_model_loads_by_url_and_revision(hub, run_id):
    code, said, err = called("export", run_id, "--out", URL, "--license", "mit")
    assert code == 0, err
    assert f"pp.load('{URL}')" in said
    first, repo = hub.repos["user/name"].head, hub.repos["user/name"]
    expected = pp.load(run_id).scores(SETS, TEXTS)
    torch.testing.assert_close(pp.load(URL).scores(SETS, TEXTS), expected)
    assert [title.split()[0] for title in repo.titles] == ["Export"]
    other = track_untrained(replace(pp.load(run_id).run, seed=5))
    pp.export(other, URL)
    torch.testing.assert_close(pp.load(URL).scores(SETS, TEXTS), pp.load(other).scores(SETS, TEXTS))
    torch.testing.assert_close(pp.load(f"{URL}@{first}").scores(SETS, TEXTS), expected)
    code, numbers, err = called("evaluate", URL, "--embeddings")
    assert code == 0, err
    assert "alignment" in numbers


def test_model_card_has_hub_metadata_and_all_metrics(hub, run_id, new_home):
    tracker = Tracker.attach(tracking_uri(new_home), run_id, running=False)
    tracker.log({"epoch": 3, "whole/rsum": 1.0}, step=40)  # as logged by training
    tracker.tags({f"{VERSION_TAG}test-dev/whole": "1"})
    tracker.log({"test-dev/whole/rsum": 2.0}, step=40)
    code, _, err = called("evaluate", run_id)
    assert code == 0, err
    pp.export(run_id, URL, license="mit")
    card = ModelCard(hub.repos["user/name"].files["README.md"].decode())
    data, run = card.data, pp.load(run_id).run
    assert (data.library_name, data.pipeline_tag, data.license) == ("polypool", "feature-extraction", "mit")
    metrics = {f"whole/{of.metric_type}": of.metric_value for of in data.eval_results}
    assert {(of.dataset_name, of.dataset_config, of.dataset_split) for of in data.eval_results} == {
        (run.data.dataset, "whole", "test")
    }
    for name, value in pp.load(run_id).evaluate().metrics.items():
        assert metrics[f"whole/{name.replace('/', '_')}"] == pytest.approx(value, abs=1e-4)
        assert re.search(rf"\| `{name}[^|]*` \| *{value:.2f}|\| `{name}[^|]*` \| *{value:.3f}", card.text), (
            name
        )
    for setting in (run.visual, run.text, run.aggregator, run.objective, run.optim.optimiser, run_id):
        assert setting in card.text
    pp.export(track_untrained(make_questions(new_home / "asked")), "hf://user/asked")
    data = ModelCard(hub.repos["user/asked"].files["README.md"].decode()).data
    assert (data.license, data.pipeline_tag) == (None, "visual-question-answering")


def test_pushed_folder_keeps_edited_card_without_extra_files(hub, run_id, new_home):
    pp.export(run_id, new_home / "model")
    card = new_home / "model" / "README.md"
    card.write_text(card.read_text() + "\nWritten by hand.\n")
    (new_home / "model" / "notes.pkl").write_bytes(b"private")
    pp.export("model", URL, private=True)
    repo = hub.repos["user/name"]
    text = repo.files["README.md"].decode()
    assert repo.private
    assert f"pp.load('{URL}')" in text
    assert text.endswith("\nWritten by hand.\n")
    assert {*repo.files} == {"README.md", "assets.json", "digests.json", "model.safetensors", "run.json"}
    repo.private = False
    (new_home / "model" / "run.json").write_text("{}")
    for words, message in (
        (["model", "--out", URL], "run.json is damaged"),
        ([run_id, "--out", URL, "--private"], "exists and is public"),
        ([run_id, "--out", "here", "--private"], "--private is of a repository on the hub"),
    ):
        code, _, err = called("export", *words)
        assert (code, message in err) == (2, True), err


def test_load_fetches_only_model_files_and_refuses_changes(hub, run_id):
    pp.export(run_id, URL)
    repo = hub.repos["user/name"]
    files = repo.files
    repo.commit(files | {"pytorch_model.bin": b"pickled", "modeling.py": b"raise SystemExit"})
    pp.load(URL)
    assert {*hub.fetched} == {"assets.json", "digests.json", "model.safetensors", "run.json"}
    weights = bytearray(files["model.safetensors"])
    weights[-1] ^= 1
    run = json.dumps(json.loads(files["run.json"]) | {"aggregator": "hostile:Thing"}).encode()
    digests = json.loads(files["digests.json"]) | {"run.json": hashlib.sha256(run).hexdigest()}
    for changed, message in (
        (files | {"model.safetensors": bytes(weights)}, f"{URL}: model.safetensors is damaged"),
        (files | {"run.json": run, "digests.json": json.dumps(digests).encode()}, "hostile.*--trust hostile"),
        ({name: data for name, data in files.items() if name != "run.json"}, f"{URL}: has no run.json"),
    ):
        repo.commit(changed)
        with pytest.raises(InputError, match=message) as refused:
            pp.load(URL)
        assert "\n" not in str(refused.value)
    with pytest.raises(AwayError, match=r"hf://user/never/digests.json: cannot be read: "):
        pp.load("hf://user/never")
