"""Growth of `compare` with the number of runs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.comparing.compare import compare
from benchmarks.comparing.made_up_runs import make_experiment
from benchmarks.measure import Measurement, Scale, Size, by_turns, of_children


@dataclass(frozen=True, kw_only=True)
class ManySize(Size):
    """So many runs, and `times` as many, in as many rows."""

    quick: ClassVar = {"runs": 500, "times": 4}
    tiny: ClassVar = {"runs": 4, "times": 2, "rows": 2, "images": 8}
    runs: int = 2_000
    times: int = 10
    rows: int = 20
    images: int = 50
    captions: int = 1
    rounds: int = 1


def comparing_many(scale: Scale = "full") -> list[Measurement]:
    """Measure what a run costs the verb among many runs, against among few."""
    size = ManySize.of(scale)
    many = size.runs * size.times
    with tempfile.TemporaryDirectory() as name:
        places = {}
        for runs in (size.runs, many):
            home = Path(name) / str(runs)
            home.mkdir()
            places[runs] = (
                home,
                make_experiment(home, runs=runs, rows=size.rows, images=size.images, captions=size.captions),
            )

        def a_run(runs: int) -> float:
            before = of_children()
            compare(*places[runs])
            return 1e3 * (of_children() - before) / runs

        sides = by_turns(lambda _: a_run(many), lambda _: a_run(size.runs), rounds=size.rounds)
    return [
        Measurement(
            name=f"compare: a run among {many:,}",
            measured=f"processor time of a run of {size.images} images in {size.rows} rows; reference: among "
            f"{size.runs:,}, start included",
            unit="ms",
            goal="at most",
            target=1.25,
            **sides.numbers(),
        )
    ]
