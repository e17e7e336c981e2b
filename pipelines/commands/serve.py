"""`polypool serve RUN`: Serve a trained model as a page and an HTTP API: embeddings, scores, answers, search.

    polypool serve RUN_ID
    curl localhost:8000/embed -H 'Content-Type: application/json' -d '{"rows": [{"text": "a dog on the grass"}]}'

A browser gets the page. For programs, `GET /` says what is served, `GET /openapi.json` in which form, `GET /health`
whether the model answers. Rows of concurrent requests go through the model together. The model is in this process, or
with --replicas in processes of Ray Serve, on a Ray of its own or on the cluster that RAY_ADDRESS names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.process.command import command
from polypool.pipelines.models.search import Method
from polypool.pipelines.serving.settings import Limits, Place, Replicas, Settings


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What is served, where, and to whom."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained, or the folder or URL that `export` made of one."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own needs a token, or --open."""
    port: int = 8000
    """Its port; 0 for a free one."""
    route: str = "/"
    """Prefix of all addresses, where a cluster has several services."""
    name: str = "polypool"
    """The service's name on the cluster."""
    token_file: Path | None = None
    """File with the token that clients must send; without, that of POLYPOOL_SERVE_TOKEN, and none where that is not
    set. With a token there is no page."""
    open: bool = False
    """Answer any client, also from other machines and without a token."""
    page: bool = True
    """Serve the page."""
    split: str | None = None
    """The split that is searched; where not given, test, if the corpus is at hand."""
    search: bool = True
    """Search the run's corpus."""
    images: bool = True
    """Take images for a model that reads features, which the backbone of its store then computes."""
    index: Method = "auto"
    """How a split is searched, as in `search`."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run or its store may name, as module:Name; once for each."""
    replicas: tyro.conf.OmitArgPrefixes[Replicas] = field(default_factory=Replicas)
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)


@command
def main() -> None:
    options = tyro.cli(ServeOptions, prog="polypool serve", description=__doc__)
    from polypool.pipelines.serving.start import serve

    settings = Settings(
        source=options.run_id,
        split=options.split,
        search=options.search,
        page=options.page,
        images=options.images,
        index=options.index,
        trust=options.trust,
        replicas=options.replicas,
        limits=options.limits,
    )
    place = Place(host=options.host, port=options.port, route=options.route, name=options.name)
    serve(settings, place, token_file=options.token_file, open_to_all=options.open)


if __name__ == "__main__":
    main()
