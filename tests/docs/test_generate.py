"""Pages and sections that are generated from the code."""

import re

import pytest
from places import ROOT

from docs.generate.__main__ import SECTION, outdated
from docs.generate.parts import parameter_table
from docs.generate.tasks import SECTIONS
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, RECIPES, TASKS


def test_every_aggregator_has_a_row_and_a_formula():
    own = AGGREGATORS.built_in()
    for page, form in (("aggregators/README.md", r"^\| `(\w+)` \|"), ("docs/formulas.md", r"^## `(\w+)`$")):
        assert sorted(re.findall(form, (ROOT / page).read_text(), re.MULTILINE)) == own


def test_every_recipe_is_on_the_page_of_its_task():
    shown = {task: SECTIONS[f"recipes/{task}"]() for task in TASKS.built_in()}
    assert "coco-5k/rsum 421.9" in shown["image_text"]
    assert "`coco_region_bigru`" not in shown["video_text"] + shown["vqa"]
    assert {*RECIPES.names()} <= {*re.findall(r"`(\w+)`", "".join(shown.values()))}


def test_generated_sections_are_current():
    assert [page.name for page, _ in outdated()] == [], "run `python -m docs.generate`"


def test_every_section_is_on_a_page():
    text = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    unnamed = {*SECTIONS} - {name for _, name, *_ in SECTION.findall(text)}
    assert unnamed == {"parts/aggregator", "parts/task", "parts/recipe"}


class Undocumented:
    """Half of it is.

    Args:
        one: the first.
    """

    def __init__(self, dim: int, *, one: int, two: int = 3) -> None: ...


def test_a_parameter_without_documentation_is_an_error():
    with pytest.raises(InputError, match=r"Undocumented does not document two; add it to Args"):
        parameter_table(Undocumented)
