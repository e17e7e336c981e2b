"""Models on the Hugging Face hub: pushed with a card, loaded by their URL, and refused where something is wrong."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from huggingface_hub import ModelCard
from kept import keep_run
from verbs import called

import polypool as pp
from polypool.infra.errors import AwayError, InputError
from polypool.pipelines.serving.schema import Place, Settings
from polypool.pipelines.serving.service import Service
from polypool.pipelines.serving.start import complete

URL = "hf://user/name"
SETS, TEXTS = [np.ones((3, 10), dtype=np.float32)], ["a dog and a cat"]


@pytest.fixture
def run_id(new_home, monkeypatch):
    monkeypatch.chdir(new_home)
    return keep_run(make_corpus(new_home, train=8, val=4, test=6))


def refused(message: str, verb: str, *words: object) -> None:
    """Call a verb, which has to end with one line and exit code 2."""
    code, _, err = called(verb, *words)
    assert (code, err.count("\n")) == (2, 1), err
    assert re.search(message, err), err


def test_a_pushed_model_is_loaded_by_its_url_with_and_without_a_revision(hub, run_id):
    code, said, err = called("export", run_id, "--out", URL, "--license", "mit")
    assert code == 0, err
    assert f"pp.load('{URL}')" in said
    first, repo = hub.model().head, hub.model()
    expected = pp.load(run_id).scores(SETS, TEXTS)
    torch.testing.assert_close(pp.load(URL).scores(SETS, TEXTS), expected)
    assert [title.split()[0] for title in repo.titles] == ["Export"]
    other = keep_run(replace(pp.load(run_id).run, seed=5))
    pp.export(other, URL)
    assert hub.model().head != first
    torch.testing.assert_close(pp.load(URL).scores(SETS, TEXTS), pp.load(other).scores(SETS, TEXTS))
    for revision in (first, first[:7]):
        torch.testing.assert_close(pp.load(f"{URL}@{revision}").scores(SETS, TEXTS), expected)
    hub.model().tags["v1"] = first
    torch.testing.assert_close(pp.load(f"{URL}@v1").scores(SETS, TEXTS), expected)


def test_the_card_has_what_the_hub_reads_and_the_whole_protocol(hub, run_id):
    code, _, err = called("evaluate", run_id)
    assert code == 0, err
    pp.export(run_id, URL, license="mit")
    card = ModelCard(hub.model().files["README.md"].decode())
    data, run = card.data, pp.load(run_id).run
    assert (data.library_name, data.pipeline_tag, data.license) == ("polypool", "feature-extraction", "mit")
    metrics = {f"whole/{of.metric_type}": of.metric_value for of in data.eval_results}
    assert {f"whole/{way}_R{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)} | {"whole/rsum"} <= {*metrics}
    assert {(of.dataset_name, of.dataset_config, of.dataset_split) for of in data.eval_results} == {
        (run.data.dataset, "whole", "test")
    }
    logged = pp.load(run_id).evaluate().metrics
    for name, value in logged.items():
        assert metrics[f"whole/{name.replace('/', '_')}"] == pytest.approx(value, abs=1e-4)
        assert re.search(rf"\| `{name}[^|]*` \| *{value:.2f}|\| `{name}[^|]*` \| *{value:.3f}", card.text), (
            name
        )
    for setting in (run.visual, run.text, run.aggregator, run.objective, run.optim.optimiser, run_id):
        assert setting in card.text


def test_no_licence_is_made_up(hub, new_home):
    run_id = keep_run(make_questions(new_home))
    pp.export(run_id, URL)
    card = ModelCard(hub.model().files["README.md"].decode())
    assert (card.data.license, card.data.pipeline_tag) == (None, "visual-question-answering")
    code, _, err = called("export", run_id, "--out", URL, "--license", "My Own")
    assert (code, "--license must be an identifier of the hub" in err) == (2, True)


def test_verbs_take_the_url_of_a_model(hub, run_id):
    pp.export(run_id, URL)
    code, found, err = called("search", URL, "a dog", "--k", "2")
    assert (code, found) == (0, called("search", run_id, "a dog", "--k", "2")[1]), err
    code, scores, err = called("evaluate", URL)
    assert code == 0, err
    assert re.findall("^  .*", scores, re.M) == re.findall("^  .*", called("evaluate", run_id)[1], re.M)
    settings = complete(Settings(source=URL), Place(), token_file=None)
    assert (settings.source, Service.load(settings).described.source) == (URL, "name")
    code, numbers, err = called("evaluate", URL, "--embeddings")
    assert code == 0, err
    assert "alignment" in numbers


def test_an_exported_folder_is_pushed_as_its_author_has_left_it(hub, run_id, new_home):
    pp.export(run_id, new_home / "model")
    card = new_home / "model" / "README.md"
    card.write_text(card.read_text() + "\nWritten by hand.\n")
    (new_home / "model" / "notes.pkl").write_bytes(b"private")
    pp.export("model", URL, private=True)
    text = hub.model().files["README.md"].decode()
    assert hub.model().private
    assert f"pp.load('{URL}')" in text
    assert text.endswith("\nWritten by hand.\n")
    assert {*hub.model().files} == {
        ".gitattributes",
        "README.md",
        "assets.json",
        "digests.json",
        "model.safetensors",
        "run.json",
    }
    (new_home / "model" / "run.json").write_text("{}")
    refused("run.json is damaged", "export", "model", "--out", URL)


def test_nothing_else_is_fetched_and_what_changed_is_refused(hub, run_id):
    pp.export(run_id, URL)
    files = dict(hub.model().files)
    hub.model().commit(files | {"pytorch_model.bin": b"pickled", "modeling.py": b"raise SystemExit"})
    pp.load(URL)
    assert not hub.asked("GET", ".bin") + hub.asked("GET", ".py")
    weights = bytearray(files["model.safetensors"])
    weights[-1] ^= 1
    hub.model().commit(files | {"model.safetensors": bytes(weights)})
    refused(f"{URL}: model.safetensors is damaged", "search", URL, "a dog")
    run = json.dumps(json.loads(files["run.json"]) | {"aggregator": "hostile:Thing"}).encode()
    digests = json.loads(files["digests.json"]) | {"run.json": hashlib.sha256(run).hexdigest()}
    hub.model().commit(files | {"run.json": run, "digests.json": json.dumps(digests).encode()})
    refused("hostile.*--trust hostile", "search", URL, "a dog")
    hub.model().commit({name: content for name, content in files.items() if name != "run.json"})
    refused(f"{URL}: has no run.json", "search", URL, "a dog")


def test_what_was_fetched_is_enough_without_a_connection(hub, run_id, monkeypatch):
    pp.export(run_id, URL)
    pp.load(URL)
    hub.down = True
    pp.load(URL)
    with pytest.raises(AwayError, match=r"hf://user/never/digests.json: cannot be read: "):
        pp.load("hf://user/never")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    pp.load(URL)
    with pytest.raises(InputError, match="cannot be written"):
        pp.export(run_id, URL)
