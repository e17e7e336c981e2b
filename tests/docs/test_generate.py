"""Pages and sections that are generated from the code."""

import inspect
import io
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from places import ROOT

from docs.generate import aggregators
from docs.generate.__main__ import SECTION, outdated
from docs.generate.aggregators import FORMULAS, formulas, listings, results_of, write_pages
from docs.generate.figures import example_sets, weights_figure
from docs.generate.parts import parameter_table, table
from docs.generate.tasks import SECTIONS, names_in
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, RECIPES, TASKS


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """The pages of the aggregators, with a small picture for each figure."""
    out = tmp_path_factory.mktemp("aggregators")
    (out / "gone.md").write_text("# an aggregator that no longer exists")
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregators, "weights_figure", lambda name: (picture.getvalue(), "A picture."))
        write_pages(ROOT, out)
    return out


def test_every_aggregator_has_a_page_with_its_parameters_and_formula(pages):
    listed = (pages / "index.md").read_text()
    for name in AGGREGATORS.names():
        page = (pages / f"{name}.md").read_text()
        assert page.startswith(f"# `{name}`\n")
        assert f"[`{name}`]({name}.md)" in listed
        assert re.search(rf"^{name}$", listed, re.MULTILINE), "it is in the navigation"
        rows = dict(
            re.findall(r"^\| `(\w+)` \| `(?:[^|]|\\\|)+` \| (?:`(.+?)`)? \| .+ \|$", page, re.MULTILINE)
        )
        signature = inspect.signature(AGGREGATORS.get(name)).parameters.values()
        assert rows == {of.name: repr(of.default) for of in signature if of.kind is of.KEYWORD_ONLY}, name
        formula = page.split("## Formula\n")[1].split("\n## ")[0]
        assert re.search(r"```\{math\}\n\S.*\n```", formula), name
        assert "{math}`x_n` is the n-th of the {math}`N` elements" in formula
        assert "$" not in formula, name
    assert not (pages / "gone.md").exists()


def test_the_list_is_sorted_by_rooms(pages):
    rooms = (pages / "index.md").read_text().split("\n## ")
    (ranks,) = [room for room in rooms if room.startswith("Ranks\n")]
    assert "[`gpo`](gpo.md)" in ranks
    assert sum("[`gpo`](gpo.md)" in room for room in rooms) == 1
    assert {of.room for of in listings(ROOT)} == {
        f"polypool.aggregators.{room}" for room in AGGREGATORS.rooms
    }


def test_every_recipe_is_on_the_page_of_its_task():
    shown = {task: SECTIONS[f"recipes/{task}"]() for task in TASKS.built_in()}
    row = r"\| `coco_region_bigru` \| VSE-infinity: regions and a BiGRU.* \| `gpo` \| VSE-infinity, tables 9, 10:"
    assert re.search(row, shown["image_text"])
    assert "`coco-5k/rsum` 421.9" in shown["image_text"]
    assert "`coco_region_bigru`" not in shown["video_text"] + shown["vqa"]
    assert {*RECIPES.names()} <= {*re.findall(r"`(\w+)`", "".join(shown.values()))}


def test_every_section_is_made():
    for name, make in SECTIONS.items():
        assert make().strip(), name
    assert "## train\n" in SECTIONS["verbs"]()
    assert re.search(r"\n```sh\npolypool ingest \S+", SECTIONS["verbs"]())
    assert "`Searchable`" in SECTIONS["adapter/image_text"]()


def test_generated_sections_are_current():
    assert [page.name for page, _ in outdated()] == [], "run `python -m docs.generate`"


def test_every_section_is_on_a_page():
    text = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    unnamed = {*SECTIONS} - {name for _, name, *_ in SECTION.findall(text)}
    assert unnamed == {"parts/aggregator", "parts/task", "parts/recipe"}


def test_results_are_those_of_the_file():
    file = ROOT / "docs/results/rows.csv"
    text = results_of("adpool", file)
    assert "| `adpool, text mean` | coco_mini (image_text) | rsum, `whole` | 129.5 ± 4.4\\* |" in text
    assert "1 of 41" in results_of("esa", file)
    assert "3 of 41" not in results_of("esa", file)
    assert "late(factor=8), text late" in results_of("late", file)
    assert results_of("xpool", file) == ""


def test_an_aggregator_without_a_formula_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    given = (ROOT / FORMULAS).read_text()
    (tmp_path / FORMULAS).write_text(given.replace("[gpo]", "[gop]"))
    with pytest.raises(InputError, match=r"gop, gpo$"):
        formulas(tmp_path)
    assert "Here {math}`x_{(r)d}` is the r-th largest value" in formulas(ROOT)["kmax"]


def test_specs_name_what_their_parameters_name():
    assert [*names_in("gcn(then=seq2seq, layers=4)")] == ["gcn", "seq2seq"]
    assert [*names_in("slots(global_feature='kmax(k=2)')")] == ["slots", "kmax"]


def test_a_figure_is_drawn_where_there_are_weights():
    content, shown = weights_figure("text_topk")
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.width > 500) == ("PNG", True)
    assert "like the elements at 7 to 10" in shown
    assert weights_figure("seq2seq") is None


def test_the_sets_of_the_figures_are_as_described():
    alike = torch.block_diag(torch.ones(6, 6), torch.ones(4, 4), torch.ones(1, 1), torch.ones(1, 1)).bool()
    for x_ND in example_sets():
        near_NN = torch.nn.functional.cosine_similarity(x_ND[:, None], x_ND[None], dim=-1) > 0.5
        assert torch.equal(near_NN, alike)
        assert 2.5 < x_ND[11].norm() / x_ND[:11].norm(dim=1).mean() < 4


class Undocumented:
    """Half of it is.

    Args:
        one: the first.
    """

    def __init__(self, dim: int, *, one: int, two: int = 3) -> None: ...


def test_a_parameter_without_documentation_is_an_error():
    with pytest.raises(InputError, match=r"Undocumented does not document two; add it to Args"):
        parameter_table(Undocumented)


def test_cells_hold_what_would_end_them():
    assert table(("a", "b"), [("int | None", "two\n\nlines")], right=(1,)).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        r"| int \| None | two lines |",
    ]
