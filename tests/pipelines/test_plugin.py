"""A plug-in package, installed by pip and used by every verb."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from corpora import make_corpus
from places import TESTS
from programs import begin, end
from untrained_runs import track_untrained
from verbs import called

from docs.generate.parts import part_list
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, ENCODERS, KINDS, OBJECTIVES, RECIPES
from polypool.infra.spec import trust_modules
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.commands.search import search
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models.trained import load
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training import train as start
from polypool.pipelines.training.sweep import make_plan
from polypool.tasks.datasets import Reader
from polypool.testing import listing, outcomes

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "word-pool"
version = "1.2"

[project.entry-points."polypool.tasks"]
first_word = "word_pool.task:FirstWord"

[project.entry-points."polypool.encoders"]
halves = "word_pool.parts:Halves"

[project.entry-points."polypool.aggregators"]
median = "word_pool.parts:Median"
broken = "word_pool.broken:Broken"
gpo = "word_pool.parts:Median"

[project.entry-points."polypool.readers"]
lines = "word_pool.reader:Lines"

[project.entry-points."polypool.recipes"]
first_words = "word_pool.recipes:first_words"

[tool.setuptools]
packages = ["word_pool"]
"""

ENCODER = '''
from polypool.encoders.encoder import FeatureEncoder, xavier_linear
from polypool.infra.registry import ENCODERS


@ENCODERS.register("halves")
class Halves(FeatureEncoder):
    """Two linear maps, side by side."""

    def __init__(self, assets, *, width: int = 16, standardise: bool = False):
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.one, self.other = (xavier_linear(assets["dim"], width // 2) for _ in range(2))

    def forward(self, x_BNF, mask_BN):
        x_BNF = self.features(x_BNF, mask_BN)
        return torch.cat([self.one(x_BNF), self.other(x_BNF).relu()], dim=-1), mask_BN
'''

RECIPE = '''
from polypool.tasks.run import Data, Optim, Run
from polypool.pipelines.recipes.load import recipe


@recipe("first_words")
def first_words() -> Run:
    """The second word of a caption, from the features of its image."""
    return Run(
        task="first_word(place=1)",
        data=Data(dataset="tiny", corpus="corpus", features="features"),
        visual="halves(width=16)",
        text="bigru(width=16)",
        protocol="first_word",
        optim=Optim(epochs=2, batch=16, lr=2e-2),
        retries=0,
    )
'''


READER = """
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.files import identity
from polypool.infra.registry import READERS
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets import Reader, Reading

"""


def example(kind: type) -> str:
    """Return the example code in a class's docstring."""
    return dedent(kind.__doc__.partition("::\n")[2])


def guide() -> str:
    """Return the example aggregator of CONTRIBUTING.md."""
    text = (TESTS.parent / "CONTRIBUTING.md").read_text()
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Install the package into a separate folder, without a network; return the folder."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "word_pool").mkdir()
    task = (TESTS / "template_task.py").read_text()
    files = {
        "pyproject.toml": PROJECT,
        "word_pool/__init__.py": "",
        "word_pool/task.py": task.replace("CaptionWord", "FirstWord").replace("caption_word", "first_word"),
        "word_pool/parts.py": guide() + ENCODER,
        "word_pool/reader.py": READER + example(Reader),
        "word_pool/recipes.py": RECIPE,
        "word_pool/broken.py": "raise RuntimeError('it needs a licence')",
    }
    for name, text in files.items():
        (source / name).write_text(text)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def plugged(site, monkeypatch):
    """Put the package on the path, with plug-ins not discovered yet; restore the registries afterwards."""
    for registry in KINDS.values():
        registry.names()  # discover other plug-ins first
        monkeypatch.setattr(registry, "_plugins", {})
        monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    before = {kind: dict(registry._parts) for kind, registry in KINDS.items()}
    yield site
    for kind, registry in KINDS.items():  # built-in parts register only on first import
        built_in = {name: part for name, part in registry._parts.items() if registry._built_in(part)}
        registry._parts = before[kind] | built_in
    for name in [name for name in sys.modules if name.partition(".")[0] == "word_pool"]:
        del sys.modules[name]


