"""`python -m pipelines.search RUN_ID "a dog on the grass"`: ask a trained model, from the terminal or on a page.

A text finds the images or videos that are like it; --image FILE, --video FILE or --id ID finds the captions that are
like one. A run on questions answers `python -m pipelines.search RUN_ID --image car.jpg "what colour is the car?"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from infra.errors import InputError, command
from pipelines.evaluate import load
from pipelines.searching.answerer import Answerer
from pipelines.searching.finder import Finder
from pipelines.searching.galleries import Method
from pipelines.searching.server import serve
from pipelines.searching.shown import answers_shown, hits_shown


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to look for, and where."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained."""
    query: Annotated[str, tyro.conf.Positional] = ""
    """Text to look for; the question, of a run on questions."""
    image: Path | None = None
    """An image file whose captions are looked for, or that the question is about."""
    video: Path | None = None
    """A video file whose captions are looked for."""
    id: str = ""
    """An image or video of the corpus instead of a file."""
    k: int | None = None
    """Results; by default 10, and 5 answers."""
    split: str = "test"
    """The split that is searched."""
    index: Method = "auto"
    """How: exact, two-pass for many sets of vectors, faiss for many single ones (pip install faiss-cpu)."""
    web: bool = False
    """Open a page on 127.0.0.1."""
    port: int = 0
    """Its port; a free one where none is said."""


def search(options: Options) -> str:
    """Return what the terminal shows of one query.

    Raises:
        InputError: no such run, split, file or id, or a query that the run cannot answer.
    """
    visuals = [one for one in (options.image, options.video, options.id) if one]
    if len(visuals) > 1:
        raise InputError("give one of --image, --video and --id, not several")
    if not options.query and not visuals:
        raise InputError("nothing to look for: give a text, --image FILE, --video FILE, --id ID, or --web")
    asked = open_run(options)
    try:
        if isinstance(asked, Answerer):
            return _answers(asked, options)
        return _hits(asked, options, texts=bool(visuals))
    finally:
        asked.close()


def open_run(options: Options) -> Finder | Answerer:
    """Load a run for searching, or for answering questions.

    Raises:
        InputError: no such run, it kept no model, or k is below 1.
    """
    if options.k is not None and options.k < 1:
        raise InputError(f"--k must be at least 1, not {options.k}")
    trained = load(options.run_id)
    if hasattr(trained.adapter, "vocabulary"):
        return Answerer(trained, split=options.split)
    if not (hasattr(trained.model, "scorer") and hasattr(trained.adapter, "visual_inputs")):
        raise InputError(f"run {options.run_id} is of the task {trained.run.task!r}, which does not search")
    return Finder(trained, split=options.split, method=options.index)


def _answers(answerer: Answerer, options: Options) -> str:
    if options.video or not (options.image or options.id):
        raise InputError(
            "the run answers questions about images: give --image FILE or --id ID with the question"
        )
    k = options.k or 5
    if options.image:
        return answers_shown(answerer.of_file(options.image, options.query, k), k)
    return answers_shown(answerer.of_id(options.id, options.query, k), k)


def _hits(finder: Finder, options: Options, *, texts: bool) -> str:
    k = options.k or 10
    if texts and options.query:
        raise InputError("give a text or an image or video, not both: the run compares one with the other")
    if not texts:
        return hits_shown(finder.by_text(options.query, k), k)
    if options.id:
        return hits_shown(finder.by_id(options.id, k), k)
    path = options.image or options.video
    return hits_shown(finder.by_file(path, k, video=options.video is not None), k)


@command
def main() -> None:
    """Search, or serve."""
    options = tyro.cli(Options, prog="python -m pipelines.search", description=__doc__)
    if not options.web:
        print(search(options))
        return
    asked = open_run(options)
    try:
        run = asked.run
        serve(
            asked,
            title=f"{run.recipe} · {run.aggregator} · seed {run.seed}",
            port=options.port,
            k=options.k or 0,
        )
    finally:
        asked.close()


if __name__ == "__main__":
    main()
