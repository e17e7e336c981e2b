"""The process that owns a private Ray: prints its address, and ends it at the end of standard input.

Run as a file by `polypool.infra.ray.private`; imports nothing but Ray.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys


def main() -> None:
    """Start Ray with the options of the only argument, as JSON, and wait."""
    import ray
    from ray.util import get_node_ip_address

    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    # Ray Train frees the cores of a killed run only if it finds the session, which it does not where several run here
    address = f"{get_node_ip_address()}:{port}"
    os.environ |= {"RAY_GCS_SERVER_PORT": str(port), "RAY_ADDRESS": address}
    ray.init(address="local", logging_level=logging.ERROR, log_to_driver=False, **json.loads(sys.argv[1]))
    print(address, flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
