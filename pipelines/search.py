"""`python -m pipelines.search RUN_ID "a dog on the grass"`: ask a trained model, from the terminal or on a page.

A text finds the images or videos that are like it; --image FILE, --video FILE or --id ID finds the captions that are
like one. A run on questions answers `python -m pipelines.search RUN_ID --image car.jpg "what colour is the car?"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.storage.places import local
from pipelines.searching import Method

if TYPE_CHECKING:
    from pipelines.models import TrainedModel
    from pipelines.searching.answers import Answer, AnswerSearch
    from pipelines.searching.retrieval import Hit, RetrievalSearch


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
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
    """How: exact, two-pass for many sets of vectors or many queries of a model that looks at every pair, faiss for
    many single vectors (pip install faiss-cpu)."""
    web: bool = False
    """Open a page on 127.0.0.1."""
    port: int = 0
    """Its port; a free one where none is said."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run or its store may name, as module:Name; once for each."""


def search(options: SearchOptions) -> str:
    """Return the results of one query as the terminal shows them.

    Raises:
        InputError: no such run, split, file or id, or a query that the run cannot answer.
    """
    visuals = [visual for visual in (options.image, options.video, options.id) if visual]
    if len(visuals) > 1:
        raise InputError("give one of --image, --video and --id, not several")
    for file in (options.image, options.video):
        local(file or "", what="an image or video to ask with")
    if not options.query and not visuals:
        raise InputError("nothing to look for: give a text, --image FILE, --video FILE, --id ID, or --web")
    from pipelines.searching.answers import AnswerSearch

    searched = _load(options).open_search(options.split, index=options.index)
    try:
        if isinstance(searched, AnswerSearch):
            return _answers(searched, options)
        return _hits(searched, options, by_visual=bool(visuals))
    finally:
        searched.close()


def _load(options: SearchOptions) -> TrainedModel:
    if options.k is not None and options.k < 1:
        raise InputError(f"--k must be at least 1, not {options.k}")
    from pipelines.models import load_run

    return load_run(options.run_id, trust=options.trust)


def _answers(searched: AnswerSearch, options: SearchOptions) -> str:
    if options.video or not (options.image or options.id):
        raise InputError(
            "the run answers questions about images: give --image FILE or --id ID with the question"
        )
    k = options.k or 5
    if options.image:
        return answer_table(searched.of_file(options.image, options.query, k), k)
    return answer_table(searched.of_id(options.id, options.query, k), k)


def _hits(searched: RetrievalSearch, options: SearchOptions, *, by_visual: bool) -> str:
    k = options.k or 10
    if by_visual and options.query:
        raise InputError("give a text or an image or video, not both: the run compares one with the other")
    if not by_visual:
        return hit_table(searched.by_text(options.query, k), k)
    if options.id:
        return hit_table(searched.by_id(options.id, k), k)
    path = options.image or options.video
    return hit_table(searched.by_file(path, k, video=options.video is not None), k)


def hit_table(hits: Sequence[Hit], k: int) -> str:
    """Return a line for each result, and what there is to say of them all; `k` were wanted."""
    id_width = max(len("id"), max(len(hit.id) for hit in hits))
    file_width = max(len("file"), max(len(hit.file) for hit in hits)) if any(hit.file for hit in hits) else 0

    def line(rank: object, score: str, id: str, file: str, caption: str) -> str:
        middle = f"  {file:<{file_width}}" if file_width else ""
        return _printable(f"{rank:>4}  {score:>8}  {id:<{id_width}}{middle}  {caption}")

    lines = [line("rank", "score", "id", "file", "caption")]
    lines += [line(hit.rank, f"{hit.score:.4f}", hit.id, hit.file, hit.caption) for hit in hits]
    notes = [] if file_width else ["the corpus has no image or video files: scores and captions alone"]
    few = [f"there are {len(hits):,} in all, fewer than the {k:,} asked for"] if len(hits) < k else []
    return "\n".join([*lines, *notes, *few])


def answer_table(answers: Sequence[Answer], k: int) -> str:
    """Return a line for each answer; `k` were wanted."""
    lines = ["rank  confidence  answer"]
    lines += [
        _printable(f"{rank:>4}  {100 * confidence:9.1f}%  {answer}")
        for rank, (answer, confidence) in enumerate(answers, start=1)
    ]
    few = [f"the model knows {len(answers):,} answers in all, fewer than the {k:,} asked for"]
    return "\n".join(lines + (few if len(answers) < k else []))


def _printable(text: str) -> str:
    """Return the text without what could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


@command
def main() -> None:
    """Search, or serve."""
    options = tyro.cli(SearchOptions, prog="python -m pipelines.search", description=__doc__)
    if not options.web:
        print(search(options))
        return
    from pipelines.searching.server import serve

    trained = _load(options)
    run, searched = trained.run, trained.open_search(options.split, index=options.index)
    try:
        serve(
            searched,
            title=f"{run.recipe} · {run.aggregator} · seed {run.seed}",
            port=options.port,
            k=options.k or 0,
        )
    finally:
        searched.close()


if __name__ == "__main__":
    main()
