"""Published tables: their sums, the commands of their rows, and the runs that they belong to."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from polypool.infra.registry import RECIPES
from polypool.pipelines.recipes.arguments import read_config, read_run
from polypool.pipelines.recipes.load import derive, with_published
from polypool.pipelines.recipes.published import papers
from polypool.tasks.scoring.protocols import PROTOCOLS

TABLES = [(f"{paper}: {table.name}", table) for paper, tables in papers().items() for table in tables]
FILES = {
    "VSE-infinity": "vse_infinity_arxiv.txt",
    "HGR": "vse_infinity_arxiv.txt",
    "VSE+2AD": "vse_2ad.txt",
    "DivE": "dive_cvpr2023.txt",
    "score attention": "score_attention_icpr2020.txt",
}
TEXTS = Path(__file__).parents[4] / "shared/papers"
SIX = {f"{way}/R{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)}

GROUPS = ("accuracy", "yes_no", "number", "other")
LOGGED = {f"{protocol}/{metric}" for protocol in PROTOCOLS for metric in SIX | {"rsum"}}
LOGGED |= {f"{split}vqa/{group}" for split in ("", "test-dev/") for group in GROUPS}


def test_published_recalls_add_up_to_rsum():
    for name, table in TABLES:
        if {*table.columns} == SIX | {"rsum"}:
            for row in table.rows:
                of = dict(zip(table.columns, row.numbers, strict=True))
                assert sum(of[recall] for recall in SIX) == pytest.approx(of["rsum"], abs=0.15), (
                    name,
                    row.row,
                )


@pytest.mark.skipif(not TEXTS.exists(), reason="the texts of the papers are missing (shared/papers)")
def test_published_numbers_occur_in_paper_text():
    for name, table in TABLES:
        text = "".join((TEXTS / FILES[name.partition(":")[0]]).read_text().split())
        summed = "III" in table.name  # table III prints no sums
        for row in table.rows:
            numbers = row.numbers[:-1] if summed else row.numbers
            assert not [x for x in numbers if str(x) not in text], (name, row.row)


def test_published_metrics_are_logged_metrics():
    for name in RECIPES.names():
        recipe = RECIPES.get(name)()
        assert bool(recipe.published) == bool(recipe.source), name
        assert {*recipe.published} <= LOGGED, name


def test_every_row_command_parses_to_its_run():
    parsed = set()
    for name, table in TABLES:
        for row in (row for row in table.rows if row.recipe):
            verb, recipe, *flags = shlex.split(row.words)
            assert (verb, recipe) == ("train", row.recipe)
            config = RECIPES.get(recipe)()
            made = derive(config, **row.changes) if row.changes else config
            if (key := (*row.changes, type(config))) not in parsed:  # parsing is slow
                parsed.add(key)
                read = read_config(recipe, flags)
                assert read.recipe == recipe
                assert all(getattr(read, flag) == getattr(made, flag) for flag in row.changes), (
                    name,
                    row.row,
                )


@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        ([], {"coco-1k-5fold/rsum": 527.8, "coco-5k/rsum": 426.9}),
        (["--optim.epochs", "3", "--seed", "4", "--workers", "2"], {"coco-5k/rsum": 426.9}),
        (["--aggregator", "adpool(embedding=False)"], {"coco-5k/rsum": 423.1}),
        (["--aggregator", "lip"], {"coco-5k/rsum": 414.8}),
        (["--aggregator", "simpool"], {}),
        (["--aggregator", "lip", "--objective", "infonce"], {}),
    ],
)
def test_flags_select_the_published_row(flags, numbers):
    run = with_published(read_run("coco_2ad_region_bigru", flags))
    assert numbers.items() <= run.published.items()
    assert bool(run.published) == bool(numbers) == bool(run.source)
    assert not with_published(replace(run, data=replace(run.data, dataset="mine"))).published
    mine = replace(run, published={"coco-5k/rsum": 1.0}, source="my thesis, table 2")
    assert with_published(mine) == mine
