import re
import subprocess
import sys
from dataclasses import replace

import pytest
from places import ROOT
from verbs import called

import polypool as pp
from polypool.__main__ import main, verbs
from polypool.infra.registry import BACKBONES, RECIPES
from polypool.pipelines.commands.extract import extract
from polypool.pipelines.commands.train import Resume, parse
from polypool.pipelines.recipes.arguments import recipe_list
from polypool.pipelines.recipes.load import published_text


def test_recipe_overrides_are_parsed():
    run = parse(["coco_mini", "--aggregator", "kmax(k=3)", "--seed", "4", "--optim.lr", "1e-4"])
    assert (run.recipe, run.aggregator, run.seed, run.optim.lr) == ("coco_mini", "kmax(k=3)", 4, 1e-4)
    assert run == replace(pp.recipe("coco_mini"), aggregator="kmax(k=3)", seed=4, optim=run.optim)
    assert parse(["resume", "abc"]) == Resume(run_id="abc")
    ensemble = parse(["coco_wsl_bert_x2", "--seed", "3"])
    assert ensemble.seeded() == [("coco_wsl_bert", 3), ("coco_wsl_bert", 4)]
    assert parse(["coco_region_grid_bert"]).seeded() == [("coco_region_bert", 0), ("coco_grid_bert", 0)]


def test_list_shows_recipes_with_published_results(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--list"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name in RECIPES.names():
        (line,) = (line for line in lines if line.split(" ", 1)[0] == name)
        made = RECIPES.get(name)()
        assert published_text(made.published, made.source) in line


def test_recipe_list_is_grouped_by_required_data(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))

    def titles() -> dict[str, str]:
        """Return the heading of each recipe."""
        groups = [group.splitlines() for group in recipe_list().split("\n\n")]
        return {line.split()[0]: title for title, *lines in groups for line in lines}

    assert sorted(titles()) == RECIPES.names()
    assert titles()["coco_wsl_bert_x2"] == titles()["coco_region_bigru"] == "recipes that need data/coco:"
    joint = "recipes that need data/coco_mini and data/msrvtt_mini and data/daquar:"
    assert titles()["mini_dinov2_joint"] == joint
    for store in ("coco_mini/cells", "vqa2/regions"):
        (tmp_path / "data" / store).mkdir(parents=True)
    here = titles()
    assert here["vqa2_mean"] == "recipes that need data/glove.6B.300d.txt:"
    assert next(iter(here.values())) == here["coco_mini"] == "recipes on data that are here:"
    assert here["image_text"] == here["vqa"] == "recipes that need --corpus and --features:"
    assert here["coco_mini_dinov2"] == "recipes that need data/coco_mini/dinov2_cls_4x4:"
    short = recipe_list(everything=False)
    ready = [name for name, title in here.items() if "are here" in title or "--corpus" in title]
    assert [line.split()[0] for line in short.splitlines() if line.split()[:1] != ["recipes"] and line][
        :-1
    ] == ready
    assert f"{len(here) - len(ready)} recipes on other data: polypool train --list" in short


def test_global_options_may_precede_verb(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("polypool.pipelines.commands.runs.main", lambda: seen.append(sys.argv[1:]))
    for words in (
        ["--quiet", "runs", "--json"],
        ["--log-format", "json", "runs", "--json"],
        ["runs", "--json"],
    ):
        monkeypatch.setattr(sys, "argv", ["polypool", *words])
        main()
    assert seen == [["--json", "--quiet"], ["--json", "--log-format", "json"], ["--json"]]
    monkeypatch.setattr(sys, "argv", ["polypool", "--quiet", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "polypool VERB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "out", "error"),
    [
        ("train --list >&-", 0, "", ""),
        ("train nope <&- >&- 2>&-", 2, "", ""),
        ("--help >/dev/full", 1, "", "error: the output cannot be written: No space left on device\n"),
    ],
)
def test_unwritable_output_gives_no_traceback(words, code, out, error):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m polypool {words}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, error)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Change to an empty folder and unset environment variables that name other places."""
    monkeypatch.chdir(tmp_path)
    for name in ("POLYPOOL_HOME", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "coco_mni"], "Did you mean 'coco_mini'"),
        (["train", "coco_mini", "--optim.batch", "0"], "at least 1"),
        (["train", "coco_mini", "--agregator", "gpo"], "--aggregator"),
        (["train", "coco_mini", "--optim.lr", "fast"], "optim.lr"),
        (["train", "coco_mini", "--optim.schedule", "linear"], "cosine"),
        (["train", "coco_mini", "--recipe", "other"], "--recipe"),
        (["evaluate", "0" * 32], "no runs are recorded"),
        (["evaluate", "0" * 32, "--vectors", "-1"], "--vectors must be at least 1, such as 4, not -1"),
        (["compare"], "no runs are recorded"),
        (["export", "0" * 32, "--out", "model"], "no runs are recorded"),
        (["check", "gpoo"], "Did you mean 'gpo'"),
        (["extract", "--corpus", "nowhere", "--out", "features"], "nowhere"),
        (["ingest", "karpathy", "--json", "none.json", "--images", ".", "--out", "corpus"], "none.json"),
    ],
)
def test_bad_input_exits_2_with_one_message(words, message, nowhere):
    code, _, error = called(*words)
    assert (code, message in error) == (2, True), error


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_verb_help_shows_no_empty_defaults(verb):
    code, shown, _ = called(verb, *(["coco_mini"] if verb == "train" else []), "--help")
    assert code == 0
    shown = " ".join(shown.split())
    assert f"polypool {verb}" in shown
    assert "(default: )" not in shown


def test_extract_help_names_every_backbone():
    described = " ".join(extract.__doc__.split()).partition("backbone: ")[2].partition(" dtype: ")[0]
    assert all(re.search(rf"\b{name}\b", described) for name in BACKBONES.names())


@pytest.mark.parametrize(
    "words",
    [
        ["extract", "--corpus", "ftp://host/x", "--out", "features"],
        ["extract", "--corpus", "corpus", "--out", "ftp://host/x"],
        ["ingest", "karpathy", "--json", "ftp://host/x", "--images", ".", "--out", "corpus"],
        ["ingest", "karpathy", "--json", "here.json", "--images", "ftp://host/x", "--out", "corpus"],
        ["ingest", "verify", "--store", "ftp://host/x"],
        ["export", "0" * 32, "--out", "ftp://host/x"],
        ["compare", "--out", "ftp://host/x.csv"],
        ["compare", "--latex", "ftp://host/x.tex"],
        ["search", "0" * 32, "--image", "ftp://host/x.jpg"],
        ["compare", "tables", "ftp://host/x.md"],
    ],
)
def test_unsupported_url_exits_2_with_one_line(words, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.json").write_text('{"dataset": "mine", "images": []}')
    code, _, said = called(*words)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith("error: ftp://host/x"), said
    assert "s3://" in said
    assert [path.name for path in tmp_path.iterdir()] == ["here.json"]
