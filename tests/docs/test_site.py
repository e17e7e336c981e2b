"""The site's sources: a page for each aggregator with its parameters, sections from one place, links."""

from __future__ import annotations

import inspect
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from places import ROOT

from docs.generate import site as site_module
from docs.generate.aggregators import listings
from docs.generate.figures import toy_sets, weights_figure
from docs.generate.formulas import FILE, formulas
from docs.generate.links import links_of
from docs.generate.parts import parameters_of, table
from docs.generate.recipes import named, of_task
from docs.generate.results import results_of
from docs.generate.sections import sections
from docs.generate.site import Site, write_site
from docs.generate.verbs import with_blocks
from infra.errors import InputError
from infra.registry import AGGREGATORS, RECIPES, TASKS


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """The folder of the site's sources; a small picture stands for each figure."""
    out = tmp_path_factory.mktemp("site")
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module, "weights_figure", lambda name: (picture.getvalue(), "A picture."))
        write_site(ROOT, out)
    return out


def test_every_aggregator_has_a_page_with_its_parameters(sources):
    listed = (sources / "aggregators/index.md").read_text()
    for name in AGGREGATORS.names():
        page = (sources / f"aggregators/{name}.md").read_text()
        assert page.startswith(f"# `{name}`\n")
        assert f"[`{name}`]({name}.md)" in listed
        assert re.search(rf"^{name}$", listed, re.MULTILINE), "it is in the navigation"
        rows = dict(
            re.findall(r"^\| `(\w+)` \| `(?:[^|]|\\\|)+` \| (?:`(.+?)`)? \| .+ \|$", page, re.MULTILINE)
        )
        signature = inspect.signature(AGGREGATORS.get(name)).parameters.values()
        assert rows == {of.name: repr(of.default) for of in signature if of.kind is of.KEYWORD_ONLY}, name
        code = (sources / re.search(r"\{literalinclude\} /(\S+)", page)[1]).read_text()
        assert f"class {AGGREGATORS.get(name).__name__}(" in code


def test_every_aggregator_has_its_formula(sources):
    for name in AGGREGATORS.names():
        page = (sources / f"aggregators/{name}.md").read_text()
        formula = page.split("## Formula\n")[1].split("\n## ")[0]
        assert re.search(r"```\{math\}\n\S.*\n```", formula), name
        assert "{math}`x_n` is the n-th of the {math}`N` elements" in formula
        assert "$" not in formula, name


def test_the_list_is_sorted_by_rooms(sources):
    listed = {of.title: of for of in sections((sources / "aggregators/index.md").read_text())}
    assert "[`gpo`](gpo.md)" in "\n".join(listed["Ranks"].lines)
    assert "[`gpo`](gpo.md)" not in "\n".join(listed["Averages"].lines)
    assert {of.room for of in listings(ROOT)} == {f"aggregators.{room}" for room in AGGREGATORS.rooms}


def test_links_lead_to_files_and_sections_that_are_there(sources):
    pages = {path.relative_to(sources).as_posix(): path.read_text() for path in sources.rglob("*.md")}
    count = 0
    for name, text in pages.items():
        for link in links_of(text, name):
            count += 1
            assert (sources / link.path).is_file(), f"{name}:{link.line}: {link.target}"
            if link.anchor:
                slugs = [section.slug for section in sections(pages[link.path])]
                assert link.anchor in slugs, f"{name}:{link.line}: {link.target}"
    assert count > 150


def test_what_is_included_is_what_stands_in_the_repository(sources):
    security = (ROOT / "SECURITY.md").read_text()
    assert (sources / "security.md").read_text() == security
    start = (sources / "start.md").read_text()
    assert "python -m pipelines.extract --corpus data/mine --backbone cells" in start
    assert "[this one](files/pipelines/examples/five_poolings.ipynb)" in start
    assert (sources / "files/pipelines/examples/five_poolings.ipynb").is_file()
    assert "make test-latest" in (sources / "contributing.md").read_text()
    assert "(add-a-row.md)" in (sources / "contributing.md").read_text()
    assert not [name for name in sources.rglob("*.md") if "<!-- include" in name.read_text()]


def test_commands_in_docstrings_of_verbs_are_blocks(sources):
    page = (sources / "verbs.md").read_text()
    assert "\n```sh\npython -m pipelines.ingest table --file" in page
    assert with_blocks("What.\n\npython -m pipelines.a\npython -m pipelines.b --c\n\nMore.") == (
        "What.\n\n```sh\npython -m pipelines.a\npython -m pipelines.b --c\n```\n\nMore."
    )
    assert with_blocks("`python -m pipelines.a`: what.") == "`python -m pipelines.a`: what."


def test_headings_go_down_one_by_one(sources):
    for path in sources.rglob("*.md"):
        levels = [section.level for section in sections(path.read_text())]
        assert levels[0] == 1, path
        steps = [after - before for before, after in pairwise(levels)]
        assert all(step <= 1 for step in steps), path
        assert levels.count(1) == 1, path


def test_every_recipe_is_on_the_page_of_its_tasks(sources):
    shown = {path.stem: path.read_text() for path in (sources / "tasks").glob("*.md")}
    assert (
        "| `coco_region_bigru` | VSE-infinity: regions and a BiGRU. | `gpo` | VSE-infinity, tables 9, 10:"
        in (shown["image-text"])
    )
    assert "`coco-5k/rsum` 421.9" in shown["image-text"]
    assert "`coco_region_bigru`" not in shown["video-text"] + shown["vqa"]
    assert {of.name for task in TASKS.names() for of in of_task(task)} == {*RECIPES.names()}


