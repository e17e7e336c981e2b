"""Results as the terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.searching.answerer import Answer
from pipelines.searching.finder import Hit


def hits_shown(hits: Sequence[Hit], k: int) -> str:
    """Return a line for each result, and what there is to say of them all."""
    ids = max(len("id"), max(len(hit.id) for hit in hits))
    files = max(len("file"), max(len(hit.file) for hit in hits)) if any(hit.file for hit in hits) else 0

    def line(rank: object, score: str, id: str, file: str, caption: str) -> str:
        middle = f"  {file:<{files}}" if files else ""
        return plain(f"{rank:>4}  {score:>8}  {id:<{ids}}{middle}  {caption}")

    lines = [line("rank", "score", "id", "file", "caption")]
    lines += [line(hit.rank, f"{hit.score:.4f}", hit.id, hit.file, hit.caption) for hit in hits]
    return "\n".join([*lines, *_notes(len(hits), k, files=bool(files))])


def _notes(count: int, k: int, *, files: bool) -> list[str]:
    notes = [] if files else ["the corpus has no image or video files: scores and captions alone"]
    return notes + ([f"there are {count:,} in all, fewer than the {k:,} asked for"] if count < k else [])


def answers_shown(answers: Sequence[Answer], k: int) -> str:
    """Return a line for each answer."""
    lines = [
        "rank  confidence  answer",
        *(
            plain(f"{rank:>4}  {100 * share:9.1f}%  {answer}")
            for rank, (answer, share) in enumerate(answers, start=1)
        ),
    ]
    few = [f"the model knows {len(answers):,} answers in all, fewer than the {k:,} asked for"]
    return "\n".join(lines + (few if len(answers) < k else []))


def plain(text: str) -> str:
    """Return the text without what could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
