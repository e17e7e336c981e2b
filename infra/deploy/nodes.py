"""`python -m polypool.infra.deploy.nodes COUNT SECONDS`: wait for all nodes of a Ray cluster."""

from __future__ import annotations

import sys
import time

from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.infra.ray import ray_session


def wait_for(count: int, *, seconds: float) -> list[str]:
    """Return the addresses of all nodes, as soon as `count` have joined.

    Raises:
        InputError: fewer have joined after `seconds`.
    """
    import ray

    limit = time.monotonic() + seconds
    while True:
        there = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if len(there) >= count:
            return there
        if time.monotonic() >= limit:
            raise InputError(
                f"{len(there)} of {count} machines joined the Ray cluster in {seconds:.0f} seconds "
                f"({', '.join(there)}); the output of the others is above"
            )
        time.sleep(1)


@command
def main() -> None:
    """Wait, and print the addresses."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    with ray_session():
        there = wait_for(count, seconds=seconds)
    print(f"Ray has {len(there)} machines: {', '.join(there)}")


if __name__ == "__main__":
    main()
