"""Documentation generated from the code."""

import re

import pytest
from places import ROOT

from docs.generate.__main__ import PAGES, SECTION, outdated
from docs.generate.parts import aggregator_list, parameter_table
from docs.generate.tasks import SECTIONS
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, RECIPES, TASKS


def test_every_aggregator_has_a_formula():
    formulas = re.findall(r"^## `(\w+)`$", (ROOT / "docs/formulas.md").read_text(), re.MULTILINE)
    assert sorted(formulas) == AGGREGATORS.built_in()


def test_aggregator_list_keeps_sources_and_costs(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("| `gpo` | old | a paper | | | | 0 | *3* |\n| `gone` | old | another | | | | 0 | 4 |\n")
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", aggregator_list(page), re.MULTILINE))
    assert next(iter(rows)) == "gpo"
    assert sorted(rows) == AGGREGATORS.built_in()
    cells = {name: [cell.strip() for cell in row.split("|")][1:] for name, row in rows.items()}
    assert cells["gpo"][:3] == ["a paper", "", ""]
    assert cells["gpo"][4:] == ["12,704", "*3*"]
    assert cells["slots"][:3] == ["", "global", "K"]
    assert cells["score_attention"][1:3] == ["text set", "K"]
    assert cells["constbert"][1:3] == ["order", "K"]
    assert [cells[name][2] for name in ("mean", "kmax", "late", "probabilistic")] == [
        *("", "", "varies", "distribution"),
    ]


def test_recipes_are_listed_on_their_task_page():
    shown = {task: SECTIONS[f"recipes/{task}"]() for task in TASKS.built_in()}
    assert "coco-5k/rsum 421.9" in shown["image_text"]
    assert "`coco_region_bigru`" not in shown["video_text"] + shown["vqa"]
    assert {*RECIPES.names()} <= {*re.findall(r"`(\w+)`", "".join(shown.values()))}


def test_generated_sections_are_current():
    assert [page.name for page, _ in outdated()] == [], "run `python -m docs.generate`"


def test_every_generated_section_is_used_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    unnamed = {*SECTIONS} - {name for _, name, *_ in SECTION.findall(text)}
    assert unnamed == {"parts/aggregator", "parts/task", "parts/recipe"}


class Undocumented:
    """Documents one of two parameters.

    Args:
        one: the first.
    """

    def __init__(self, dim: int, *, one: int, two: int = 3) -> None: ...


def test_undocumented_parameter_is_an_error():
    with pytest.raises(InputError, match=r"Undocumented does not document two; add it to Args"):
        parameter_table(Undocumented)
