"""`python -m pipelines.bench`: one table of ratios, each measured side by side on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from infra.errors import command


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure."""

    only: tuple[str, ...] = ()
    """Names of benchmarks: store, memory, ranks, chunks, costs, pooling, query, adopt, smooth_chamfer, phrases, step,
    video_step, videos, decoders, vqa_step, vqa_metric, workers; all where none is given."""
    quick: bool = False
    """Tiny sizes, to see that everything runs; the ratios then say nothing."""


@command
def main() -> None:
    """Measure and print; a target that is missed is shown so, and is no error."""
    options = tyro.cli(BenchOptions, description=__doc__)
    from pipelines.benchmarks.table import BENCHMARKS, machine, measure

    print(machine(), flush=True)
    report = measure(tuple(dict.fromkeys(options.only)) or tuple(BENCHMARKS), quick=options.quick)
    print(f"\n{report}")
    if options.quick:
        print("\n--quick: tiny sizes; these ratios say nothing")


if __name__ == "__main__":
    main()
