"""`python -m benchmarks.gpu`: checks and measures every path that only a GPU takes, in one table.

A path whose results are wrong is reported as failed, and it then ends with 1, as where a target is missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from polypool.infra.errors import InputError
from polypool.infra.process.command import command


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options of `python -m benchmarks.gpu`."""

    markdown: bool = False
    """Print the rows as a table of docs/speed.md."""


@command
def main() -> None:
    options = tyro.cli(GpuOptions, description=__doc__)
    import torch

    if not torch.cuda.is_available():
        raise InputError("torch finds no GPU here; run it on a machine with one, and a torch with CUDA")
    from benchmarks.gpu.paths import PATHS
    from benchmarks.run import run

    run(PATHS, "quick", markdown=options.markdown)


if __name__ == "__main__":
    main()
