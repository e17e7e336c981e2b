"""`polypool serve RUN`: Serve a trained model as a page and an HTTP API: embeddings, scores, answers, search.

    polypool serve RUN_ID
    curl localhost:8000/embed -H 'Content-Type: application/json' -d '{"rows": [{"text": "a dog on the grass"}]}'

Browsers get the page. For programs, `GET /` describes the model, `GET /openapi.json` the API, and `GET /health` is a
health check. Concurrent requests are batched. The model runs in this process, or with --replicas in Ray Serve
processes, on a private Ray or the cluster of RAY_ADDRESS.
"""

from __future__ import annotations

from pathlib import Path

import tyro

from polypool.infra.process.command import command
from polypool.pipelines.serving.schema import Address, Settings


def serve(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    at: tyro.conf.OmitArgPrefixes[Address],
    *,
    token_file: Path | None = None,
    open: bool = False,
) -> None:
    """Serve a trained model until Ctrl-C.

    Args:
        settings: model and limits.
        at: address.
        token_file: file with the token that clients must send (default: POLYPOOL_SERVE_TOKEN, or no token if unset).
            With a token the page is disabled.
        open: accept clients from other machines without a token.
    """
    from polypool.pipelines.serving import start

    start.serve(settings, at, token_file=token_file, open_to_all=open)


@command
def main() -> None:
    tyro.cli(serve, prog="polypool serve", description=__doc__)
