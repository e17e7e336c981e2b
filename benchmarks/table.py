"""The names of all benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.comparing.compare import comparing
from benchmarks.comparing.growth import comparing_many
from benchmarks.encoding.attention import attention
from benchmarks.encoding.bigru import bigru
from benchmarks.encoding.varied_rows import varied_rows
from benchmarks.features.cold import against, store_beyond, store_cold
from benchmarks.features.images import images
from benchmarks.features.other_formats import LANCE, LMDB, WEBDATASET
from benchmarks.features.remote import remote_store
from benchmarks.features.store import store, store_memory
from benchmarks.features.videos import decoders, videos
from benchmarks.pooling.costs import costs
from benchmarks.pooling.gpo import pooling
from benchmarks.pooling.growth import growth
from benchmarks.pooling.sizes import gpo_sizes
from benchmarks.pooling.sorted_sum import sorting
from benchmarks.run import Benchmark
from benchmarks.scaling.exponents import exponents
from benchmarks.scoring.evaluation import evaluation
from benchmarks.scoring.objectives import adopt, smooth_chamfer
from benchmarks.scoring.phrases import phrases
from benchmarks.scoring.ranks import ranks, ranks_in_chunks
from benchmarks.scoring.reranking import reranking
from benchmarks.scoring.vqa_accuracy import vqa_metric
from benchmarks.searching.api import api
from benchmarks.searching.page import page
from benchmarks.searching.query import query
from benchmarks.searching.sets import sets
from benchmarks.training.bert import bert_step
from benchmarks.training.chunked import chunked
from benchmarks.training.grid import grid_step
from benchmarks.training.paper import paper_step
from benchmarks.training.questions import vqa_step
from benchmarks.training.row import row
from benchmarks.training.steps import step, video_step, workers
from polypool.infra.errors import unknown

BENCHMARKS: dict[str, Benchmark] = {
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
    "gpo_sizes": gpo_sizes,
    "costs": costs,
    "growth": growth,
    "exponents": exponents,
    "ranks": ranks,
    "chunks": ranks_in_chunks,
    "evaluation": evaluation,
    "rerank": reranking,
    "smooth_chamfer": smooth_chamfer,
    "adopt": adopt,
    "phrases": phrases,
    "vqa_metric": vqa_metric,
    "query": query,
    "sets": sets,
    "page": page,
    "api": api,
    "compare": comparing,
    "compare_many": comparing_many,
    "bigru": bigru,
    "varied_rows": varied_rows,
    "attention": attention,
    "paper_step": paper_step,
    "bert_step": bert_step,
    "grid_step": grid_step,
    "step": step,
    "video_step": video_step,
    "vqa_step": vqa_step,
    "chunked_step": chunked,
    "workers": workers,
    "row": row,
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


def chosen(names: Sequence[str]) -> dict[str, Benchmark]:
    """Return the benchmarks of these names, each once.

    Raises:
        InputError: a name that no benchmark has.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    return {name: BENCHMARKS[name] for name in names}
