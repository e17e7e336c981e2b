"""The table of all benchmarks: their names, their rows, and the targets that were missed."""

from __future__ import annotations

import itertools
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tqdm import tqdm

from benchmarks.comparing.compare import comparing
from benchmarks.features.cold import against, store_beyond, store_cold
from benchmarks.features.images import images
from benchmarks.features.other_formats import LANCE, LMDB, WEBDATASET
from benchmarks.features.remote import remote_store
from benchmarks.features.store import store, store_memory
from benchmarks.features.videos import decoders, videos
from benchmarks.measure import Measurement, Scale
from benchmarks.pooling.costs import costs
from benchmarks.pooling.gpo import pooling
from benchmarks.pooling.growth import growth
from benchmarks.pooling.sorted_sum import sorting
from benchmarks.scoring.evaluation import evaluation
from benchmarks.scoring.objectives import adopt, smooth_chamfer
from benchmarks.scoring.phrases import phrases
from benchmarks.scoring.ranks import ranks, ranks_in_chunks
from benchmarks.scoring.reranking import reranking
from benchmarks.scoring.vqa_accuracy import vqa_metric
from benchmarks.searching.page import page
from benchmarks.searching.query import query
from benchmarks.training.chunked import chunked
from benchmarks.training.paper import paper_step
from benchmarks.training.questions import vqa_step
from benchmarks.training.start import start
from benchmarks.training.steps import step, video_step, workers
from polypool.infra.errors import InputError, unknown
from polypool.infra.text_tables import aligned

BENCHMARKS: dict[str, Callable[[Scale], list[Measurement]]] = {
    "store": store,
    "store_cold": store_cold,
    "store_beyond": store_beyond,
    "lmdb": partial(against, LMDB),
    "webdataset": partial(against, WEBDATASET),
    "lance": partial(against, LANCE),
    "memory": store_memory,
    "remote_store": remote_store,
    "images": images,
    "videos": videos,
    "decoders": decoders,
    "sorted_sum": sorting,
    "pooling": pooling,
    "costs": costs,
    "growth": growth,
    "ranks": ranks,
    "chunks": ranks_in_chunks,
    "evaluation": evaluation,
    "rerank": reranking,
    "smooth_chamfer": smooth_chamfer,
    "adopt": adopt,
    "phrases": phrases,
    "vqa_metric": vqa_metric,
    "query": query,
    "page": page,
    "compare": comparing,
    "paper_step": paper_step,
    "step": step,
    "video_step": video_step,
    "vqa_step": vqa_step,
    "chunked_step": chunked,
    "workers": workers,
    "start": start,
}
"""All benchmarks by name, in the order of the table."""
QUICK = (
    "store",
    "sorted_sum",
    "pooling",
    "ranks",
    "evaluation",
    "adopt",
    "phrases",
    "vqa_metric",
    "paper_step",
)
"""Those that `--quick` measures where no names are given: under two minutes in all, on two cores."""
SLACK: dict[Scale, float] = {"full": 1.0, "quick": 2.0}
"""How many times off its target a ratio may be: a short measurement on a busy machine shows what is broken, no more."""
COLUMNS = ("row", "ours", "reference", "ratio (lowest-highest)", "target", "met")
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What came out.

    Args:
        scale: at which it was measured.
        rows: by benchmark, in order.
        unmeasured: benchmarks that this machine cannot run, and why.
        failed: benchmarks that ended with an error, and which.
    """

    scale: Scale
    rows: dict[str, list[Measurement]]
    unmeasured: dict[str, str]
    failed: dict[str, str]

    def __str__(self) -> str:
        """Return table and notes, at most 110 columns wide."""
        left = (0, len(COLUMNS) - 1)
        rows = list(itertools.chain.from_iterable(self.rows.values()))
        lines = [
            *aligned(COLUMNS, [row.entries(SLACK[self.scale]) for row in rows], width=WIDTH, left=left),
            "",
        ]
        for row in rows:
            lines += _wrap(f"{row.name}: {row.measured}. {row.note}")
        for name, why in self.unmeasured.items():
            lines += _wrap(f"{name}: not measured: {why}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the rows as the table of docs/speed.md, without details."""
        lines = [
            "| row | what | ours | reference | ratio | target |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
        ]
        for row in itertools.chain.from_iterable(self.rows.values()):
            if not row.detail:
                name, ours, reference, ratio, target, _ = row.entries()
                lines.append(f"| {name} | {row.measured} | {ours} | {reference} | {ratio} | {target} |")
        return "\n".join(lines)

    def complaints(self) -> list[str]:
        """Return a line for each target that was missed, and for each benchmark that failed."""
        slack = SLACK[self.scale]
        missed = [
            f"{row.name}: {row.shown_ratio()}, wanted {row.shown_target(slack)}"
            for row in itertools.chain.from_iterable(self.rows.values())
            if row.misses(slack)
        ]
        return [*missed, *(f"{name}: failed: {error}" for name, error in self.failed.items())]


def measure(names: Sequence[str], scale: Scale = "full") -> BenchReport:
    """Run benchmarks one after another; one that fails keeps none from being measured.

    Raises:
        InputError: a name that no benchmark has.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    report = BenchReport(scale=scale, rows={}, unmeasured={}, failed={})
    with tqdm(names, desc="benchmarks", unit="benchmark") as bar:
        for name in bar:
            bar.set_postfix_str(name)
            try:
                report.rows[name] = BENCHMARKS[name](scale)
            except InputError as error:
                report.unmeasured[name] = str(error)
            except Exception as error:
                traceback.print_exc()
                report.failed[name] = repr(error)
    return report


def _wrap(note: str) -> list[str]:
    return textwrap.wrap(note, WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
