"""One door to a corpus of either kind: captions, or questions."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.storage.places import Url, place
from infra.storage.reading import is_file
from tasks.datasets.corpus import Corpus
from tasks.datasets.questions import QuestionCorpus


def open_corpus(folder: str | Path | Url) -> Corpus | QuestionCorpus:
    """Open the corpus in `folder`, which may be a URL, whichever it is.

    Both have `splits`, `digest`, `ids` (of images or videos), `items(split)` (with `id`, `split` and `path`) and
    `image_path(item)`.

    Raises:
        InputError: there is none, there are two, or it cannot be read.
    """
    folder = place(folder)
    captions, questions = (folder / f"{kind.form.name}.json" for kind in (Corpus, QuestionCorpus))
    if (has_questions := is_file(questions)) and is_file(captions):
        raise InputError(
            f"{folder}: has both {captions.name} and {questions.name}; keep each corpus in a folder of its own"
        )
    return QuestionCorpus.open(folder) if has_questions else Corpus.open(folder)
