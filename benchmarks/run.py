"""Benchmarks one after another: rows as they are measured, then a table, what changed, and what missed its target."""

from __future__ import annotations

import math
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Mapping

from tqdm import tqdm

from benchmarks.committed import MACHINE, Committed
from benchmarks.machine import Machine
from benchmarks.measure import Measurement, Scale
from benchmarks.report import WIDTH, BenchReport
from polypool.infra.errors import InputError

Benchmark = Callable[[Scale], Iterable[Measurement]]
LAST_START: dict[Scale, float] = {"full": math.inf, "quick": 210.0, "tiny": math.inf}
"""Seconds after which no benchmark begins, so that `--quick` ends within five minutes on a busy machine too."""


def run(benchmarks: Mapping[str, Benchmark], scale: Scale, *, markdown: bool = False) -> None:
    """Measure and print all; stopped by a signal, print what was measured until then.

    Args:
        benchmarks: by name, in order.
        scale: of all of them.
        markdown: whether to print the table as docs/speed.md has it.

    Raises:
        SystemExit: with 1, where a target was missed or a benchmark failed.
    """
    machine, report = Machine.here(), BenchReport(scale=scale)
    print(textwrap.fill(str(machine), WIDTH, break_on_hyphens=False), flush=True)
    try:
        measure(benchmarks, report)
    except KeyboardInterrupt:
        conclude(report, machine, markdown=markdown)
        raise
    if conclude(report, machine, markdown=markdown):
        raise SystemExit(1)


def measure(benchmarks: Mapping[str, Benchmark], report: BenchReport) -> None:
    """Measure benchmarks, and print each row once it is measured; one that fails keeps no other from it.

    Args:
        benchmarks: by name, in order.
        report: is filled.
    """
    ends = time.monotonic() + LAST_START[report.scale]
    with tqdm(benchmarks.items(), desc="benchmarks", unit="benchmark") as bar:
        for name, benchmark in bar:
            bar.set_postfix_str(name)
            rows = report.rows.setdefault(name, [])
            try:
                if time.monotonic() > ends:
                    raise InputError("the time was over; alone, by --only, it is measured")
                for row in benchmark(report.scale):
                    rows.append(row)
                    _print(report.line(row))
            except InputError as error:
                report.unmeasured[name] = str(error)
                _print(f"{name}: not measured: {error}")
            except Exception as error:
                if isinstance(error.__context__, KeyboardInterrupt):  # a clean-up failed that a signal began
                    raise error.__context__ from None
                traceback.print_exc()
                report.failed[name] = repr(error)


def conclude(report: BenchReport, machine: Machine, *, markdown: bool) -> bool:
    """Print the table, what changed, and the missed targets to standard error; return whether there are any."""
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


def _print(line: str) -> None:
    """Print beside the progress bar, at once also where the output is a file."""
    tqdm.write(line)
    sys.stdout.flush()
