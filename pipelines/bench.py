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
    """Smaller sizes and, where no names are given, only the rows that say most."""


@command
def main() -> None:
    """Measure and print; a target that is missed is shown so, and is no error."""
    options = tyro.cli(BenchOptions, description=__doc__)
    from pipelines.benchmarks.table import BENCHMARKS, QUICK, machine, measure

    print(machine(), flush=True)
    names = tuple(dict.fromkeys(options.only)) or (QUICK if options.quick else tuple(BENCHMARKS))
    print(f"\n{measure(names, 'quick' if options.quick else 'full')}")


if __name__ == "__main__":
    main()
