"""A page of retrieval examples: captions with the pictures they found, and pictures with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from PIL import Image

from pipelines.pages.retrieval_examples import Example, Hit
from pipelines.pages.shell import address, page
from pipelines.pages.thumbnails import Thumbnails

FRAMES, FRAME, GAP = (
    4,
    (160, 120),
    3,
)  # of a video's strip: their number, their size and what is between, in pixels
_STYLE = """
main { --card: 30rem; align-items: start; }
.part { font-size: 1.2rem; grid-column: 1 / -1; margin: .8rem 0 0; }
ol { display: grid; gap: .5rem; list-style: none; margin: .6rem 0 0; padding: 0; }
li { border: 2px solid var(--line); border-radius: .4rem; min-width: 0; overflow: hidden; }
li.right { border-color: var(--good); }
li.beyond { border-style: dashed; }
li p { font-size: .85rem; margin: .15rem .45rem; }
.found { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.image { aspect-ratio: 4 / 3; background: var(--pale); object-fit: contain; width: 100%; }
.none { font-size: .8rem; overflow: hidden; padding: .4rem; }
.strip { background: var(--pale); min-height: 3rem; object-fit: contain; width: 100%; }
.strips { grid-template-columns: minmax(0, 1fr); }
.strips li { align-items: center; display: grid; grid-template-columns: minmax(0, 1fr) 8.5rem; }
.asked { align-items: start; display: grid; gap: 0 .9rem; padding-top: .8rem; }
.asked ol { margin: 0; }
.asked.images { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
@media (max-width: 34rem) {
  .strips li, .asked.images { grid-template-columns: minmax(0, 1fr); }
  .strips br { display: none; }
}
"""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page shows of a split.

    Attributes:
        modality: what its items are: `image` or `video`.
        item_ids: of the items.
        texts: the captions.
        owner_G: the item of each caption, ascending.
        thumbnails: of the items.
    """

    modality: str
    item_ids: Sequence[str]
    texts: Sequence[str]
    owner_G: np.ndarray
    thumbnails: Thumbnails
    _made: dict[int, str] = field(default_factory=dict)

    def picture(self, number: int, *, instead: str = "") -> str:
        """Return an item as HTML: its image, a strip of its video's frames, or words instead where it has no file."""
        if number not in self._made:
            images = self.thumbnails.images(number, at_most=FRAMES)
            self._made[number] = (
                address(_strip(images) if self.modality == "video" else images[0]) if images else ""
            )
        css = "strip" if self.modality == "video" else "image"
        if source := self._made[number]:
            return (
                f'<img class="{css}" src="{source}" alt="{self.modality} {self.name(number)}" loading="lazy">'
            )
        return f'<div class="none {css}">no picture{instead and ": " + escape(instead)}</div>'

    def first_caption(self, number: int) -> str:
        """Return the first caption of an item."""
        return self.texts[int(np.searchsorted(self.owner_G, number))]

    @property
    def without_files(self) -> bool:
        """Whether no picture could be made of what was shown so far."""
        return not any(self._made.values())

    def name(self, number: int) -> str:
        """Return the id of an item, escaped."""
        return escape(str(self.item_ids[number]))


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


def examples_page(
    title: str, about: str, shown: Shown, of_captions: Sequence[Example], of_items: Sequence[Example]
) -> str:
    """Return a whole HTML page.

    Args:
        title: what it says at the top.
        about: a paragraph below.
        shown: the split.
        of_captions: captions that look for items.
        of_items: items that look for captions.
    """
    cards = [
        f'<h2 class="part">Captions that look for their {shown.modality}</h2>',
        *(_caption_card(shown, example) for example in of_captions),
        f'<h2 class="part">{shown.modality.capitalize()}s that look for their captions</h2>',
        *(_item_card(shown, example) for example in of_items),
    ]
    if shown.without_files:
        about += f" The files of the {shown.modality}s are not here: their first captions stand for them."
    return page(title, about, cards, style=_STYLE)


def _caption_card(shown: Shown, example: Example) -> str:
    hits = "\n".join(
        _hit(
            example,
            hit,
            before=shown.picture(hit.number, instead=shown.first_caption(hit.number)),
            after=f"<br> <small>{shown.name(hit.number)}</small>",
        )
        for hit in _hits(example)
    )
    several = (
        f" <small>It is right for {example.right} {shown.modality}s.</small>" if example.right > 1 else ""
    )
    css = "strips" if shown.modality == "video" else "found"
    return (
        f"<article><div>\n<h2>{escape(shown.texts[example.query])}</h2>\n"
        f'<p>{_verdict(example)}{several}</p>\n<ol class="{css}">\n{hits}\n</ol>\n</div></article>'
    )


def _item_card(shown: Shown, example: Example) -> str:
    hits = "\n".join(
        _hit(example, hit, after=f"<br>{escape(shown.texts[hit.number])}") for hit in _hits(example)
    )
    return (
        f'<article><div class="asked {shown.modality}s">\n<div>{shown.picture(example.query)}\n'
        f"<p>{_verdict(example)}<br>\n<small>{shown.name(example.query)}</small></p></div>\n"
        f"<ol>\n{hits}\n</ol>\n</div></article>"
    )


def _hits(example: Example) -> tuple[Hit, ...]:
    """Return the best, and the best right one behind them if it is not among them."""
    return example.hits if example.best in example.hits else (*example.hits, example.best)


def _hit(example: Example, hit: Hit, *, before: str = "", after: str = "") -> str:
    css = ("right" if hit.right else "wrong") + ("" if hit in example.hits else " beyond")
    mark = ' <strong class="good">&#10003; right</strong>' if hit.right else ""
    said = f"<strong>{hit.rank:,}</strong>{mark} <small>{hit.score:.3f}</small>{after}"
    return f'<li class="{css}">{before}<p>{said}</p></li>'


def _verdict(example: Example) -> str:
    if example.best.rank == 1:
        return '<strong class="good">&#10003; right</strong>'
    one = "the right one" if example.right == 1 else "the best right one"
    return f'<strong class="bad">&#10007; wrong</strong>: {one} is at rank {example.best.rank:,}'
