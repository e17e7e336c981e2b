"""`python -m docs.generate OUT`: write the sources of the site into a folder, for `make docs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from infra.errors import command


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Where to."""

    out: tyro.conf.Positional[Path]
    """A folder; what an earlier call left there is renewed."""


@command
def main() -> None:
    """Write them."""
    options = tyro.cli(GenerateOptions, prog="python -m docs.generate", description=__doc__)
    from docs.generate.site import write_site

    write_site(Path(__file__).resolve().parents[2], options.out.resolve())


if __name__ == "__main__":
    main()
