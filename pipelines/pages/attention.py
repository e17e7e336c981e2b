"""The page of attention: what the elements of images, videos and texts weigh to the aggregators of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from pipelines.pages.document import data_address, templates
from pipelines.pages.heat import cells, overlay, part_seen
from pipelines.pages.thumbnails import Thumbnails
from tasks.scoring.attention import AttentionExample, AttentionExamples

_FRAMES, _DECODED = 4, 32  # of a video: how many are shown, and how many are looked through at most


def attention_page(record: AttentionExamples) -> str:
    """Return the whole page: colours over images, the heaviest frames of videos, and shaded words."""
    video = record.modality == "video"
    vectors = max((len(it.visual) for it in record.examples if it.visual is not None), default=1)
    with Thumbnails(video=video) as thumbnails:
        cards = [_card(example, record, thumbnails) for example in record.examples]
    page = templates("pipelines.pages").get_template("attention.html.j2")
    return page.render(
        title=f"Where the aggregators look: {record.split}",
        about=_about(record),
        record=record,
        cards=cards,
        video=video,
        wide=vectors > 1 or video,
        zip=zip,
    )


def _about(record: AttentionExamples) -> str:
    chosen = f"{len(record.examples)} of {record.texts:,} {record.text_kind} of the split {record.split}"
    about = [f"{chosen}, each with its {record.modality}."]
    if any(it.visual is not None for it in record.examples):
        about.append(
            "Over a picture, blue is the smallest weight and yellow the largest, which stand below; the less they "
            "differ, the paler the colours."
            if record.modality == "image"
            else f"Of each video the {_FRAMES} frames of largest weight; the bars are all its elements in time."
        )
    if any(it.words is not None for it in record.examples):
        about.append("The stronger a word is shaded, the more it weighs.")
    if any(it.nearest for it in record.examples):
        about.append("Under each vector stands the caption of the split that lies nearest to it.")
    return " ".join(about)


def _card(example: AttentionExample, record: AttentionExamples, thumbnails: Thumbnails) -> dict[str, Any]:
    weight_KN, video = example.visual, record.modality == "video"
    decoded = min(weight_KN.shape[1], _DECODED) if video and weight_KN is not None else 1
    images = thumbnails.images(example.item.file, at_most=decoded)
    if weight_KN is None:
        figures, plain = None, data_address(images[0]) if images else ""
    else:
        draw = _frames if video else _image
        figures = [
            draw(images, weight_N, record.backbone)
            | {
                "name": f"vector {k + 1}: " if len(weight_KN) > 1 else "",
                "least": weight_N.min(),
                "most": weight_N.max(),
                "nearest": example.nearest[k] if example.nearest else None,
            }
            for k, weight_N in enumerate(weight_KN)
        ]
        plain = ""
    return {"example": example, "figures": figures, "plain": plain, "rows": _rows(example)}


def _rows(example: AttentionExample) -> list[dict[str, Any]]:
    """Return a row for each vector of a text: its words, or bars where the encoder has changed their number."""
    if example.words is None:
        return []
    bars, several = example.words.shape[1] != len(example.subwords), len(example.words) > 1
    return [
        {"name": f"vector {k + 1}" if several else "", "bars": bars, "shades": shades(weight_L)}
        for k, weight_L in enumerate(example.words)
    ]


def _image(
    images: Sequence[Image.Image], weight_N: np.ndarray, backbone: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the image under the colours of its cells' weights; bars beside it where they are no cells."""
    grid = cells(len(weight_N)) if backbone is not None else None
    if not images or grid is None:
        image = data_address(images[0]) if images else ""
        return {"frames": [], "image": image, "over": False, "token": None, "bars": shades(weight_N)}
    side, before = grid
    heat = overlay(part_seen(images[0], backbone), weight_N[before:].reshape(side, side))
    token = weight_N[0] if before else None
    return {"frames": [], "image": data_address(heat), "over": True, "token": token, "bars": []}


def _frames(
    images: Sequence[Image.Image], weight_N: np.ndarray, backbone: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the frames of largest weight in their order, and bars of all elements, in which those stand out."""
    heaviest = np.sort(np.argsort(-weight_N, kind="stable")[:_FRAMES]).tolist() if images else []
    frames = [
        {"address": data_address(images[frame_of(n, len(weight_N), len(images))]), "weight": weight_N[n]}
        for n in heaviest
    ]
    return {"frames": frames, "image": "", "over": False, "token": None, "bars": shades(weight_N, heaviest)}


def frame_of(element: int, elements: int, frames: int) -> int:
    """Return which of some frames, evenly over time, lies nearest to an element of a video."""
    return min(int((element + 0.5) / elements * frames), frames - 1)


def shades(weight_N: np.ndarray, strong: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return each weight and its part of the largest one, by which it is drawn; negative weights have none.

    Args:
        weight_N: the weights.
        strong: the elements that stand out, the others being pale; all where empty.
    """
    largest = max(float(weight_N.max()), 1e-12)
    return [
        {"weight": weight, "strength": max(weight, 0.0) / largest, "pale": bool(strong) and n not in strong}
        for n, weight in enumerate(weight_N.tolist())
    ]
