"""What every row of a corpus is held to: where its picture may be, and what is odd about its words."""

from __future__ import annotations

import os
from pathlib import Path

from infra.store.ids import is_unicode

_MOST_WORDS = 1000


def wrong_path(path: str, *, images: str | Path) -> str | None:
    """Return why a picture or video cannot be used, None where it can.

    Args:
        path: absolute or below `images`; empty where there are only features.
        images: the folder that relative paths start from; empty where there is none.
    """
    if not is_unicode(path):
        return "a path that is not valid UTF-8"
    if leaves(path, folder=images):
        return "a path that leaves the folder of images"
    return None


def leaves(path: str, *, folder: str | Path) -> bool:
    """Whether a path, absolute or below a folder, is that of a file outside; without a folder nothing is outside.

    Links in the folder may lead anywhere: whoever owns it made them, but its owner did not write the annotations.
    """
    if not folder or not (os.path.isabs(path) or os.pardir in path):
        return False
    top = os.path.normpath(folder)
    return not Path(os.path.normpath(os.path.join(top, path))).is_relative_to(top)


def plain(text: str, *, what: str) -> tuple[str, str | None]:
    """Return a caption or question with one space between its words, and what is odd about it, None where nothing is.

    One of more than 1,000 words is cut: a model reads a few dozen, and a file of another kind may be behind it.

    Args:
        text: as the source has it.
        what: what it is, such as `caption`.
    """
    words = text.split()
    if len(words) > _MOST_WORDS:
        return " ".join(words[:_MOST_WORDS]), f"a {what} of over {_MOST_WORDS:,} words, cut to these"
    text = " ".join(words)
    if text and not any(character.isalnum() for character in text):
        return text, f"a {what} without a word"
    return text, None
