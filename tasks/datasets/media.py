"""The image and video files that a corpus names, and no other file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.datasets.corpus import Corpus, Item
from tasks.datasets.questions import Image, Question, QuestionCorpus
from tasks.datasets.rows import leaves


@dataclass(frozen=True, kw_only=True)
class PicturedItem:
    """An image or video of a split as a page has it.

    Attributes:
        id: of the item.
        file: the image or video; None where there is none.
        caption: its first, which stands for it where there is no file.
    """

    id: str
    file: Path | None
    caption: str = ""


def pictured(corpus: Corpus | QuestionCorpus, item: Item | Question) -> PicturedItem:
    """Return an item, or the image that a question is about, as a page has it."""
    file = media_file(corpus, item)
    if isinstance(item, Item):
        return PicturedItem(id=item.id, file=file, caption=item.captions[0])
    return PicturedItem(id=item.image_id, file=file)


def media_file(corpus: Corpus | QuestionCorpus, item: Item | Image | Question) -> Path | None:
    """Return the file of an item, or of the image that a question is about.

    Returns:
        its path; None where the item names none, it is gone, or it lies outside the corpus's folder of images.
    """
    if not item.path:
        return None
    if leaves(item.path, folder=corpus.image_folder):
        return None
    path = Path(os.path.normpath(corpus.image_path(item)))
    return path if path.is_file() else None
