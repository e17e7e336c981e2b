"""The table of all benchmarks: which there are, their rows, and the machine that they were measured on."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from infra.errors import InputError, unknown
from infra.ray.session import local_cores
from infra.tables import aligned
from pipelines.benchmarks.measure import Measurement
from pipelines.benchmarks.objectives import adopt, smooth_chamfer
from pipelines.benchmarks.phrases import phrases
from pipelines.benchmarks.pooling import costs, pooling
from pipelines.benchmarks.query import query
from pipelines.benchmarks.ranks import ranks, ranks_in_chunks
from pipelines.benchmarks.steps import step, video_step, workers
from pipelines.benchmarks.store import store, store_memory
from pipelines.benchmarks.videos import decoders, videos
from pipelines.benchmarks.vqa_metric import vqa_metric
from pipelines.benchmarks.vqa_step import vqa_step

BENCHMARKS: dict[str, Callable[..., list[Measurement]]] = {
    "store": store,
    "memory": store_memory,
    "ranks": ranks,
    "chunks": ranks_in_chunks,
    "costs": costs,
    "pooling": pooling,
    "query": query,
    "adopt": adopt,
    "smooth_chamfer": smooth_chamfer,
    "phrases": phrases,
    "step": step,
    "video_step": video_step,
    "videos": videos,
    "decoders": decoders,
    "vqa_step": vqa_step,
    "vqa_metric": vqa_metric,
    "workers": workers,
}
COLUMNS = ("row", "ours", "reference", "ratio (lowest-highest)", "target", "met")
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What came out: the rows, and for benchmarks that this machine cannot run, why."""

    rows: tuple[Measurement, ...]
    unmeasured: dict[str, str]

    def __str__(self) -> str:
        """Return table and notes, at most 110 columns wide."""
        left = (0, len(COLUMNS) - 1)
        lines = [*aligned(COLUMNS, [row.entries() for row in self.rows], width=WIDTH, left=left), ""]
        for row in self.rows:
            lines += _wrap(f"{row.name}: {row.measured}. {row.note}")
        for name, why in self.unmeasured.items():
            lines += _wrap(f"{name}: not measured: {why}")
        return "\n".join(lines)


def measure(names: Sequence[str], *, quick: bool = False) -> BenchReport:
    """Run benchmarks one after another.

    Raises:
        InputError: a name that no benchmark has.
    """
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    rows: list[Measurement] = []
    unmeasured: dict[str, str] = {}
    with tqdm(names, desc="benchmarks", unit="benchmark") as bar:
        for name in bar:
            bar.set_postfix_str(name)
            try:
                rows += BENCHMARKS[name](quick=quick)
            except InputError as error:
                unmeasured[name] = str(error)
    return BenchReport(rows=tuple(rows), unmeasured=unmeasured)


def machine() -> str:
    """Describe what the numbers were measured on."""
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{platform.system()} {platform.machine()}, {local_cores()} cores{gpu}, Python {platform.python_version()}, "
        f"torch {torch.__version__} with {torch.get_num_threads()} threads"
    )


def _wrap(note: str) -> list[str]:
    return textwrap.wrap(note, WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
