"""`python -m benchmarks [NAME ...] [--quick]`: ratios of this project's speed to a reference, measured side by side.

Each name is one of `SCRIPTS` or `gpu`, a script of this folder, whose docstring names its reference; without names,
all of `SCRIPTS` run. The line of a ratio has the medians of both sides and of the ratio, and the lowest and the highest
ratio of a round. `--quick` runs the scripts at tiny sizes, whose numbers mean nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module

from polypool.infra.errors import InputError

SCRIPTS = ("step", "gpo", "aggregators", "store", "evaluation", "row", "extract", "serve")


def main() -> None:
    """Run the scripts one after another; skip those that cannot run here."""
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    for name in names or SCRIPTS:
        print(f"{name}:", flush=True)
        try:
            import_module(f"benchmarks.{name}").main(quick="--quick" in sys.argv)
        except InputError as error:
            print(f"not measured: {error}", flush=True)


if __name__ == "__main__":
    main()
