"""The page of attention: the weights that a model's aggregators give the elements of images, videos and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
from PIL import Image

from polypool.pipelines.figures.pages.document import data_address, rendered
from polypool.pipelines.figures.pages.thumbnails import Thumbnails
from polypool.tasks.scoring.attention_maps import AttentionExample, AttentionExamples

_FRAMES, _DECODED = 4, 32  # of a video: frames that are shown, and that are decoded at most
_COLOURS = np.array([[20, 24, 82], [120, 28, 109], [220, 60, 60], [252, 150, 30], [255, 235, 90]], float)
_LEAST, _MOST = 0.45, 0.6  # the opacity of the colours over a picture for the smallest and the largest weight
_SIDE = 48  # cells along each side of a picture for the weights of regions
_WARPED = 384  # pixels from which ConvNeXt's preprocessing resizes images instead of cropping them


def attention_page(record: AttentionExamples) -> bytes:
    """Return the whole page: colours over images, the heaviest frames of videos, and shaded words."""
    video = record.modality == "video"
    vectors = max((len(it.visual) for it in record.examples if it.visual is not None), default=1)
    with Thumbnails(video=video) as thumbnails:
        cards = [_card(example, record, thumbnails) for example in record.examples]
    return rendered(
        "attention",
        f"Where the aggregators look: {record.split}",
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
        about.append("The stronger a word is shaded, the more it weighs; where all weigh alike, none is.")
    if any(_sums(it.visual) or _sums(it.words) for it in record.examples):
        about.append(
            "Weights add up to 100 % where an aggregator averages; those of one that lets each element pass by "
            "itself, as a gate does, add up to anything, and are alike where it lets all of them pass."
        )
    if any(it.nearest for it in record.examples):
        about.append("Under each vector is the nearest caption of the split.")
    return " ".join(about)


def _sums(weight_KN: np.ndarray | None) -> bool:
    """Whether the weights of a vector do not sum to one."""
    return weight_KN is not None and bool((np.abs(weight_KN.sum(axis=1) - 1) > 0.01).any())


def _card(example: AttentionExample, record: AttentionExamples, thumbnails: Thumbnails) -> dict[str, Any]:
    weight_KN, video = example.visual, record.modality == "video"
    decoded = min(weight_KN.shape[1], _DECODED) if video and weight_KN is not None else 1
    images = thumbnails.images(example.item.file, at_most=decoded)
    if weight_KN is None:
        figures, plain = None, data_address(images[0]) if images else ""
    else:
        figures = [
            (
                _frames(images, weight_N, example.seconds)
                if video
                else _image(images, weight_N, record.backbone, example.boxes)
            )
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
    """Return a row for each vector of a text: its words, or bars if the encoder has changed their number."""
    if example.words is None:
        return []
    bars, several = example.words.shape[1] != len(example.subwords), len(example.words) > 1
    return [
        {"name": f"vector {k + 1}" if several else "", "bars": bars, "shades": shades(weight_L)}
        for k, weight_L in enumerate(example.words)
    ]


def _image(
    images: Sequence[Image.Image],
    weight_N: np.ndarray,
    backbone: Mapping[str, Any] | None,
    box_N4: np.ndarray | None,
) -> dict[str, Any]:
    """Return the image under the colours of its cells' or regions' weights; bars beside it if it has neither."""
    image, over, token, bars = images[0] if images else None, True, None, shades(weight_N)
    if image is not None and box_N4 is not None:
        image = overlay(image, region_weights(box_N4, weight_N))
    elif image is not None and backbone is not None and (grid := cells(len(weight_N))):
        side, before = grid
        image = overlay(part_seen(image, backbone), weight_N[before:].reshape(side, side))
        token, bars = weight_N[0] if before else None, []
    else:
        over = False
    address = "" if image is None else data_address(image)
    return {"frames": [], "image": address, "over": over, "token": token, "bars": bars}


def _frames(
    images: Sequence[Image.Image], weight_N: np.ndarray, second_N1: np.ndarray | None
) -> dict[str, Any]:
    """Return the frames of largest weight in order, and bars of all elements, in which theirs stand out."""
    heaviest = np.sort(np.argsort(-weight_N, kind="stable")[:_FRAMES]).tolist() if images else []
    frames = [
        {
            "address": data_address(images[frame_of(n, len(weight_N), len(images))]),
            "weight": weight_N[n],
            "at": f", at {second_N1[n, 0]:.1f} s" if second_N1 is not None else "",
        }
        for n in heaviest
    ]
    return {"frames": frames, "image": "", "over": False, "token": None, "bars": shades(weight_N, heaviest)}


def frame_of(element: int, elements: int, frames: int) -> int:
    """Return which of some frames at regular times is nearest to an element of a video."""
    return min(int((element + 0.5) / elements * frames), frames - 1)


def shades(weight_N: np.ndarray, strong: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return each weight, its share of the largest one, and its shade.

    The height of a bar is the share of the largest weight, 0 for negative weights. The shade of a word is 0 for the
    smallest weight, and its maximum is `contrast`, as over pictures.

    Args:
        weight_N: the weights.
        strong: elements that stand out from the others, which are pale; empty for all.
    """
    least, most = float(weight_N.min()), float(weight_N.max())
    shade_N = (weight_N - least) / ((most - least) or 1.0) * contrast(least, most)
    return [
        {
            "weight": weight,
            "strength": max(weight, 0.0) / max(most, 1e-12),
            "shade": shade,
            "pale": bool(strong) and n not in strong,
        }
        for n, (weight, shade) in enumerate(zip(weight_N.tolist(), shade_N.tolist(), strict=True))
    ]


