"""The process that has a private Ray: it starts it, says where it is, and ends it when its standard input ends.

Run by `infra.ray.private`, as a file: it imports nothing but Ray, and stands in nobody's current folder.
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
    # Ray Train frees the cores of a run that was ended by force only if it finds the session, and where several run on
    # a machine it finds none by itself
    address = f"{get_node_ip_address()}:{port}"
    os.environ |= {"RAY_GCS_SERVER_PORT": str(port), "RAY_ADDRESS": address}
    ray.init(address="local", logging_level=logging.ERROR, log_to_driver=False, **json.loads(sys.argv[1]))
    print(address, flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
