"""Which column of a table means what: as it is said, or as its name suggests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.errors import InputError, unknown

USUAL = {
    "image": (
        "image",
        "image_path",
        "image_file",
        "img",
        "picture",
        "photo",
        "file_name",
        "filename",
        "file",
        "path",
    ),
    "video": ("video", "video_path", "video_file", "clip"),
    "text": ("caption", "captions", "text", "texts", "sentence", "sentences", "description", "title"),
    "question": ("question",),
    "answer": ("answer", "answers"),
    "split": ("split", "subset", "partition"),
}
"""By what a column means, the names that suggest it, in small letters; the first that a table has counts."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of columns, empty where there is none.

    Attributes:
        media: of paths of pictures or videos.
        id: of the id of each picture or video, where that is not its path.
        text: of captions, or of questions.
        answer: of answers; empty where the texts are captions.
        split: of splits.
        videos: whether the media are videos.
        guessed: what nobody said, in words.
    """

    media: str
    id: str
    text: str
    answer: str
    split: str
    videos: bool
    guessed: tuple[str, ...]

    @property
    def named(self) -> dict[str, str]:
        """Those that there are, by what they are called here."""
        parts = ("media", "id", "text", "answer", "split")
        return {part: name for part in parts if (name := getattr(self, part))}


def find_columns(names: Sequence[str], said: dict[str, str], *, divided: bool) -> Columns:
    """Return which column of a table means what.

    Questions are those of a table of which a column of questions or answers is said, or that has both and no captions.

    Args:
        names: the columns of the table.
        said: by `id` and the keys of `USUAL`, the names that somebody said; empty ones for nothing.
        divided: whether the splits are drawn, so that a column of them is not looked for.

    Raises:
        InputError: a column that is said is not there, or one that is needed is neither said nor suggested.
    """
    for part, name in said.items():
        if name and name not in names:
            raise unknown(f"column (--{part}-column)", name, names)
    suggested = {part: _suggested(usual, names) for part, usual in USUAL.items()}
    found = {part: said[part] or suggested[part] for part in USUAL}
    asked = bool(said["question"] or said["answer"]) or (
        not said["text"] and not suggested["text"] and bool(found["question"] and found["answer"])
    )
    videos = bool(said["video"]) or (not said["image"] and not found["image"] and bool(found["video"]))
    kind = "video" if videos else "image"
    used = {
        kind: found[kind] if said[kind] or not said["id"] else "",
        **({"question": found["question"], "answer": found["answer"]} if asked else {"text": found["text"]}),
        "split": said["split"] or ("" if divided else suggested["split"]),
    }
    lacking = [part for part, name in used.items() if not name and part not in ("split", *said_alone(said))]
    if lacking:
        flags = " and ".join(f"--{part}-column" for part in lacking)
        raise InputError(
            f"no column is called as one of {' and '.join(lacking)} usually is; say which it is with {flags}: "
            f"the table has {', '.join(names)}"
        )
    guessed = tuple(
        f"{part}: the column {name!r} (--{part}-column says another)"
        for part, name in used.items()
        if name and not said[part]
    )
    return Columns(
        media=used[kind],
        id=said["id"],
        text=used["question" if asked else "text"],
        answer=used.get("answer", ""),
        split=used["split"],
        videos=videos,
        guessed=guessed,
    )


def said_alone(said: dict[str, str]) -> tuple[str, ...]:
    """Return what may be missing where ids are said: there may be features alone, and no files."""
    return ("image", "video") if said["id"] else ()


def _suggested(usual: Sequence[str], names: Sequence[str]) -> str:
    small = {name.strip().lower(): name for name in reversed(names)}
    return next((small[name] for name in usual if name in small), "")
