"""HTML pages of examples and of attention, drawn from an evaluation's records by their type."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import singledispatch
from math import isqrt
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from polypool.infra.errors import InputError
from polypool.infra.pictures import load
from polypool.infra.video import BadVideo, VideoReader
from polypool.tasks.adapter import Pictures
from polypool.tasks.questions.answer_report import AnswerExample, AnswerExamples
from polypool.tasks.scoring.attention_maps import AttentionExample, AttentionExamples
from polypool.tasks.scoring.examples import HITS, RetrievalExamples

FRAMES, FRAME, GAP = 4, (160, 120), 3
"""The frames shown of a video: their number, and in a strip their largest size and the gap, in pixels."""
_JUDGED = {
    "own": "",
    "cxc": " Captions and images that people rated as matching also count as right.",
    "eccv": " Queries and right answers are those of ECCV Caption.",
}
"""Note on relevant captions in addition to, or instead of, an image's own ones, by `ScoringProtocol.right`."""


@singledispatch
def draw(record: Pictures) -> Mapping[str, bytes]:
    """Return the files that show a record, by file name; a mapping is returned unchanged.

    Packages register functions for their own records by `@draw.register`.

    Raises:
        InputError: no function is registered for the type.
    """
    raise InputError(
        f"an evaluation's pictures are {type(record).__name__}, expected files by name, None or one of the records "
        f"{', '.join(sorted(it.__name__ for it in draw.registry if it.__module__ != 'builtins'))}; register a "
        "function for another type with polypool.pipelines.figures.pages.draw.register"
    )


@draw.register
def _(record: None) -> Mapping[str, bytes]:
    return {}


@draw.register(Mapping)
def _(record: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return record


@draw.register
def _(record: AttentionExamples) -> Mapping[str, bytes]:
    return {f"{record.split}_attention.html": attention_page(record)}


@draw.register
def retrieval_page(record: RetrievalExamples) -> Mapping[str, bytes]:
    """Draw captions and pictures with their results; an item without a file is shown as its first caption."""
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
        f"Random queries, in turn right and wrong by the protocol {protocol.name}, with their results from the "
        f"{items:,} {record.modality}s or the {captions:,} {kind} of the whole split {record.split}: rank, score and, "
        f"with a dashed border, the best right result beyond the first {HITS}."
    )
    parts = f"{protocol.folds} parts of it, one by one" if protocol.folds > 1 else ""
    if record.ranked_items < items:
        parts = f"its first {record.ranked_items:,} {record.modality}s alone"
    if parts:
        about += f" The protocol searches {parts}, so its ranks are better or equal."
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


_DECODED = 32  # frames of a video, at most, from which the heaviest are taken
_COLOURS = np.array([[20, 24, 82], [120, 28, 109], [220, 60, 60], [252, 150, 30], [255, 235, 90]], float)
_LEAST, _MOST = 0.45, 0.6  # the opacity of the colours over a picture for the smallest and the largest weight
_SIDE = 48  # cells along each side of a picture for the weights of regions
_WARPED = 384  # pixels from which ConvNeXt's preprocessing resizes images instead of cropping them


def attention_page(record: AttentionExamples) -> bytes:
    """Return the whole page: colours over images, the heaviest frames of videos, and shaded words."""
    video = record.modality == "video"
    vectors = max((len(it.visual) for it in record.examples if it.visual is not None), default=1)
    with Thumbnails(video=video) as thumbnails:
        cards = [_attention_card(example, record, thumbnails) for example in record.examples]
    return rendered(
        "attention",
        f"Where the aggregators look: {record.split}",
        about=_about_attention(record),
        record=record,
        cards=cards,
        video=video,
        wide=vectors > 1 or video,
        zip=zip,
    )


def _about_attention(record: AttentionExamples) -> str:
    chosen = f"{len(record.examples)} of {record.texts:,} {record.text_kind} of the split {record.split}"
    about = [f"{chosen}, each with its {record.modality}."]
    if any(it.visual is not None for it in record.examples):
        about.append(
            "Over a picture, blue is the smallest weight and yellow the largest, which stand below; the less they "
            "differ, the paler the colours."
            if record.modality == "image"
            else f"Of each video the {FRAMES} frames of largest weight; the bars are all its elements in time."
        )
    if any(it.words is not None for it in record.examples):
        about.append("Words are shaded by weight; if all weights are equal, no word is shaded.")
    if any(_gates(it.visual) or _gates(it.words) for it in record.examples):
        about.append(
            "Weights add up to 100 % if the aggregator averages. The weights of a gate, which passes or blocks each "
            "element separately, may have any sum, and are equal if it passes all elements."
        )
    if any(it.nearest for it in record.examples):
        about.append("Under each vector is the nearest caption of the split.")
    return " ".join(about)


