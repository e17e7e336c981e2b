"""`polypool search RUN "a dog on the grass"`: Search with a trained model; `polypool serve` has a page.

A text query finds similar images or videos; --image FILE, --video FILE or --id ID finds matching captions, or with
--find images or videos similar ones. A model of question answering answers
`polypool search RUN_ID --image car.jpg "what colour is the car?"`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from polypool.infra.errors import InputError
from polypool.infra.process.command import NamedRun, Repeated, command
from polypool.infra.storage import local

if TYPE_CHECKING:
    from polypool.pipelines.models.search import Answer, Hit, RetrievalSearch
    from polypool.pipelines.models.trained import TrainedModel
    from polypool.tasks.similarities.similarity import Side

FEW = 20
"""Number of items below which results are not meaningful."""


def search(
    run_id: NamedRun = "",
    query: Annotated[str, tyro.conf.Positional] = "",
    *,
    image: Path | None = None,
    video: Path | None = None,
    id: str = "",
    k: int | None = None,
    split: str = "test",
    find: Literal["images", "videos", "captions", ""] = "",
    index: Literal["exact", "faiss"] = "exact",
    other_data: bool = False,
    trust: Repeated = (),
) -> str:
    """Return the results of one query as printed in the terminal.

    Args:
        run_id: a run, by its id or a prefix of it, its name, or `latest`, or the folder or URL of an export.
        query: text query; for a question answering run, the question.
        image: image file: a query for captions, or the subject of the question.
        video: video file: likewise.
        id: image or video of the corpus, instead of a file.
        k: number of results; by default 10, and 5 answers.
        split: split to search; all for every split.
        find: kind of results; by default images or videos for a text, and captions for an image or video.
        index: exact, or faiss for many single vectors (pip install 'polypool[faiss]').
        other_data: search the run's corpus and features even if they changed since training.
        trust: trusted module whose code the run or its store may name as module:Name; repeatable.

    Raises:
        InputError: an unknown run, split, file or id, or a query that the run cannot answer.
    """
    visuals = [visual for visual in (image, video, id) if visual]
    if len(visuals) > 1:
        raise InputError("give one of --image, --video and --id, not several")
    for file in (image, video):
        local(file or "", what="an image or video to ask with")
    if run_id and not query and not visuals:
        raise InputError("nothing to look for: give a text, --image FILE, --video FILE or --id ID")
    if k is not None and k < 1:
        raise InputError(f"--k must be at least 1, not {k}")
    from polypool.pipelines.models.search import AnswerSearch, Query
    from polypool.pipelines.models.trained import load

    trained = load(run_id, other_data=other_data, trust=trust)
    with contextlib.closing(trained.open_search(split, index=index)) as searched:
        file, is_video = image or video, video is not None
        if isinstance(searched, AnswerSearch):
            if find:
                raise InputError(f"--find {find}: a run on questions finds answers; leave --find out")
            answers = searched.find(Query(text=query, id=id, file=file, video=is_video), k or 5)
            return answer_table(answers, k or 5)
        side, asked = _side(find, searched), Query(text=query or None, id=id, file=file, video=is_video)
        hits = searched.find(asked, k or 10, side=side)
        about = f"searched: {searched.searched(asked, side)}"
        return "\n".join(
            [hit_table(hits, k or 10), about, *searched.about, *_notes(trained, searched, query)]
        )


def _side(find: str, searched: RetrievalSearch) -> Side | None:
    if find in ("images", "videos") and find != (own := f"{searched.adapter.modality}s"):
        raise InputError(f"--find {find}: the run was trained on {own}; give --find {own} or captions")
    sides: dict[str, Side | None] = {"": None, "captions": "text"}
    return sides.get(find, "visual")


def _notes(trained: TrainedModel, searched: RetrievalSearch, query: str) -> list[str]:
    """Return warnings about unreliable results: unknown words, a small split, a model at chance level."""
    from polypool.tasks.inputs.corpus_inputs import CorpusInputs

    of, notes = trained.adapter, []
    words = of.unknown_words(query) if isinstance(of, CorpusInputs) and query else []
    if words := list(dict.fromkeys(words)):
        known = "reads them all as one unknown word" if len(words) > 1 else "reads it as an unknown word"
        notes.append(f"note: the model has never seen {', '.join(map(repr, words))}, and {known}")
    if (count := searched.corpus.count(searched.split)) < FEW:
        notes.append(f"note: of {count} {of.modality}s any order looks plausible; results mean little")
    scores = trained.tracker.metrics() if trained.tracker else {}
    if scores.get("test/chance_normalised", 1.0) <= 0.0:
        score, chance = scores["test/score"], scores["test/chance"]
        notes.append(
            f"note: the model's score, {of.primary.name} {score:.4g}, is not above chance, {chance:.4g}; results mean "
            "little"
        )
    return notes


def hit_table(hits: Sequence[Hit], k: int) -> str:
    """Return a line for each result, and notes; `k` were requested."""
    id_width = max(len("id"), max(len(hit.id) for hit in hits))
    file_width = max(len("file"), max(len(hit.file) for hit in hits)) if any(hit.file for hit in hits) else 0

    def line(rank: object, score: str, id: str, file: str, caption: str) -> str:
        middle = f"  {file:<{file_width}}" if file_width else ""
        return _printable(f"{rank:>4}  {score:>8}  {id:<{id_width}}{middle}  {caption}")

    lines = [line("rank", "score", "id", "file", "caption")]
    lines += [line(hit.rank, f"{hit.score:.4f}", hit.id, hit.file, hit.caption) for hit in hits]
    notes = [] if file_width else ["the corpus has no image or video files: scores and captions alone"]
    few = [f"there are {len(hits):,} in all, fewer than the {k:,} requested"] if len(hits) < k else []
    return "\n".join([*lines, *notes, *few])


def answer_table(answers: Sequence[Answer], k: int) -> str:
    """Return a line for each answer; `k` were requested."""
    lines = ["rank  confidence  answer"]
    lines += [
        _printable(f"{rank:>4}  {100 * it.probability:9.1f}%  {it.answer}")
        for rank, it in enumerate(answers, start=1)
    ]
    few = [f"the model knows {len(answers):,} answers in all, fewer than the {k:,} requested"]
    return "\n".join(lines + (few if len(answers) < k else []))


def _printable(text: str) -> str:
    """Return the text without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


@command
def main() -> None:
    print(tyro.cli(search, prog="polypool search", description=__doc__))
