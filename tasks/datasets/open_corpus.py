"""One door to a corpus of either kind: captions, or questions."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.storage.places import local
from tasks.datasets.corpus import Corpus
from tasks.datasets.questions import QuestionCorpus


def open_corpus(folder: str | Path) -> Corpus | QuestionCorpus:
    """Open the corpus in `folder`, whichever it is.

    Both have `splits`, `digest`, `ids` (of images or videos), `items(split)` (with `id`, `split` and `path`) and
    `image_path(item)`.

    Raises:
        InputError: there is none, there are two, or it cannot be read.
    """
    folder = local(folder, what="a corpus")
    captions, questions = (folder / f"{kind.form.name}.json" for kind in (Corpus, QuestionCorpus))
    if captions.exists() and questions.exists():
        raise InputError(
            f"{folder}: has both {captions.name} and {questions.name}; keep each corpus in a folder of its own"
        )
    return QuestionCorpus.open(folder) if questions.exists() else Corpus.open(folder)
