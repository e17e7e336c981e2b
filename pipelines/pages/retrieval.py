"""The page of retrieval: captions with the pictures they found, and pictures with the captions they found."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from pipelines.pages.document import data_address, templates
from pipelines.pages.thumbnails import Thumbnails
from tasks.scoring.examples import HITS, RetrievalExamples

FRAMES, FRAME, GAP = 4, (160, 120), 3
"""Of a video's strip: how many frames, their largest size, and what is between two, in pixels."""


def retrieval_page(record: RetrievalExamples) -> str:
    """Return the whole page: an image, or a strip of a video's frames, or the first caption where there is no file."""
    video = record.modality == "video"
    addresses = {}
    with Thumbnails(video=video) as thumbnails:
        for number, item in record.items.items():
            images = thumbnails.images(item.file, at_most=FRAMES if video else 1)
            addresses[number] = data_address(_strip(images) if video else images[0]) if images else ""
    about = _about(record)
    if not any(addresses.values()):
        about += f" The files of the {record.modality}s are not here: their first captions stand for them."
    page = templates("pipelines.pages").get_template("retrieval.html.j2")
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
    if protocol.crisscrossed:
        about += " Right is also what people rated so."
    return about
