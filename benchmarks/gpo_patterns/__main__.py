"""`python -m benchmarks.gpo_patterns`: how well four designs of GPO learn known pooling patterns.

Table 11 of VSE-infinity (appendix B.3). A generator makes pooling weights from the size of a set alone; trained on
sizes from 20 to 100, it is scored by the error of its weights on those and on others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import tyro

from polypool.infra.errors import InputError
from polypool.infra.process.command import command


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """How long it takes."""

    seeds: int = 3
    """Repetitions, with first weights and features of their own."""
    steps: int = 500
    """Training steps of every generator."""
    quick: bool = False
    """One seed and a few steps, to see that everything runs; the numbers then say nothing."""
    experiment: str = "synthetic"
    """MLflow experiment."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, not {getattr(self, name)}")


@command
def main() -> None:
    """Train, print the table, and keep it."""
    options = tyro.cli(SyntheticOptions, prog="python -m benchmarks.gpo_patterns", description=__doc__)
    import torch

    from benchmarks.gpo_patterns.experiment import DESIGNS, OURS, score, track, train
    from benchmarks.gpo_patterns.report import FIGURE

    torch.set_num_threads(1)  # the generators share the cores
    seeds, steps = (1, 5) if options.quick else (options.seeds, options.steps)
    generators = train(DESIGNS, seeds=seeds, steps=steps)
    results = score(DESIGNS, generators)
    text = f"{results.table()}\n\n{results.verdict(OURS)}"
    print(f"error (RMSE) of pooling weights: mean ± deviation, {seeds} seeds of {steps} steps\n\n{text}")
    tracker = track(results, text, generators, experiment=options.experiment, params=asdict(options))
    print(f"learned weights: {tracker.download(FIGURE)} (run {tracker.run_id} of {options.experiment!r})")


if __name__ == "__main__":
    main()
