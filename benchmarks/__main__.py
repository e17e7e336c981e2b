"""`python -m benchmarks`: ratios, each measured side by side on this machine and printed once it is measured.

A table follows, and which rows changed since that of docs/speed.md by more than their noise. It ends with 1 where a
target is missed, and says which. Stopped, by Ctrl-C or SIGTERM, it says the same of what was measured until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from polypool.infra.process.command import command


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `python -m benchmarks`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """Names of benchmarks; all where none is given: store, store_cold, store_beyond, lmdb, webdataset, lance, memory,
    remote_store, images, videos, decoders, sorted_sum, pooling, gpo_sizes, costs, growth, exponents, ranks, chunks,
    evaluation, rerank, smooth_chamfer, adopt, phrases, vqa_metric, query, sets, page, api, compare,
    compare_many, bigru, varied_rows, attention, paper_step, bert_step, grid_step, step, video_step, vqa_step,
    chunked_step, workers, row."""
    quick: bool = False
    """Smaller sizes and, without names, only the most telling benchmarks: under two minutes on two cores. The processor
    time of one thread is measured, so that a busy machine gives the same ratios; a target counts as missed where it is
    missed by more than a factor of two."""
    markdown: bool = False
    """Print the table of docs/speed.md."""


@command
def main() -> None:
    options = tyro.cli(BenchOptions, description=__doc__)
    import torch

    from benchmarks.run import run
    from benchmarks.table import BENCHMARKS, QUICK, chosen

    if options.quick:
        torch.set_num_threads(1)  # whose processor's time is taken (`benchmarks.measure.seconds`)
    benchmarks = chosen(options.only or (QUICK if options.quick else tuple(BENCHMARKS)))
    run(benchmarks, "quick" if options.quick else "full", markdown=options.markdown)


if __name__ == "__main__":
    main()
