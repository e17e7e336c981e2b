"""Drawing of an evaluation's pictures, by the type of their record; and the pages of examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

from PIL import Image

from polypool.infra.errors import InputError
from polypool.pipelines.figures.pages.attention_page import attention_page
from polypool.pipelines.figures.pages.document import data_address, rendered
from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.tasks.adapter import Pictures
from polypool.tasks.questions.answer_report import AnswerExample, AnswerExamples
from polypool.tasks.scoring.attention_maps import AttentionExamples
from polypool.tasks.scoring.examples import HITS, RetrievalExamples

FRAMES, FRAME, GAP = 4, (160, 120), 3
"""The strip of a video: number of frames, their largest size and the gap between them, in pixels."""
_JUDGED = {
    "own": "",
    "cxc": " Right is also what people rated so.",
    "eccv": " Right is what ECCV Caption found to be so, and queries are those it has.",
}
"""What is relevant besides, or instead of, an image's own captions."""


@singledispatch
def draw(record: Pictures) -> Mapping[str, bytes]:
    """Return the files that show a record, by file name; a mapping is returned unchanged.

    A package registers a function for its own type of record by `@draw.register`.

    Raises:
        InputError: no function is registered for the type.
    """
    raise InputError(
        f"an evaluation's pictures are {type(record).__name__}, expected files by name, None or one of the records "
        f"{', '.join(sorted(it.__name__ for it in draw.registry if it.__module__ != 'builtins'))}; another is drawn by "
        "a function that polypool.pipelines.figures.pages.draw.draw.register takes"
    )


@draw.register
def _(record: None) -> Mapping[str, bytes]:
    return {}


@draw.register(Mapping)
def _(record: Mapping[str, Any]) -> Mapping[str, bytes]:
    for name, content in record.items():
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise InputError(
                f"the file {name!r} of an evaluation's pictures is {type(content).__name__}, expected bytes"
            )
    return record


@draw.register
def _(record: AttentionExamples) -> Mapping[str, bytes]:
    return {f"{record.split}_attention.html": attention_page(record)}


@draw.register
def retrieval_page(record: RetrievalExamples) -> Mapping[str, bytes]:
    """Draw captions and pictures with what they retrieve; an item without a file is shown as its first caption."""
    video = record.modality == "video"
    addresses = {}
    with Thumbnails(video=video) as thumbnails:
        for number, item in record.items.items():
            images = thumbnails.images(item.file, at_most=FRAMES if video else 1)
            addresses[number] = data_address(_strip(images) if video else images[0]) if images else ""
    about = _about(record)
    if not any(addresses.values()):
        about += f" The files of the {record.modality}s are not here: their first captions are shown instead."
    html = rendered(
        "retrieval", f"Retrieval in the split {record.split}", about=about, record=record, addresses=addresses
    )
    return {f"{record.protocol.name}_{record.split}_examples.html": html}


def _strip(images: Sequence[Image.Image]) -> Image.Image:
    """Put frames side by side."""
    for image in images:
        image.thumbnail(FRAME)
    width = sum(image.width for image in images) + GAP * (len(images) - 1)
    strip, left = Image.new("RGB", (width, max(image.height for image in images))), 0
    for image in images:
        strip.paste(image, (left, 0))
        left += image.width + GAP
    return strip


def _about(record: RetrievalExamples) -> str:
    protocol, (items, captions) = record.protocol, record.gallery
    kind = "distinct captions" if protocol.distinct else "captions"
    about = (
        f"Queries drawn at random, right ones and wrong ones by the protocol {protocol.name} in turn, and what they "
        f"found among the {items:,} {record.modality}s or the {captions:,} {kind} of the whole split {record.split}: "
        f"rank, score and, with a dashed border, the best right one beyond the first {HITS}."
    )
    parts = f"{protocol.folds} parts of it, one by one" if protocol.folds > 1 else ""
    if record.ranked_items < items:
        parts = f"its first {record.ranked_items:,} {record.modality}s alone"
    if parts:
        about += f" The protocol looks in {parts}, so its ranks are better or the same."
    about += _JUDGED[protocol.right]
    return about


@draw.register
def answers_page(record: AnswerExamples) -> Mapping[str, bytes]:
    """Draw questions with the answers of people and of the model; an answer counts as good from an accuracy of 0.5."""
    about = f"{len(record.examples)} of {record.questions:,} questions: right and wrong answers in turn, of many types."
    if record.accuracy is not None:
        about += f" The accuracy of all is {record.accuracy:.2f}%."
    with Thumbnails(video=False) as thumbnails:
        cards = [_card(example, thumbnails) for example in record.examples]
    html = rendered("answers", f"Questions of the split {record.split}", about=about, cards=cards)
    return {f"vqa_{record.split}_examples.html": html}


def _card(example: AnswerExample, thumbnails: Thumbnails) -> dict[str, Any]:
    images = thumbnails.images(example.image.file)
    good = None if example.accuracy is None else example.accuracy >= 0.5
    return {
        "example": example,
        "image": data_address(images[0]) if images else "",
        "mark": {None: "", True: "good", False: "bad"}[good],
        "people": Counter(example.answers).most_common(),
    }
