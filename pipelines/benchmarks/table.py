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
from pipelines.benchmarks.features.store import store, store_memory
from pipelines.benchmarks.features.videos import decoders, videos
from pipelines.benchmarks.measure import Measurement, Scale
from pipelines.benchmarks.pooling.costs import costs
from pipelines.benchmarks.pooling.gpo import pooling
from pipelines.benchmarks.scoring.objectives import adopt, smooth_chamfer
from pipelines.benchmarks.scoring.phrases import phrases
from pipelines.benchmarks.scoring.ranks import ranks, ranks_in_chunks
from pipelines.benchmarks.scoring.vqa_accuracy import vqa_metric
from pipelines.benchmarks.searching.query import query
from pipelines.benchmarks.training.questions import vqa_step
from pipelines.benchmarks.training.steps import step, video_step, workers

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
QUICK = ("store", "ranks", "pooling", "adopt", "smooth_chamfer", "phrases", "vqa_metric")
"""What `--quick` measures where no names are given."""
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


def measure(names: Sequence[str], scale: Scale = "full") -> BenchReport:
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
                rows += BENCHMARKS[name](scale)
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