def test_generated_pages_list_only_built_in_parts(plugged):
    assert "median" in AGGREGATORS.names()
    assert "`halves`" not in part_list(KINDS["encoder"])
    assert "`kmax`" in part_list(AGGREGATORS)


@pytest.fixture
def home(new_home, plugged):
    return new_home


@pytest.fixture
def said(home):
    """Call verbs in this process; return the output, or the error line if refused."""

    def give(verb: str, *words: object, refused: bool = False) -> str:
        code, out, error = called(verb, *words)
        if not refused:
            assert code == 0, error
            return out
        (*_, last) = error.splitlines()
        assert (code, last[:7]) == (2, "error: ")
        return last

    return give


def test_verbs_accept_or_refuse_plugin_task(home, said):
    retrieval = make_corpus(home, train=24, val=12, test=20)
    assert "error" not in said("check", "first_word", "--recipe", "first_words", "--aggregator", "median")
    trained = [said("train", "first_words", "--aggregator", name) for name in ("median", "mean")]
    ours, theirs = (re.search(r"^run (\w+) finished", out, re.MULTILINE)[1] for out in trained)
    tracker = Tracker.attach(tracking_uri(home), ours, running=False)
    metrics = tracker.metrics()
    reached = metrics["first_word/word_recall"]
    assert reached > 2 * metrics["test/chance"]
    assert 0 < metrics["test/chance_normalised"] < metrics["test/score"] == reached
    assert (tracker.tag("task"), tracker.tag("plugin.word-pool")) == ("first_word", "1.2")

    assert re.search(rf"word_recall +{reached:.2f}", said("evaluate", ours))
    together = said("evaluate", ours, theirs)
    models = load(ours), load(theirs)
    data = models[0].adapter.data("test")
    scores = [m.adapter.scorer(m.model, "test")(slice(None), slice(None)) for m in models]
    expected = 100 * (((scores[0] + scores[1]) / 2).argmax(dim=1) == data.word).float().mean().item()
    assert re.search(rf"word_recall +{expected:.2f}", together)
    unanalysed = said("evaluate", ours, "--embeddings", refused=True)
    assert "cannot be analysed: Classifier has no embeddings" in unanalysed
    assert "cannot be searched: its adapter has no visual_dim" in said("search", ours, "a dog", refused=True)

    uri = tracking_uri(home)
    compared = compare(uri, "polypool")
    assert compared.notes == ()
    assert compared.groups[0].judged.units == "20 images"
    assert compared.groups[0].metric.chance == pytest.approx(metrics["test/chance"])
    table = said("compare", "--experiment", "polypool")
    assert re.search(r"first_word", table)
    assert all(re.search(rf"^{name} +1 +\d", table, re.MULTILINE) for name in ("median", "mean"))

    said("export", theirs, "--out", home / "out")
    model = load(str(home / "out"))
    assert model.tracker is None
    assert model.evaluate().metrics == load(theirs).evaluate().metrics
    assert "model.adapter" in (home / "out" / "README.md").read_text()
    for use in (lambda: model.scores([np.ones((2, 10))], ["a dog"]), lambda: model.search("a dog", k=5)):
        with pytest.raises(InputError, match=r"the task 'first_word\(place=1\)' cannot"):
            use()

    assert f"run {ours}" in said("train", "rerun", ours, "--dry-run")
    assert re.search(rf"word_recall +then +{reached:.2f} +now +{reached:.2f}", said("train", "rerun", ours))
    other = track_untrained(retrieval)
    assert "cannot be one ensemble; give runs of one task" in said("evaluate", ours, other, refused=True)
    plan = said("sweep", "--recipes", "first_words", "--aggregators", "median", "max", "--dry-run")
    assert "2 trials" in plan


@pytest.mark.parametrize(
    "name", ["first_word", "halves(standardise=True)", "median", "word_pool.task:FirstWord(place=3)", "lines"]
)
def test_plugin_parts_pass_their_checks(plugged, name):
    assert [str(outcome) for outcome in outcomes(name) if not outcome.passed] == []


