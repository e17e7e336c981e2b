"""Pages of examples: captions and pictures with what they retrieve, and questions with answers of people and model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from PIL import Image

from polypool.pipelines.figures.pages.document import data_address, templates
from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.tasks.questions.answer_report import AnswerExample, AnswerExamples
from polypool.tasks.scoring.examples import HITS, RetrievalExamples

FRAMES, FRAME, GAP = 4, (160, 120), 3
"""The strip of a video: number of frames, their largest size and the gap between them, in pixels."""
_JUDGED = {
    "own": "",
    "cxc": " Right is also what people rated so.",
    "eccv": " Right is what ECCV Caption found to be so, and queries are those it has.",
}
"""What is relevant besides, or instead of, an image's own captions."""


def retrieval_page(record: RetrievalExamples) -> str:
    """Return the page: each item as an image or a strip of frames, or without a file as its first caption."""
    video = record.modality == "video"
    addresses = {}
    with Thumbnails(video=video) as thumbnails:
        for number, item in record.items.items():
            images = thumbnails.images(item.file, at_most=FRAMES if video else 1)
            addresses[number] = data_address(_strip(images) if video else images[0]) if images else ""
    about = _about(record)
    if not any(addresses.values()):
        about += f" The files of the {record.modality}s are not here: their first captions stand for them."
    page = templates("polypool.pipelines.figures.pages").get_template("retrieval.html.j2")
    return page.render(
        title=f"Retrieval in the split {record.split}", about=about, record=record, addresses=addresses
    )


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


def answers_page(record: AnswerExamples) -> str:
    """Return the page; an answer counts as good from an accuracy of 0.5."""
    about = f"{len(record.examples)} of {record.questions:,} questions: right and wrong answers in turn, of many types."
    if record.accuracy is not None:
        about += f" The accuracy of all is {record.accuracy:.2f}%."
    with Thumbnails(video=False) as thumbnails:
        cards = [_card(example, thumbnails) for example in record.examples]
    page = templates("polypool.pipelines.figures.pages").get_template("answers.html.j2")
    return page.render(title=f"Questions of the split {record.split}", about=about, cards=cards)


def _card(example: AnswerExample, thumbnails: Thumbnails) -> dict[str, Any]:
    images = thumbnails.images(example.image.file)
    good = None if example.accuracy is None else example.accuracy >= 0.5
    return {
        "example": example,
        "image": data_address(images[0]) if images else "",
        "mark": {None: "", True: "good", False: "bad"}[good],
        "people": Counter(example.answers).most_common(),
    }