def _gates(weight_KN: np.ndarray | None) -> bool:
    """Whether the weights of a vector do not sum to one."""
    return weight_KN is not None and bool((np.abs(weight_KN.sum(axis=1) - 1) > 0.01).any())


def _attention_card(
    example: AttentionExample, record: AttentionExamples, thumbnails: Thumbnails
) -> dict[str, Any]:
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
    """Return a row for each vector of a text: its words, or bars if the encoder changed the number of tokens."""
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
    """Return the image under the weights of its cells or regions as colours; with bars, except for cells."""
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
    """Return the frames of largest weight in temporal order, and bars of all elements with these highlighted."""
    heaviest = np.sort(np.argsort(-weight_N, kind="stable")[:FRAMES]).tolist() if images else []
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
    """Return the index of the frame nearest in time to an element of a video; both are evenly spaced."""
    return min(int((element + 0.5) / elements * frames), frames - 1)


def shades(weight_N: np.ndarray, strong: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return each weight, its share of the largest one, and its shade.

    The height of a bar is the share of the largest weight, 0 for negative weights. The shade of a word goes from 0 for
    the smallest weight to `contrast`.

    Args:
        weight_N: the weights.
        strong: highlighted elements, the others are pale; empty for all.
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
    """Return the strength of colours, 0 to 1: 1 if the smallest weight is at most half the largest."""
    return min(1.0, 2 * (most - least) / max(abs(least), abs(most))) if most > least else 0.0


def cells(elements: int) -> tuple[int, int] | None:
    """Return the side of a square grid of cells and the number of elements before it (1 for a class token), or None."""
    for before in (0, 1):
        side = isqrt(max(elements - before, 0))
        if side > 1 and side * side + before == elements:
            return side, before
    return None


def region_weights(box_N4: np.ndarray, weight_N: np.ndarray) -> np.ndarray:
    """Return weights of `_SIDE` x `_SIDE` cells of a picture: the largest of the regions over a cell, else the
    smallest.

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

    Colours are interpolated linearly between the centres of cells; their strength is `contrast`.

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
        extractor: description of the backbone in the feature store; empty for backbones without a crop.
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


SIDE = 320  # pixels, of the longer side
_PATIENCE = 30.0  # seconds for one video


class Thumbnails(AbstractContextManager["Thumbnails"]):
    """Makes thumbnails of images, or of frames of videos; safe to share between threads.

    Args:
        video: the files are videos.
    """

    def __init__(self, *, video: bool) -> None:
        self.video = video
        self._lock = Lock()
        self._reader: VideoReader | None = None

    def images(self, file: Path | None, *, at_most: int = 1) -> list[Image.Image]:
        """Return small copies in RGB: of the image, or of frames of the video, evenly over time.

        Empty if the file is missing or cannot be decoded.

        Args:
            file: the image or video.
            at_most: number of frames of a video; 1 takes the middle one.
        """
        if file is None:
            return []
        if self.video:
            frames = self._frames(file, 3 if at_most == 1 else at_most)
            return frames if at_most > 1 else frames[len(frames) // 2 :][:1]
        image = load(file, side=SIDE)
        return [] if isinstance(image, str) else [_shrunk(image)]

    def _frames(self, path: Path, at_most: int) -> list[Image.Image]:
        with self._lock:
            self._reader = self._reader or VideoReader(decoder="av", timeout=_PATIENCE)
            try:
                return [
                    _shrunk(Image.fromarray(np.array(frame.x_HW3)))
                    for frame in self._reader.frames(path, at_most=at_most)
                ]
            except (BadVideo, RuntimeError):  # RuntimeError: no decoder is installed
                return []

    def close(self) -> None:
        """End the process that decodes videos."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def __exit__(self, *error: object) -> None:
        self.close()


def _shrunk(image: Image.Image) -> Image.Image:
    image.thumbnail((SIDE, SIDE))
    return image


def templates(package: str) -> Environment:
    """Return the templates of a package's folder `templates`.

    Values are escaped, except the output of other templates; an undefined name is an error.

    Args:
        package: such as `polypool.pipelines.figures`.
    """
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent
    return environment


def rendered(name: str, title: str, **values: Any) -> bytes:
    """Return a page of this package by the name of its template."""
    page = templates("polypool.pipelines.figures").get_template(f"{name}.html.j2")
    return page.render(title=title, **values).encode()


def percent(part: float) -> str:
    """Return a fraction as a percentage with one decimal, or with two below 10 %."""
    value = 100 * part
    return f"{value:.1f}%" if abs(value) >= 10 else f"{value:.2f}%"


def data_address(image: Image.Image | bytes, *, quality: int = 70) -> str:
    """Return a picture as a `data:` address.

    Args:
        image: in mode RGB, encoded as JPEG; or the bytes of a JPEG or a PNG.
        quality: of the JPEG.
    """
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = buffer.getvalue()
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
