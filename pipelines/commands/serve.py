"""`polypool serve RUN`: Serve a trained model as a page and an HTTP API: embeddings, scores, answers, search.

    polypool serve RUN_ID
    curl localhost:8000/embed -H 'Content-Type: application/json' -d '{"rows": [{"text": "a dog on the grass"}]}'

A browser gets the page. For programs, `GET /` says what is served, `GET /openapi.json` in which form, `GET /health`
whether the model answers. Rows of concurrent requests go through the model together. The model is in this process, or
with --replicas in processes of Ray Serve, on a Ray of its own or on the cluster that RAY_ADDRESS names.
"""

from __future__ import annotations

from pathlib import Path

import tyro

from polypool.infra.process.command import command
from polypool.pipelines.serving.schema import Place, Settings


def serve(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    at: tyro.conf.OmitArgPrefixes[Place],
    *,
    token_file: Path | None = None,
    open: bool = False,
) -> None:
    """Serve a trained model until Ctrl-C.

    Args:
        settings: what is served.
        at: where.
        token_file: file with the token that clients must send; without, that of POLYPOOL_SERVE_TOKEN, and none where
            that is not set. With a token there is no page.
        open: answer any client, also from other machines and without a token.
    """
    from polypool.pipelines.serving import start

    start.serve(settings, at, token_file=token_file, open_to_all=open)


@command
def main() -> None:
    tyro.cli(serve, prog="polypool serve", description=__doc__)
