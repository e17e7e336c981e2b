"""What is said of a public data set: its files as their authors publish them, and the commands that read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    """A file or a folder, by the name that it has where its archive was opened.

    Attributes:
        name: such as `dataset_coco.json`, or `train2014/` for a folder.
        url: of the file, of the archive that holds it, or of the page that leads there.
        size: of what is downloaded, as its page says; empty where it says nothing.
        use: what it is for; empty where nothing goes without it.
    """

    name: str
    url: str
    size: str = ""
    use: str = ""


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A data set.

    Attributes:
        title: its name in papers.
        page: of its authors.
        terms: under which they give it away; what stands on the page holds.
        files: what `commands` read.
        commands: what makes a corpus of them, and stores; run where the files are.
    """

    title: str
    page: str
    terms: str
    files: tuple[PublicFile, ...]
    commands: tuple[str, ...]
