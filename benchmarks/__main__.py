"""`python -m benchmarks`: ratios, each measured side by side on this machine and printed once it is measured.

A table follows, and which rows changed since that of docs/speed.md by more than their noise. It ends with 1 where a
target is missed, and says which. Stopped, by Ctrl-C or SIGTERM, it says the same of what was measured until then.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from polypool.infra.process.command import command

if TYPE_CHECKING:
    from benchmarks.machine import Machine
    from benchmarks.report import BenchReport


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `python -m benchmarks`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """Names of benchmarks; all where none is given: store, store_cold, store_beyond, lmdb, webdataset, lance, memory,
    remote_store, images, videos, decoders, sorted_sum, pooling, costs, growth, ranks, chunks, evaluation, rerank,
    smooth_chamfer, adopt, phrases, vqa_metric, query, page, compare, paper_step, step, video_step, vqa_step,
    chunked_step, workers, start."""
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

    from benchmarks.machine import Machine
    from benchmarks.report import WIDTH, BenchReport
    from benchmarks.table import BENCHMARKS, QUICK, measure

    if options.quick:
        torch.set_num_threads(1)  # whose processor's time is taken (`benchmarks.measure.seconds`)
    machine = Machine.here()
    print(textwrap.fill(str(machine), WIDTH, break_on_hyphens=False), flush=True)
    names = tuple(dict.fromkeys(options.only)) or (QUICK if options.quick else tuple(BENCHMARKS))
    report = BenchReport(scale="quick" if options.quick else "full")
    try:
        measure(names, report)
    except KeyboardInterrupt:
        conclude(report, machine, markdown=options.markdown)
        raise
    if conclude(report, machine, markdown=options.markdown):
        raise SystemExit(1)


def conclude(report: BenchReport, machine: Machine, *, markdown: bool) -> bool:
    """Print the table, what changed, and the missed targets to standard error; return whether there are any."""
    from benchmarks.committed import MACHINE, Committed

    if markdown:
        print(f"\n{MACHINE}{machine.brief()}\n\n{report.markdown()}", flush=True)
    else:
        print(f"\n{report}", flush=True)
    if report.scale == "full":  # of other sizes the page says nothing
        print(f"\n{Committed.read().changes(report.all_rows, machine=machine.brief())}", flush=True)
    complaints = report.complaints()
    if complaints:
        print("\n".join(["", "missed:", *complaints]), file=sys.stderr, flush=True)
    return bool(complaints)


if __name__ == "__main__":
    main()
