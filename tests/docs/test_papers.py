"""Run the commands of each page in docs/papers from downloads to scores, on tiny official-format files.

CNNs have one block per stage, hub models are small, and protocols accept splits of any size. Of recipes with
the same encoders, similarity, objective and data, one is trained; the others only read their data and build
their model, as test_recipes.py trains their aggregators.
"""

import glob
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from downloads import cache_models, write_downloads, write_vectors
from fake_extractor import in_this_process
from places import ROOT
from small import SMALL, shallow_networks, small_parts, write_weights
from tiny_models import save_bert, save_resnet, save_vit
from verbs import called

from polypool.infra.ray import JobServer, private_head
from polypool.infra.spec import Spec, changed
from polypool.infra.tracking import find_runs, tracking_uri
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.recipes.arguments import read_config, read_run
from polypool.pipelines.recipes.load import Ensemble, named_run
from polypool.pipelines.training.train import prepare
from polypool.tasks.run import Run, files
from polypool.tasks.scoring.protocols import PROTOCOLS

pytestmark = pytest.mark.slow

PAGES = ("vse-infinity", "vse-2ad", "dive", "score-attention", "hgr")
JOBS = (
    "coco_region_bigru",
    "coco_2ad_region_bigru",
    "coco_dive_region_bigru",
    "vqa2_scoreattn_k1",
)
"""A recipe of each page to train as a two-worker job; test_paths.py covers HGR."""
SIZES = {name: size for name, size in SMALL.items() if name != "embedding"}  # GloVe's files are 300 wide
PLAN = ("--dry-run", "--optim.batch", "14")
MODELS = {
    "bert-base-uncased": save_bert,
    "google/vit-base-patch16-224": save_vit,
    "microsoft/resnet-152": save_resnet,
}


class Page(NamedTuple):
    """Commands of a page: for its data, for alternative data, and of its table rows."""

    data: list[str]
    others: list[list[str]]
    rows: list[str]


def text_of(page: str) -> str:
    return (ROOT / f"docs/papers/{page}.md").read_text()


def lines_of(text: str) -> list[list[str]]:
    """Return the commands of each code block of a page; the first may be a comment."""
    blocks = re.findall(r"^(?: {4}.*\n)+", text.replace("\\\n", ""), flags=re.MULTILINE)
    return [[line.strip() for line in block.splitlines()] for block in blocks]


def read_page(name: str) -> Page:
    """Read the commands of a page; blocks that begin with "# or" are alternatives for its data."""
    blocks, data, others = lines_of(text_of(name)), list[str](), list[list[str]]()
    for block in blocks:
        commands = [line for line in block if not line.startswith("#")]
        if block[0].startswith("# or"):
            others.append(commands)
        else:
            data += commands
    rows = re.findall(r"^\|[^|\n]*\| `(polypool [^`]+)` \|", text_of(name), flags=re.MULTILINE)
    return Page(data=data, others=others, rows=[*dict.fromkeys(rows)])


@pytest.fixture(scope="module")
def downloads(tmp_path_factory) -> Iterator[Path]:
    """Write the downloads, and small models in the hub's cache."""
    folder = tmp_path_factory.mktemp("downloads")
    with pytest.MonkeyPatch.context() as patch, shallow_networks():
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        hub_offline(patch, folder / "hub")
        in_this_process(patch)
        for name, protocol in PROTOCOLS.items():
            patch.setitem(PROTOCOLS, name, replace(protocol, items=None, captions=None))
        patch.setattr(run_evaluation, "named_run", small)
        write_downloads(folder)
        write_vectors(folder / "data")
        write_weights(folder / "data/weights")
        yield folder