def contrast(least: float, most: float) -> float:
    """Return the strength of colours, 0 to 1: full if the smallest weight is at most half the largest."""
    return min(1.0, 2 * (most - least) / max(abs(least), abs(most))) if most > least else 0.0


def cells(elements: int) -> tuple[int, int] | None:
    """Return the side of a square grid of cells and the number of elements before it (1 for a class token), or None."""
    for before in (0, 1):
        side = isqrt(max(elements - before, 0))
        if side > 1 and side * side + before == elements:
            return side, before
    return None


def region_weights(box_N4: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """Return weights of `_SIDE` x `_SIDE` cells of a picture: the largest of the regions over each, else the smallest.

    Args:
        box_N4: left, top, right and bottom as fractions of the picture's sides.
        weight_N: of the regions.
    """
    weight_RC = np.full((_SIDE, _SIDE), weight_N.min())
    at_S = (np.arange(_SIDE) + 0.5) / _SIDE
    for number in np.argsort(weight_N, kind="stable"):  # the heaviest last, over the others
        left, top, right, bottom = box_N4[number]
        inside_RC = ((top <= at_S) & (at_S <= bottom))[:, None] & ((left <= at_S) & (at_S <= right))
        weight_RC[inside_RC] = weight_N[number]
    return weight_RC


def overlay(image: Image.Image, weight_RC: np.ndarray) -> Image.Image:
    """Return an image under the weights of its cells, from blue (the smallest) to yellow (the largest).

    Colours between the centres of cells are interpolated linearly, and as strong as `contrast` gives.

    Args:
        image: in mode RGB.
        weight_RC: of rows and columns; if all are equal, the image is returned unchanged.
    """
    least, most = float(weight_RC.min()), float(weight_RC.max())
    if most <= least:
        return image
    heat = Image.fromarray(((weight_RC - least) / (most - least)).astype(np.float32))
    heat_HW = np.asarray(heat.resize(image.size, Image.Resampling.BILINEAR)).clip(0, 1)
    steps = np.linspace(0, 1, len(_COLOURS))
    colour_HW3 = np.stack([np.interp(heat_HW, steps, column) for column in _COLOURS.T], axis=-1)
    cover_HW1 = contrast(least, most) * (_LEAST + (_MOST - _LEAST) * heat_HW)[..., None]
    mixed_HW3 = np.asarray(image) * (1 - cover_HW1) + colour_HW3 * cover_HW1
    return Image.fromarray(mixed_HW3.round().astype(np.uint8))


def part_seen(image: Image.Image, extractor: Mapping[str, Any]) -> Image.Image:
    """Return the part of an image that a backbone saw: its centre crop, if the preprocessing has one.

    Args:
        image: the whole.
        extractor: its description in the feature store; empty for backbones that see the whole.
    """
    settings = {} if extractor.get("size") else extractor.get("preprocessing") or {}
    size = settings.get("size") or {}
    short = size.get("shortest_edge")
    crop = (settings.get("crop_size") or {}) if settings.get("do_center_crop") else {}
    height, width = crop.get("height"), crop.get("width")
    if settings.get("crop_pct") and short and short < _WARPED:
        height, width, short = short, short, int(short / settings["crop_pct"])
    if not height or not width:
        return image
    scale = short / min(image.size) if short else 0.0
    whole = (image.width * scale, image.height * scale) if short else (size.get("width"), size.get("height"))
    if not all(whole):
        return image
    crop_size = [
        side * min(1.0, cut / large)
        for side, cut, large in zip(image.size, (width, height), whole, strict=True)
    ]
    left, top = ((side - part) / 2 for side, part in zip(image.size, crop_size, strict=True))
    return image.crop((round(left), round(top), round(left + crop_size[0]), round(top + crop_size[1])))
