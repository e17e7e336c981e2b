"""A page to look at: pairs of an image or video and a text, and what their elements weigh to the aggregators.

Kim et al., "Improving cross-modal retrieval with set of diverse embeddings" (DivE), CVPR 2023, figure 4, has the slots
of an image and the caption that lies nearest to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from encoders.base import Tokenizer
from pipelines.pages.attended import Attended
from pipelines.pages.heat import cells, overlay, part_seen
from pipelines.pages.nearest_captions import nearest_captions
from pipelines.pages.shell import address, page
from pipelines.pages.thumbnails import Thumbnails
from tasks.models.split_embeddings import SplitEmbeddings

_FRAMES, _DECODED = 4, 32  # of a video: how many are shown, and how many are looked through at most
_STYLE = """
:root { --heat: 255 150 60; }
@media (prefers-color-scheme: dark) { :root { --heat: 176 74 0; } }
main { --card: %s; }
.embeddings { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(%s, 100%%), 1fr)); }
figure { margin: 0; min-width: 0; } figure > img { width: 100%%; border-radius: .3rem; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; }
.strip { display: grid; gap: .3rem; grid-template-columns: repeat(4, minmax(0, 1fr)); }
.bars { display: flex; align-items: flex-end; gap: 1px; height: 3.2rem; margin: .3rem 0; }
.bars i { background: rgb(var(--heat)); flex: 1 1 0; min-height: 1px; min-width: 0; }
.bars i.pale { opacity: .45; }
.words { display: flex; flex-wrap: wrap; gap: .25rem; margin: .6rem 0; }
.words span { background: rgb(var(--heat) / var(--w)); border-radius: .25rem; padding: 0 .3rem; text-align: center; }
.words i { display: block; font-size: .68rem; font-style: normal; line-height: 1.2; }
.words > small { flex: 1 0 100%%; font-size: .75rem; }
.words + .words { border-top: 1px solid var(--line); padding-top: .6rem; }
"""


@dataclass(frozen=True, kw_only=True)
class Split:
    """What the page shows of a split beside weights.

    Attributes:
        name: of the split.
        modality: what its items are: `image` or `video`.
        ids: of the items, by the pairs' numbers.
        texts: captions or questions, likewise.
        owner_G: the item of each caption; empty where the texts are questions.
        tokenizer: of the texts.
        thumbnails: pictures of the items, by the pairs' numbers.
        extractor: what the feature store says of the backbone that made cells of the images; None where elements are
            no cells, but regions or the like.
        embeddings: of the split, where its images have sets of vectors in a space with the captions.
    """

    name: str
    modality: str
    ids: Sequence[str]
    texts: Sequence[str]
    owner_G: np.ndarray
    tokenizer: Tokenizer
    thumbnails: Thumbnails
    extractor: Mapping[str, Any] | None
    embeddings: SplitEmbeddings | None = None


def attention_page(found: Sequence[Attended], split: Split) -> str:
    """Return the whole page; pictures are made one pair at a time."""
    most = max((len(it.weights["visual"]) for it in found if "visual" in it.weights), default=1)
    wide = most > 1 or split.modality == "video"
    style = _STYLE % ("34rem" if wide else "19rem", "22rem" if split.modality == "video" else "13rem")
    return page(
        f"Where the aggregators look: {split.name}",
        _about(found, split),
        (_card(it, split) for it in found),
        style=style,
    )


def _about(found: Sequence[Attended], split: Split) -> str:
    sides = {side for it in found for side in it.weights}
    texts = "captions" if len(split.owner_G) else "questions"
    chosen = f"{len(found)} of {len(split.texts):,} {texts} of the split {split.name}"
    about = [f"{chosen}, each with its {split.modality}."]
    if "visual" in sides:
        about.append(
            "Over a picture, blue is the smallest weight and yellow the largest, which stand below; the less they "
            "differ, the paler the colours."
            if split.modality == "image"
            else f"Of each video the {_FRAMES} frames of largest weight; the bars are all its elements in time."
        )
    if "text" in sides:
        about.append("The stronger a word is shaded, the more it weighs.")
    if split.embeddings is not None:
        about.append("Under each vector stands the caption of the split that lies nearest to it.")
    return " ".join(about)


def _card(found: Attended, split: Split) -> str:
    pair, text = found.pair, ""
    if "text" in found.weights:
        number_L = pair.batch["text"][0][pair.batch["text_mask"][0]].tolist()
        text = _text(found.weights["text"], split.tokenizer.subwords(number_L))
    return (
        f"<article><div>\n<h2>{escape(split.texts[pair.text])}</h2>\n{_visual(found, split)}\n{text}\n"
        f"<p><small>{escape(split.modality)} {escape(str(split.ids[pair.item]))}</small></p>\n</div></article>"
    )


def _visual(found: Attended, split: Split) -> str:
    """Draw the image or video once for each vector, or once as it is where nothing of it is weighed."""
    weight_KN, item = found.weights.get("visual"), found.pair.item
    video = split.modality == "video"
    if weight_KN is None:
        images = split.thumbnails.images(item)
        return f'<figure><img src="{address(images[0])}" alt="" loading="lazy"></figure>' if images else ""
    images = split.thumbnails.images(item, at_most=min(weight_KN.shape[1], _DECODED) if video else 1)
    captions = _nearest(split, item) or [""] * len(weight_KN)
    figures = []
    for number, (weight_N, caption) in enumerate(zip(weight_KN, captions, strict=True), start=1):
        drawn = _frames(images, weight_N) if video else _image(images, weight_N, split.extractor)
        name = f"vector {number}: " if len(weight_KN) > 1 else ""
        span = f"{_percent(weight_N.min())} to {_percent(weight_N.max())}"
        figures.append(
            f"<figure>{drawn}<figcaption><small>{name}{span}</small>{caption}</figcaption></figure>"
        )
    return f'<div class="embeddings">{"".join(figures)}</div>'


def _nearest(split: Split, item: int) -> list[str]:
    lines = []
    for near in nearest_captions(split.embeddings, item) if split.embeddings is not None else []:
        own = split.owner_G[near.caption] == item
        mark = ' class="good"' if own else ""
        whose = f", one of this {split.modality}'s" if own else ""
        lines.append(
            f"<br><span{mark}>{'&check; ' if own else ''}{escape(split.texts[near.caption])}</span> "
            f"<small>cosine {near.cosine:.2f}{whose}</small>"
        )
    return lines


def _image(images: Sequence[Image.Image], weight_N: np.ndarray, extractor: Mapping[str, Any] | None) -> str:
    grid = cells(len(weight_N)) if extractor is not None else None
    if not images:
        return bars(weight_N)
    if grid is None:
        return f'<img src="{address(images[0])}" alt="" loading="lazy">{bars(weight_N)}'
    side, before = grid
    heat = overlay(part_seen(images[0], extractor), weight_N[before:].reshape(side, side))
    first = f"<small>class token {_percent(weight_N[0])}; cells </small>" if before else ""
    return f'<img src="{address(heat)}" alt="weights over the image" loading="lazy">{first}'


def _frames(images: Sequence[Image.Image], weight_N: np.ndarray) -> str:
    shown = np.sort(np.argsort(-weight_N, kind="stable")[:_FRAMES]).tolist() if images else []
    strip = "".join(
        f'<figure><img src="{address(images[frame_of(n, len(weight_N), len(images))])}" alt="" loading="lazy">'
        f"<figcaption><small>{_percent(weight_N[n])}</small></figcaption></figure>"
        for n in shown
    )
    return (f'<div class="strip">{strip}</div>' if strip else "") + bars(weight_N, shown)


def frame_of(element: int, elements: int, frames: int) -> int:
    """Return which of some frames, evenly over time, lies nearest to an element of a video."""
    return min(int((element + 0.5) / elements * frames), frames - 1)


def bars(weight_N: np.ndarray, strong: Sequence[int] | None = None) -> str:
    """Return a bar for each element, from 0 to the largest weight; negative weights have none.

    Args:
        weight_N: the weights.
        strong: the elements that stand out; all where None or empty.
    """
    most = max(float(weight_N.max()), 1e-12)
    pale = {n: ' class="pale"' for n in range(len(weight_N)) if strong and n not in strong}
    marks = [
        f'<i{pale.get(n, "")} style="height:{100 * max(weight, 0.0) / most:.1f}%" '
        f'title="element {n + 1}: {_percent(weight)}"></i>'
        for n, weight in enumerate(weight_N.tolist())
    ]
    return f'<div class="bars">{"".join(marks)}</div>'


def _text(weight_KL: np.ndarray, pieces: Sequence[str]) -> str:
    """Return a row for each vector: the words, or bars where the encoder has changed their number."""
    if weight_KL.shape[1] != len(pieces):
        return "".join(bars(weight_L) for weight_L in weight_KL)
    several = len(weight_KL) > 1
    return "".join(
        words(weight_L, pieces, name=f"vector {number}" if several else "")
        for number, weight_L in enumerate(weight_KL, start=1)
    )


def words(weight_L: np.ndarray, pieces: Sequence[str], *, name: str = "") -> str:
    """Return words, each shaded by its weight as a part of the largest; negative weights as 0."""
    most = max(float(weight_L.max()), 1e-12)
    shaded = [
        f'<span style="--w:{max(weight, 0.0) / most:.2f}" title="{escape(piece)}: {_percent(weight)}">'
        f"{escape(piece)}<i>{_percent(weight)}</i></span>"
        for weight, piece in zip(weight_L.tolist(), pieces, strict=True)
    ]
    label = f"<small>{name}</small>" if name else ""
    return f'<div class="words">{label}{"".join(shaded)}</div>'


def _percent(weight: float) -> str:
    value = 100 * weight
    return f"{value:.1f}%" if abs(value) >= 10 else f"{value:.2f}%"
