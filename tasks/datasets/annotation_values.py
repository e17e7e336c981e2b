"""Checks of values in annotations: paths stay in their folder, and texts can be shown on pages and terminals."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from polypool.infra.store.ids import is_unicode

_MOST_WORDS, _MOST_CHARACTERS = 1000, 10_000
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]+")
"""Control characters that are no white space, and those that turn the direction of what follows."""


def wrong_path(path: Any, *, images: str | Path) -> str | None:
    """Return why a path, absolute or below `images`, cannot be used, None where it can."""
    if not isinstance(path, str):
        return "a path that is not a string"
    if not is_unicode(path):
        return "a path that is not valid UTF-8"
    return "a path that leaves the folder of images" if leaves(path, folder=images) else None


def leaves(path: str, *, folder: str | Path) -> bool:
    """Whether a path, absolute or below a folder, is that of a file outside; without a folder nothing is outside.

    Links in the folder may lead anywhere: the folder's owner made them, but did not write the annotations.
    """
    if not folder or not (os.path.isabs(path) or os.pardir in path):
        return False
    top = os.path.normpath(folder)
    return not Path(os.path.normpath(os.path.join(top, path))).is_relative_to(top)


def wrong_text(text: Any, *, what: str) -> str | None:
    """Return why a value cannot be a text, such as `a caption`; None where it can."""
    if not isinstance(text, str):
        return f"{what} that is not a string"
    if not is_unicode(text):
        return f"{what} that is not valid UTF-8"
    return None if printed(text).strip() else f"{what} that is empty"


def printed(text: str) -> str:
    """Return a text with spaces for control characters: pages and terminals may take these for commands."""
    return _CONTROL.sub(" ", text)


def plain(text: Any, *, what: str) -> tuple[str, str | None]:
    """Return a caption or question with one space between its words, and what is odd about it, None where nothing is.

    What is no text is empty. One of more than 1,000 words, or 10,000 characters, is cut: a model reads a few dozen
    words, and a file of another kind may be behind it.
    """
    if why := wrong_text(text, what=what):
        return "", why
    odd = f"{what} with control characters, which are left out" if printed(text) != text else None
    words = printed(text).split()
    if len(words) > _MOST_WORDS:
        words, odd = words[:_MOST_WORDS], f"{what} of over {_MOST_WORDS:,} words, cut to these"
    text = " ".join(words)
    if len(text) > _MOST_CHARACTERS:
        text, odd = text[:_MOST_CHARACTERS], f"{what} of over {_MOST_CHARACTERS:,} characters, cut to these"
    if not any(character.isalnum() for character in text):
        return text, f"{what} without a word"
    return text, odd
