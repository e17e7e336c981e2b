"""Corpora of either kind, captions or questions: opening one, and the image and video files that it names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.storage import Url, exists, place
from polypool.tasks.datasets.annotations import leaves
from polypool.tasks.datasets.corpus import Corpus, Item
from polypool.tasks.datasets.questions import Image, Question, QuestionCorpus


def open_corpus(folder: str | Path | Url) -> Corpus | QuestionCorpus:
    """Open the corpus in `folder`, which may be a URL, whichever it is.

    Both have `splits`, `digest`, `ids` (of images or videos), `items(split)` (with `id`, `split` and `path`) and
    `image_path(item)`.

    Raises:
        InputError: there is none, there are two, or it cannot be read.
    """
    folder = place(folder)
    captions, questions = (folder / f"{kind.name}.json" for kind in (Corpus, QuestionCorpus))
    if (has_questions := exists(questions)) and exists(captions):
        raise InputError(
            f"{folder}: has both {captions.name} and {questions.name}; keep each corpus in a folder of its own"
        )
    return QuestionCorpus.open(folder) if has_questions else Corpus.open(folder)


@dataclass(frozen=True, kw_only=True)
class PicturedItem:
    """An image or video of a split as a page shows it; where there is no file, by its first caption."""

    id: str
    file: Path | None
    caption: str = ""


def pictured(corpus: Corpus | QuestionCorpus, item: Item | Question) -> PicturedItem:
    """Return an item, or the image that a question is about, as a page shows it."""
    file = media_file(corpus, item)
    if isinstance(item, Item):
        return PicturedItem(id=item.id, file=file, caption=item.captions[0])
    return PicturedItem(id=item.image_id, file=file)


def media_file(corpus: Corpus | QuestionCorpus, item: Item | Image | Question) -> Path | None:
    """Return the file of an item, or of the image that a question is about.

    None where the item names none, it is gone, or it is outside the corpus's folder of images.
    """
    if not item.path or leaves(item.path, folder=corpus.image_folder):
        return None
    path = Path(os.path.normpath(corpus.image_path(item)))
    return path if path.is_file() else None
