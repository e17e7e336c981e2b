"""Specs in data may name only registered parts: code of untrusted modules never runs."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import make_corpus
from pictures import noise
from searchable import untrained, with_pictures
from tiny_models import save_bert
from toy import toy_run
from transformers import AutoConfig, AutoModel
from untrained_runs import track_untrained
from verbs import called

import polypool
from polypool.encoders.backbones.hub import from_config, from_hub
from polypool.infra import spec as parsing
from polypool.infra.digests import write_digests
from polypool.infra.errors import InputError
from polypool.infra.registry import KINDS
from polypool.infra.spec import trust_specs, trusted
from polypool.infra.store.manifest import Manifest
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.commands.search import search
from polypool.pipelines.models.search import Query
from polypool.pipelines.models.trained import load
from polypool.pipelines.recipes.arguments import read_config
from polypool.pipelines.training.sweep import Trial, match_trials, records_of
from polypool.tasks.run import Run, from_json, modules, specs, to_json

HOSTILE = """
from pathlib import Path

from polypool.aggregators.averages.mean import Mean

Path({marker!r}).touch()


class Thing(Mean):
    pass


def made(*args, **kwargs):
    raise AssertionError("this was called")
"""


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch):
    monkeypatch.setattr(parsing, "_trusted", set())


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """A file that the code of the module `hostile` creates; the module is on the path."""
    path = tmp_path / "code-ran"
    (tmp_path / "hostile.py").write_text(HOSTILE.format(marker=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    return path


@pytest.fixture(scope="module")
def run(home) -> Run:
    return make_corpus(home, train=8, val=4, test=4)


@pytest.fixture(scope="module")
def kept(run) -> str:
    """Return the id of a recorded run, whose `files` tests change and restore."""
    run_id = track_untrained(run)
    Tracker.attach(polypool_uri(), run_id, running=False).json("run.json", to_json(run))
    return run_id


def polypool_uri() -> str:
    return tracking_uri(Path(os.environ["POLYPOOL_HOME"]))


@pytest.fixture
def files(kept) -> Path:
    """The run's artifacts, which everybody with write access to a shared server can change."""
    folder = Tracker.attach(polypool_uri(), kept, running=False).download("run.json").parent
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    yield folder
    for path, data in before.items():
        path.write_bytes(data)


def change(path: Path, **fields: object) -> None:
    """Change fields of a JSON file and update its checksum, as an attacker would."""
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | fields))
    if (digests := path.with_name("digests.json")).exists():
        write_digests(path.parent, [*json.loads(digests.read_text())])


def test_tampered_export_runs_no_code(files, tmp_path):
    folder, command = tmp_path / "model", tmp_path / "command-ran"
    shutil.copytree(files / "model", folder)
    change(folder / "run.json", text="os:system")
    change(folder / "assets.json", text=f"touch {command}")
    with pytest.raises(InputError) as refused:
        polypool.load(folder)
    message = str(refused.value)
    assert message.startswith(f"{folder / 'run.json'}: text: 'os:system' names code of the module os;")
    assert "add --trust os (in Python, trust=('os',))" in message
    function = r"the encoder 'os:system' is a function, expected a class that derives"
    with pytest.raises(InputError, match=function):
        polypool.load(folder, trust=("os",))
    assert not command.exists()


FIELDS = [name for name, _ in specs(replace(toy_run(), regularisers=("mmd",)))]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "spec",
    [
        "hostile:Thing",
        " hostile:made(x=1)",
        "gcn(then=hostile:Thing)",
        "gcn(then='hostile:Thing')",
        "hgr(a=(1, ['x(b=hostile:Thing)']), c={'d': 'hostile:made'})",
    ],
)
def test_untrusted_code_in_run_fields_is_refused(field, spec, run, marker):
    values = json.loads(json.dumps(to_json(run)))
    if field == "regularisers[0]":
        values["regularisers"] = [spec]
    else:
        inside, _, last = field.rpartition(".")
        (values[inside] if inside else values)[last] = spec
    named = field.replace("[", ".").replace("]", ".")
    with pytest.raises(InputError, match=f"^here/run.json: {named}: .* hostile"):
        from_json(values, where="here/run.json")
    assert not marker.exists()
    trust_specs("hostile:Any")
    assert modules(from_json(values)) == ("hostile",)
    assert not marker.exists()


VERBS = {
    "evaluate": ("model/run.json", "evaluate", "{id}"),
    "search": ("model/run.json", "search", "{id}", "a dog"),
    "serve": ("model/run.json", "serve", "{id}"),
    "export": ("model/run.json", "export", "{id}", "--out", "{tmp}/out"),
    "rerun": ("run.json", "train", "rerun", "{id}", "--dry-run"),
    "resume": ("run.json", "train", "resume", "{id}"),
}


