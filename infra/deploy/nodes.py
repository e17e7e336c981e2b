"""`python -m infra.deploy.nodes COUNT SECONDS`: wait until the Ray that RAY_ADDRESS names has all its machines."""

from __future__ import annotations

import sys
import time

from infra.errors import InputError, command
from infra.ray.session import ray_session


def addresses() -> list[str]:
    """Return the addresses of the machines that the open session's cluster has now."""
    import ray

    return sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])


def wait_for(count: int, *, seconds: float) -> list[str]:
    """Return the addresses of all machines once there are `count` of them.

    Raises:
        InputError: there are fewer after `seconds`.
    """
    limit = time.monotonic() + seconds
    while len(there := addresses()) < count:
        if time.monotonic() >= limit:
            raise InputError(
                f"{len(there)} of {count} machines came to the Ray cluster in {seconds:.0f} seconds "
                f"({', '.join(there)}); what the others said is in the output above"
            )
        time.sleep(1)
    return there


@command
def main() -> None:
    """Wait, and print who is there."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    with ray_session():
        there = wait_for(count, seconds=seconds)
    print(f"Ray has {len(there)} machines: {', '.join(there)}")


if __name__ == "__main__":
    main()