@pytest.mark.parametrize("name", ["lines", "word_pool.reader:Lines"])
def test_ingest_accepts_plugin_reader(home, said, name):
    table = home / "mine.txt"
    table.write_text("".join(f"{n}.png\tthe picture {n}\n" for n in range(3)))
    assert "3 items (train 3), 3 captions" in said("ingest", name, "--file", table, "--out", home / "read")
    manifest = json.loads((home / "read" / "corpus.json").read_text())
    assert manifest["source"]["reader"] == name
    assert "the following arguments are required" not in said("check", name)


def test_broken_plugin_parts_are_named_and_others_work(plugged):
    found = listing("aggregator").splitlines()
    lines = {line.split()[0]: line for line in found[1:]}
    assert lines["median"].endswith("  word-pool 1.2 (word_pool.parts:Median)")
    assert lines["mean"].endswith("  built in")
    assert "CANNOT BE USED" in lines["broken"]
    assert "RuntimeError: it needs a licence" in lines["broken"]
    twice = "built in and word-pool 1.2 (word_pool.parts:Median); CANNOT BE USED: two aggregators"
    assert twice in lines["gpo"]
    licence = r"plugged in as 'broken' by word-pool.*RuntimeError: it needs a licence"
    with pytest.raises(InputError, match=licence):
        AGGREGATORS.build("broken", 4)
    with pytest.raises(InputError, match=r"two aggregators are called 'gpo': built in and word-pool"):
        list(outcomes("gpo"))
    with pytest.raises(InputError, match=r"(?s)this sweep cannot start:.*it needs a licence.*called 'gpo'"):
        make_plan(["coco_mini"], ["broken", "mean", "gpo"])
    trust_modules("polypool.aggregators.ranks.gpo")
    assert AGGREGATORS.build("polypool.aggregators.ranks.gpo:GPO", 4) is not None
    assert ENCODERS.get("halves").__module__ == "word_pool.parts"
    assert "infonce" in OBJECTIVES.names()


def verb(site: Path, name: str, *words: str, code: int = 0, **more: str) -> str:
    """Call a verb in a new process, check its exit code, and return its output."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    given |= {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(site)]), **more}
    found, out, err = end(begin("-m", "polypool", name, *words, env=given))
    assert found == code, err
    return out + err


def test_new_process_discovers_plugin(site):
    refused = verb(site, "check", "broken", code=2)
    assert "it needs a licence" in refused
    assert "Traceback" not in refused


@pytest.mark.slow
def test_plugin_recipe_is_swept_with_plugin_aggregator(home, plugged):
    make_corpus(home, train=24, val=12, test=20)
    start.start(derive(RECIPES.get("first_words")(), aggregator="mean", optim={"epochs": 1}))
    words = "--recipes first_words --aggregators median mean --optim.epochs 1 --cpus 1"
    said = verb(plugged, "sweep", *words.split(), POLYPOOL_HOME=str(home))
    assert "2 trials, 1 of them finished before and skipped; 1 to train" in said
    assert "first_words tiny median seed 0: done" in said
    assert all(re.search(rf"^{name} +1 +\d", said, re.MULTILINE) for name in ("median", "mean"))
    swept = next(run for run in find_runs(tracking_uri(home), "polypool") if "sweep" in run.tags)
    assert (swept.status, swept.tags["aggregator"]) == ("FINISHED", "median")
    assert swept.tags["task"] == "first_word"


def test_search_works_with_plugin_encoder_and_aggregator(home):
    run = replace(
        make_corpus(home, train=24, val=12, test=20), visual="halves(width=16)", aggregator="median"
    )
    shown = search(run_id=track_untrained(run), query="a dog and a cat", k=3).splitlines()
    assert [line.split()[0] for line in shown[1:4]] == ["1", "2", "3"]
    asked = replace(RECIPES.get("first_words")(), aggregator="median")
    with pytest.raises(InputError, match=r"the task 'first_word\(place=1\)' cannot be searched"):
        search(run_id=track_untrained(asked), query="a dog")