@pytest.mark.parametrize("name", VERBS)
def test_verbs_refuse_runs_that_name_untrusted_code(name, files, kept, marker, tmp_path):
    file, verb, *words = VERBS[name]
    change(files / file, aggregator="hostile:Thing")
    if name == "resume":  # a finished run is not resumed
        Tracker.attach(polypool_uri(), kept, running=False).finish("KILLED")
    code, _, said = called(verb, *(word.format(id=kept, tmp=tmp_path) for word in words))
    assert (code, len(said.splitlines())) == (2, 1)
    names = "aggregator: 'hostile:Thing' names code of the module hostile"
    assert all(part in said for part in ("run.json", names, "--trust hostile"))
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def test_sweep_ignores_runs_that_name_untrusted_code(files, kept, run, marker):
    change(files / "run.json", aggregator="hostile:Thing")
    (record,) = (record for record in records_of("polypool") if record.run_id == kept)
    record = replace(record, status="FINISHED")
    (found,) = match_trials([Trial(run=run)], [record])
    assert found.state == "new"
    assert "aggregator: 'hostile:Thing' names code of the module hostile" in found.note
    assert not marker.exists()


def test_untrusted_backbone_of_store_is_not_called(tmp_path, marker):
    run, cells = with_pictures(tmp_path, train=4, val=2, test=3), tmp_path / "cells"
    replace(Manifest.read(cells), source={"extractor": {"backbone": "hostile:made"}}).write(cells)
    noise().save(tmp_path / "a.png")
    finder = untrained(run).open_search()
    where = r"cells/manifest\.json: source\.extractor\.backbone"
    with pytest.raises(InputError, match=f"{where}: 'hostile:made' names code of the module hostile"):
        finder.find(Query(file=tmp_path / "a.png"), 3)
    assert not marker.exists()
    parsing.trust_modules("hostile")
    with pytest.raises(InputError, match="the backbone 'hostile:made' is a function, expected a class"):
        finder.find(Query(file=tmp_path / "a.png"), 3)


def test_plugin_run_records_and_requires_trust(run, home, tmp_path, monkeypatch):
    mine = replace(run, aggregator="mine_parts:Thing", text_aggregator="gcn(then=mine_parts:Thing)")
    (tmp_path / "mine_parts.py").write_text(HOSTILE.format(marker=str(tmp_path / "used")))
    monkeypatch.syspath_prepend(str(tmp_path))
    run_id = track_untrained(mine)
    assert Tracker.attach(tracking_uri(home), run_id, running=False).tag("trust") == "mine_parts"
    monkeypatch.setattr(parsing, "_trusted", set())
    with pytest.raises(InputError, match="--trust mine_parts"):
        search(run_id=run_id, query="a dog")
    out = tmp_path / "model"
    _, shown, _ = called("export", run_id, "--out", out, "--trust", "mine_parts")
    assert f"model = pp.load({str(out)!r}, trust=('mine_parts',))" in shown
    monkeypatch.setattr(parsing, "_trusted", set())
    with pytest.raises(InputError, match="--trust mine_parts"):
        load(out)
    assert load(out, trust=("other", "mine_parts")).run == mine
    assert load(out).run == mine, "trust must last for the whole process"
    assert trusted() == ("mine_parts", "other")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["os:system", "os:path", "subprocess:Popen", "os:environ", "os.path:join"])
def test_trusted_names_that_are_not_parts_are_not_called(kind, name, monkeypatch):
    monkeypatch.setattr(os, "system", pytest.fail)
    trust_specs(name)
    derives = "expected a class that derives"
    expected = derives if KINDS[kind].base else "that is not registered; decorate it with"
    for call in (KINDS[kind].get, KINDS[kind].build):
        with pytest.raises(InputError, match=expected):
            call(name)


@pytest.mark.parametrize(
    "name", ["os:path.join", "os:system.__call__", "os:", "os:1", ":system", "os: system"]
)
def test_only_top_level_names_of_modules_are_accepted(name):
    trust_specs("os:system")
    with pytest.raises(InputError, match=r"expected module:Name|cannot read the spec"):
        KINDS["aggregator"].build(name, 4)
    with pytest.raises(InputError, match="expected module:Name"):
        KINDS["recipe"].get(name)


def test_specs_from_command_line_and_python_are_trusted(marker):
    with pytest.raises(InputError, match="names code of the module hostile"):
        KINDS["aggregator"].build("gcn(then=hostile:Thing)", 4)
    assert not marker.exists()
    read_config("demo", ["--aggregator", "gcn(then=hostile:Thing)"])
    assert trusted() == ("hostile",)
    assert not marker.exists()
    assert polypool.aggregator("hostile:Thing", 4) is not None
    assert marker.exists()


def test_code_next_to_model_config_does_not_run(tmp_path):
    marker, folder = tmp_path / "code-ran", Path(save_bert(tmp_path / "bert"))
    (folder / "code.py").write_text(HOSTILE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    named = {"auto_map": {"AutoConfig": "code.Thing", "AutoModel": "code.Thing"}}
    assert from_config(config | named | {"attn_implementation": "somebody/kernels"}) is not None
    (folder / "config.json").write_text(json.dumps(config | named | {"model_type": "strange"}))
    for kind in (AutoConfig, AutoModel):
        with pytest.raises(InputError, match="cannot load"):
            from_hub(kind, str(folder))
    with pytest.raises(InputError, match="no model can be built of its config: "):
        from_config(config | named | {"model_type": "strange"})
    assert not marker.exists()