def test_results_are_those_of_the_file():
    text = results_of("adpool", ROOT / "pipelines/results")
    assert "| `adpool, text mean` | coco_mini (image_text) | rsum, `whole` | 129.5 ± 4.4\\* |" in text
    assert "1 of 41" in results_of("esa", ROOT / "pipelines/results")
    assert "3 of 41" not in results_of("esa", ROOT / "pipelines/results")
    assert "late(factor=8), text late" in results_of("late", ROOT / "pipelines/results")
    assert results_of("xpool", ROOT / "pipelines/results") == "", "nobody trained it"


def test_an_aggregator_without_a_formula_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    given = (ROOT / FILE).read_text()
    (tmp_path / FILE).write_text(given.replace("[gpo]", "[gop]"))
    with pytest.raises(InputError, match=r"are registered: gop, gpo$"):
        formulas(tmp_path)
    (tmp_path / FILE).write_text(given)
    shown = formulas(tmp_path)["kmax"].shown()
    assert shown.startswith("```{math}\ny_d = \\frac{1}{k}")
    assert "Here {math}`x_{(r)d}` is the r-th largest value" in shown


def test_specs_name_what_their_parameters_name():
    assert [*named("gcn(then=seq2seq, layers=4)")] == ["gcn", "seq2seq"]
    assert [*named("slots(global_feature='kmax(k=2)')")] == ["slots", "kmax"]


def test_a_figure_is_drawn_where_there_are_weights():
    content, shown = weights_figure("text_topk")
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.width > 500) == ("PNG", True)
    assert "like those at 7 to 10" in shown
    assert weights_figure("seq2seq") is None


def test_the_sets_of_the_figures_are_as_they_are_described():
    alike = torch.block_diag(torch.ones(6, 6), torch.ones(4, 4), torch.ones(1, 1), torch.ones(1, 1)).bool()
    for x_ND in toy_sets():
        near_NN = torch.nn.functional.cosine_similarity(x_ND[:, None], x_ND[None], dim=-1) > 0.5
        assert torch.equal(near_NN, alike)
        assert 2.5 < x_ND[11].norm() / x_ND[:11].norm(dim=1).mean() < 4


class Undocumented:
    """Half of it is.

    Args:
        said: what this is.
    """

    def __init__(self, dim: int, *, said: int, unsaid: int = 3) -> None: ...


def test_a_parameter_that_nobody_explains_is_an_error():
    with pytest.raises(InputError, match=r"Undocumented does not say what unsaid is; add it to Args"):
        parameters_of(Undocumented)


def test_cells_hold_what_would_end_them():
    assert table(("a", "b"), [("int | None", "two\n\nlines")], right=(1,)).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        r"| int \| None | two lines |",
    ]


def small(root: Path, **pages: str) -> Site:
    """Return the site of a repository that has a README and some pages of its own."""
    (root / "docs").mkdir()
    (root / "README.md").write_text(
        "# R\nfirst\n## One\n[a](two.csv) `[b](no.csv)`\n### Deep\nd\n```\n# no heading\n```\n## Two\n"
    )
    (root / "two.csv").write_text("1\n")
    for name, text in pages.items():
        (root / f"docs/{name}.md").write_text(text)
    return Site(root, root / "out")


def test_a_section_comes_with_those_below_it_and_links_follow(tmp_path):
    site = small(tmp_path, p="# P\n## Q\n<!-- include: README.md#one -->\n", q="# [x](../README.md#deep)\n")
    site.write_own_pages()
    assert (tmp_path / "out/p.md").read_text() == (
        "# P\n## Q\n[a](files/two.csv) `[b](no.csv)`\n### Deep\nd\n```\n# no heading\n```\n"
    )
    assert (tmp_path / "out/files/two.csv").read_text() == "1\n"
    assert (tmp_path / "out/q.md").read_text() == "# [x](p.md#deep)\n"


def test_the_beginning_ends_at_the_next_heading(tmp_path):
    site = small(tmp_path, p="# P\n<!-- beginning of: README.md -->\n")
    site.write_own_pages()
    assert (tmp_path / "out/p.md").read_text() == "# P\nfirst\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- include: README.md#tow -->", r"two"),
        ("<!-- include: NONE.md -->", r"NONE\.md: there is no such file"),
        ("# P\n[x](none.csv)", r"docs/p\.md: links to 'none\.csv', which is no file"),
        ("<!-- generated: protocol -->", r"protocols"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        small(tmp_path, p=f"{text}\n").write_own_pages()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds files of something else"):
        small(tmp_path, p="# P\n")
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"


def test_what_is_no_page_any_more_goes_and_what_is_the_same_stays(tmp_path):
    site = small(tmp_path, p="# P\n", q="# Q\n")
    site.write_own_pages()
    before = (tmp_path / "out/p.md").stat().st_mtime_ns
    (tmp_path / "docs/q.md").unlink()
    again = Site(tmp_path, tmp_path / "out")
    again.write_own_pages()
    again.remove_others()
    assert not (tmp_path / "out/q.md").exists()
    assert (tmp_path / "out/p.md").stat().st_mtime_ns == before
