"""The table of all benchmarks: their names, and the loop that measures them."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
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
from benchmarks.report import BenchReport
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

BENCHMARKS: dict[str, Callable[[Scale], Iterable[Measurement]]] = {
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
LAST_START: dict[Scale, float] = {"full": math.inf, "quick": 210.0, "tiny": math.inf}
"""Seconds after which no benchmark begins, so that `--quick` ends within five minutes on a busy machine too."""


def measure(names: Sequence[str], report: BenchReport) -> None:
    """Run benchmarks one after another, and print each row once it is measured; one that fails keeps none from it.

    Args:
        names: of benchmarks, in order.
        report: is filled.

    Raises:
        InputError: a name that no benchmark has.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    ends = time.monotonic() + LAST_START[report.scale]
    with tqdm(names, desc="benchmarks", unit="benchmark") as bar:
        for name in bar:
            bar.set_postfix_str(name)
            rows = report.rows.setdefault(name, [])
            try:
                if time.monotonic() > ends:
                    raise InputError(f"the time was over; --quick --only {name} measures it")
                for row in BENCHMARKS[name](report.scale):
                    rows.append(row)
                    _print(report.line(row))
            except InputError as error:
                report.unmeasured[name] = str(error)
                _print(f"{name}: not measured: {error}")
            except Exception as error:
                traceback.print_exc()
                report.failed[name] = repr(error)


def _print(line: str) -> None:
    """Print beside the progress bar, at once also where the output is a file."""
    tqdm.write(line)
    sys.stdout.flush()