@contextmanager
def home_with(downloads: Path, folder: Path, blocks: Sequence[Sequence[str]]) -> Iterator[Path]:
    """Make a home from the downloads by running commands, with the home as current folder."""
    (folder / "data").mkdir(parents=True)
    for path in (*downloads.iterdir(), *(downloads / "data").iterdir()):
        if path.name != "data":
            (folder / path.relative_to(downloads)).symlink_to(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.chdir(folder)
        for line in chain.from_iterable(blocks):
            do(line)
        yield folder


def hub_offline(patch: pytest.MonkeyPatch, cache: Path) -> None:
    from huggingface_hub import constants

    cache_models(cache, MODELS)
    for name, value in {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": True}.items():
        patch.setenv(name, str(value))
        patch.setattr(constants, name, value)


def do(line: str) -> str:
    """Run a command of a page in the current folder, as a shell does; return its output."""
    program, *words = shlex.split(line)
    words = [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]
    if program == "cp":
        shutil.copy(*words)
        return ""
    assert program == "polypool", line
    if words[:2] == ["ingest", "graphs"]:
        pytest.importorskip("spacy")
    code, out, err = called(words[0], *words[1:])
    assert code == 0, f"{line}\n{out}\n{err}"
    return out


def flags(run: Run) -> list[str]:
    """Return flags that scale a run down."""
    batch = 4 if run.data.sample == "image" else 14
    given = {"optim.epochs": 1, "optim.batch": batch, "optim.warmup-steps": 1}
    given |= {part.replace("_", "-"): spec for part, spec in small_parts(run, {}, SIZES).items() if spec}
    if run.task_name == "vqa":
        given["task"] = changed(run.task, min_count=1)
    return [word for name, value in given.items() for word in (f"--{name}", str(value))] + ["--no-figures"]


def small(recipe: str, *words: str) -> Run:
    """Return the scaled-down run of a recipe with further flags."""
    return read_run(recipe, [*words, *flags(read_run(recipe, words))])


def train(line: str) -> str:
    """Train the scaled-down run of a row's command; return its id."""
    _, _, recipe, *words = shlex.split(line)
    config = read_config(recipe, words)
    more = flags(config) if isinstance(config, Run) else []
    out = do(shlex.join(["polypool", "train", recipe, *words, *more]))
    found = re.search(r"^run (\w{32})|\b([0-9a-f]{32})\b", out, flags=re.MULTILINE)
    assert found, out
    return found[0].removeprefix("run ")


@pytest.fixture(scope="module")
def trained() -> set[str]:
    """Recipes trained or prepared so far, and the `code_of` keys of trained ones."""
    return set()


@pytest.fixture(scope="module")
def home(downloads, tmp_path_factory) -> Iterator[Path]:
    """A home with the data of all pages except HGR, whose release has another MSR-VTT."""
    blocks = [read_page(name).data for name in PAGES if name != "hgr"]
    with home_with(downloads, tmp_path_factory.mktemp("home") / "h", blocks) as folder:
        yield folder


def code_of(config: Run | Ensemble, page: str) -> set[str]:
    """Return keys for which one row each is trained: part names, and the page's data set."""
    if isinstance(config, Ensemble):
        return {f"ensemble of {page}"}
    parts = (config.task, config.visual, config.text, config.model, config.cross, config.similarity)
    names = [Spec.parse(part).name if part else "" for part in (*parts, config.objective)]
    return {" ".join((*names, config.data.sample)), f"{config.data.dataset} of {page}"}


def walk(page: str, trained: set[str], elsewhere: Path) -> None:
    """Train or prepare the rows of a page, then evaluate the runs.

    The first row runs in the home, the others in another folder.
    """
    runs: dict[str, str] = {}
    for number, line in enumerate(read_page(page).rows):
        if number == 1:
            os.chdir(elsewhere)
        _, verb, *words = shlex.split(line)
        if verb != "train":
            words = [runs.get("coco", "") if word == "RUN" else word for word in words]
            do(shlex.join(["polypool", verb, *words, *(PLAN if verb == "sweep" else ())]))
        elif len(words) == 1 and (code := code_of(config := read_config(words[0]), page) - trained):
            trained |= {words[0], *code}
            run_id = train(line)
            if isinstance(config, Run):
                runs[config.data.dataset] = run_id
        else:
            config = read_config(words[0], words[1:])
            for made in [(name,) for name in config.members] if isinstance(config, Ensemble) else [(*words,)]:
                if " ".join(made) not in trained:
                    prepare(small(*made)).model()
                    trained.add(" ".join(made))
    for protocol in dict.fromkeys(re.findall(r"^### .* under `(.+)`", text_of(page), flags=re.MULTILINE)):
        dataset = {"f30k": "flickr30k", "vqa": "vqa2"}.get(name := protocol.partition("-")[0], name)
        do(f"polypool evaluate {runs[dataset]} --protocol {protocol}")


@pytest.mark.parametrize("page", [page for page in PAGES if page != "hgr"])
def test_page_rows_train_from_home_and_other_folders(page, home, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    walk(page, trained, tmp_path)


def test_hgr_rows_train_on_the_data_of_its_release(downloads, trained, tmp_path):
    with home_with(downloads, tmp_path / "h", [read_page("hgr").data]):
        walk("hgr", trained, tmp_path)


def test_vqa2_commands_write_leaderboard_files(home, monkeypatch):
    """Run the first commands of docs/vqa2.md; score-attention.md makes the same data."""
    monkeypatch.chdir(home)
    text = (ROOT / "docs/vqa2.md").read_text()
    data, (recipe, *answers, table) = lines_of(text)[0][:2], lines_of(text)[0][2:]
    assert data == read_page("score-attention").data
    run_id = train(recipe)
    for line, split in zip(answers, ("test-dev", "test2015"), strict=True):
        assert f"vqa_{split}_results.json" in do(line.replace("RUN_ID", run_id))
    assert "vqa" in do(table)


OTHERS = [block for page in PAGES for block in read_page(page).others]


@pytest.mark.parametrize("block", OTHERS, ids=[shlex.split(block[0])[2] for block in OTHERS])
def test_alternative_data_commands_support_training(block, downloads, tmp_path):
    with home_with(downloads, tmp_path / "h", [block]):
        lines = [line for page in PAGES for line in read_page(page).rows if " train " in line]
        configs = [(line, read_config(*shlex.split(line)[2:3])) for line in lines]
        train(
            next(
                line for line, run in configs if isinstance(run, Run) and all(map(os.path.exists, files(run)))
            )
        )


def test_one_row_per_page_trains_as_two_worker_job(home, tmp_path):
    with private_head(cpus=2) as head:
        submit(head, home, tmp_path)
    runs = [run for run in find_runs(tracking_uri(home), "jobs") if run.params["workers"] == "2"]
    assert len(runs) == len(JOBS)
    assert all(run.metrics["test/score"] >= 0 for run in runs)


def submit(head: JobServer, home: Path, folder: Path) -> None:
    """Submit one row of each page after another, from a folder other than the home."""
    (folder / "empty").mkdir()
    for name in JOBS:
        run = named_run(name)
        protocol = [] if run.task_name == "vqa" else ["--protocol", "whole"]
        words = [
            "train",
            name,
            *flags(run),
            *protocol,
            "--workers",
            "2",
            "--cpus",
            "1",
            "--experiment",
            "jobs",
        ]
        env = {"POLYPOOL_HOME": str(home), "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
        head.run(["python", "-m", "polypool", *words], folder=folder / "empty", env=env, show=print)
