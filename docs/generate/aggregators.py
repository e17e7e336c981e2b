"""A page for each aggregator, and the list of all, in the folder `docs/aggregators`."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from docs.generate.figures import weights_figure
from docs.generate.parts import code, parameter_table, prose_of, table
from docs.generate.tasks import recipe_table, recipes
from polypool.aggregators.aggregator import Aggregator
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS
from polypool.infra.spec import Spec
from polypool.pipelines.comparison.result_files import read_results
from polypool.pipelines.comparison.results import Result

README = "aggregators/README.md"
"""Its table has a row for each aggregator: idea, source, what it needs, and what it costs."""
FORMULAS = "docs/formulas.toml"
RESULTS = {"ideas": "on-three-tasks", "late": "and-no-pooling"}
"""Tables of `docs/results/rows.csv` whose rows can be compared, and the section of `poolings.md` on each."""
WIDTH = 1024
_LEGEND = (
    "Mean ± sample standard deviation over seeds; \\*: no significant difference from the best of its column (Holm). "
    "Step: in products of two 512 x 512 matrices."
)


@dataclass(frozen=True)
class Listing:
    """A row of the table of `aggregators/README.md`."""

    name: str
    idea: str
    source: str
    needs: str
    parameters: str
    weights: str
    cost: str

    @property
    def part(self) -> type[Aggregator]:
        return AGGREGATORS.get(self.name)

    @property
    def room(self) -> str:
        return self.part.__module__.rpartition(".")[0]


def write_pages(root: Path, out: Path) -> None:
    """Write the pages of a repository into a folder of their own; a file that would stay the same keeps its time.

    Raises:
        InputError: an aggregator lacks a row, a formula or the meaning of a parameter.
    """
    listed, shown = listings(root), formulas(root)
    written = {out / "index.md": list_page(root).encode()}
    for listing in listed:
        figure = weights_figure(listing.name)
        if figure:
            written[out / f"figures/{listing.name}.png"] = figure[0]
        text = page(listing, root, formula=shown[listing.name], figure=figure and figure[1])
        written[out / f"{listing.name}.md"] = text.encode()
    for path in {*out.rglob("*.*")} - {*written}:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    for path, content in written.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def listings(root: Path) -> list[Listing]:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (root / README).read_text(), re.MULTILINE)
    _check_names(README, [name for name, _ in rows])
    return [Listing(name, *(cell.strip() for cell in row.split("|"))) for name, row in rows]


def formulas(root: Path) -> dict[str, str]:
    """Return the formulas of each built-in aggregator as Markdown, with the meaning of their letters."""
    read = tomllib.loads((root / FORMULAS).read_text())
    common = read.pop("common")
    _check_names(FORMULAS, [*read])
    shown = {}
    for name, of in read.items():
        blocks = [f"```{{math}}\n{line}\n```" for line in of["formulas"]]
        letters = f"{common} Here {of['where']}." if "where" in of else common
        shown[name] = "\n\n".join([*blocks, re.sub(r"\$(.+?)\$", r"{math}`\1`", letters)])
    return shown


def _check_names(file: str, names: Sequence[str]) -> None:
    if sorted(names) != (own := AGGREGATORS.built_in()):
        odd = ", ".join(sorted({*names} ^ {*own}))
        raise InputError(f"{file}: expected an entry for each built-in aggregator; they differ in {odd}")


def list_page(root: Path) -> str:
    title, text = (root / README).read_text().split("\n", 1)
    before, after = re.split(r"(?:^\|.*\n)+", text, maxsplit=1, flags=re.MULTILINE)
    rooms: dict[str, list[Listing]] = {}
    for listing in listings(root):
        rooms.setdefault(listing.room, []).append(listing)
    heads = ("name", "idea", "source", "needs", f"weights at width {WIDTH}", "cost")
    parts = [title, before.strip()]
    for room, members in rooms.items():
        rows = [
            (f"[`{of.name}`]({of.name}.md)", of.idea, of.source, of.needs, of.weights, of.cost)
            for of in members
        ]
        about = inspect.getdoc(importlib.import_module(room)) or ""
        parts += [f"## {room.rpartition('.')[2].capitalize()}", about, table(heads, rows, right=(4, 5))]
    pages = "\n".join(of.name for members in rooms.values() for of in members)
    parts += ["## More", after.strip(), f"```{{toctree}}\n:hidden:\n\n{pages}\n```"]
    return "\n\n".join(parts) + "\n"


def page(listing: Listing, root: Path, *, formula: str, figure: str | None) -> str:
    """Return the page of an aggregator; `figure` is what its figure shows, None where it has no weights."""
    name, part = listing.name, listing.part
    idea = f"*{listing.idea[0].upper()}{listing.idea[1:]}.*"
    parts = [
        f"# `{name}`",
        f"{idea} Source: {listing.source}." if listing.source else idea,
        prose_of(part),
        f"    --aggregator {name}",
        _properties(listing),
        prose_of(part.forward),
        f"## Formula\n\n{formula}",
        f"## Parameters\n\n{parameter_table(part)}",
    ]
    if figure:
        alt = f"Weights that {name} gives before training"
        parts += [f"## Weights\n\nWith the default parameters, before training. {figure}"]
        parts += [f"![{alt}](figures/{name}.png)"]
    how = ", in processor time of one thread for sets of 36 x 384" if "*" in listing.cost else ""
    parts += [
        f"## Cost\n\n{listing.weights} weights at width {WIDTH:,}. Forward and backward take {listing.cost.strip('*')} "
        f"times as long as those of `mean`{how} ([how it is measured](index.md#more))."
    ]
    if results := results_of(name, root / "docs/results/rows.csv"):
        parts += [f"## Results\n\n{results}"]
    if used := [recipe for recipe in recipes() if name in recipe.aggregators]:
        parts += [f"## Recipes\n\n{recipe_table(used)}"]
    file = Path(inspect.getfile(part)).relative_to(root).as_posix()
    parts += [f"## Code\n\n`{file}`", f"```{{literalinclude}} ../../{file}\n:language: python\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def _properties(listing: Listing) -> str:
    """Describe in a sentence what the aggregator makes and takes, with its default parameters."""
    with torch.device("meta"):
        module = AGGREGATORS.build(listing.name, WIDTH)
    k = module.num_embeddings
    made = {None: "as many vectors as the set needs", 1: "one vector"}.get(k, f"{k} vectors")
    if module.makes == "distribution":
        made = "a distribution, as a mean and the logarithm of a variance"
    facts = [
        f"makes {made} of a set",
        "" if module.symmetric else "depends on the order of the elements",
        {
            "none": "",
            "set": "uses the elements of the other modality",
            "vector": "uses a vector of the other modality",
        }[module.context],
        "takes a vector of the whole where an encoder makes one" if module.takes_global_feature else "",
    ]
    return f"It {'; it '.join(filter(None, facts))}."


@cache
def _decisive(path: Path) -> tuple[Result, ...]:
    return tuple(record for record in read_results(path) if record.decides)


def results_of(name: str, file: Path) -> str:
    """Return the results of an aggregator with their place among all others; empty where there are none."""
    for group, section in RESULTS.items():
        records = _decisive(file.with_name(f"{file.name}#{group}"))
        # a row names the aggregator of images, and after a comma that of texts where it is another one
        own = [of for of in records if Spec.parse(of.aggregator.partition(", text ")[0]).name == name]
        if own:
            heads = ("row", "data set", "metric", "mean", "place", "chance", "weights", "step")
            rows = table(heads, [_result_row(of, records) for of in own], right=range(3, 8))
            how = f"[{file.name}](../results/{file.name}), `{group}`; [how](../results/poolings.md#{section})"
            return f"{rows}\n\n{_LEGEND} From {how}."
    return ""


def _result_row(of: Result, records: Sequence[Result]) -> tuple[str, ...]:
    def column(record: Result) -> tuple[str, ...]:
        return record.task, record.dataset, record.protocol, record.metric

    scores = [other.mean for other in records if column(other) == column(of) and other.mean is not None]
    place = 1 + sum(score > of.mean if of.higher_is_better else score < of.mean for score in scores)
    deviation = "" if of.deviation is None else f" ± {of.deviation:.1f}"
    same = "\\*" if of.against and of.p is not None and of.p >= 0.05 else ""
    return (
        code(of.row),
        f"{of.dataset} ({of.task})",
        f"{of.metric}, `{of.protocol}`",
        f"{of.mean:.1f}{deviation}{same}",
        f"{place} of {len(scores)}",
        "" if of.chance is None else f"{of.chance:,.1f}",
        "" if of.weights is None else f"{of.weights:,.0f}",
        "" if of.step_cost is None else f"{of.step_cost:,.1f}",
    )
