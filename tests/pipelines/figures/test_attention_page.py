from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from markup import NASTY, well_formed
from PIL import Image

from polypool.pipelines.figures import pages as module
from polypool.pipelines.figures.pages import (
    attention_page,
    frame_of,
    overlay,
    part_seen,
    region_weights,
)
from polypool.tasks.datasets.corpus import PicturedItem
from polypool.tasks.scoring.attention_maps import AttentionExample, AttentionExamples, NearestCaption


def test_overlay_colours_follow_cell_weights():
    grey = Image.new("RGB", (93, 63), (128, 128, 128))
    weight_RC = np.full((3, 3), 0.1)
    weight_RC[0, 2], weight_RC[1, 1] = 0.5, 0
    shown_HW3 = np.asarray(overlay(grey, weight_RC)).astype(int)
    heat_HW, (red, green, blue) = shown_HW3[..., 0], shown_HW3[10, 77]
    assert red == heat_HW.max()
    assert min(red, green) > 60 + blue, "the largest weight must be yellow"
    red, green, blue = shown_HW3[31, 46]
    assert red == heat_HW.min()
    assert blue > 15 + max(red, green), "the smallest weight must be blue"
    assert heat_HW[10, 62] in range(heat_HW.min() + 1, heat_HW.max()), "colours must be interpolated"
    assert overlay(grey, np.full((3, 3), 0.1)) is grey
    pale_HW = np.asarray(overlay(grey, 1 + 0.01 * weight_RC)).astype(int)[..., 0]
    assert 0 < np.abs(pale_HW - 128).max() < 3, "small weight differences must give a faint overlay"


def test_part_seen_applies_centre_crop_of_backbone():
    image = Image.fromarray(np.arange(400 * 200 * 3, dtype=np.uint32).astype(np.uint8).reshape(200, 400, 3))
    crop = {"height": 224, "width": 224}
    clip = {"do_center_crop": True, "size": {"shortest_edge": 224}, "crop_size": crop}
    small = clip | {"size": {"shortest_edge": 256}}
    convnext = {"crop_pct": 0.875, "size": {"shortest_edge": 224}}
    squeezed = {"crop_pct": 0.875, "size": {"shortest_edge": 384}}
    square = clip | {"size": {"height": 448, "width": 448}}
    for preprocessing, box in (
        (clip, (100, 0, 300, 200)),
        (small, (112, 12, 288, 188)),
        (convnext, (112, 12, 288, 188)),
        (squeezed, (0, 0, 400, 200)),
        (square, (100, 50, 300, 150)),
        ({"size": crop}, (0, 0, 400, 200)),
    ):
        part = part_seen(image, {"preprocessing": preprocessing})
        assert np.array_equal(np.asarray(part), np.asarray(image.crop(box))), preprocessing
    assert part_seen(image, {"size": 512, "preprocessing": clip}) is image
    assert part_seen(image, {}) is image


def test_video_elements_map_to_frames_by_time():
    cases = ((4, 4, [0, 1, 2, 3]), (6, 3, [0, 0, 1, 1, 2, 2]), (2, 5, [1, 3]), (1, 1, [0]))
    for elements, frames, expected in cases:
        assert [frame_of(n, elements, frames) for n in range(elements)] == expected


class GreyFrames:
    """Frames whose grey level encodes their index."""

    def __init__(self, *, video: bool) -> None:
        self.calls: list[int] = []

    def images(self, file: Path | None, *, at_most: int = 1) -> list[Image.Image]:
        self.calls.append(at_most)
        return [Image.new("RGB", (40, 40), (20 * n,) * 3) for n in range(min(6, at_most))] if file else []

    def __enter__(self) -> GreyFrames:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture(autouse=True)
def thumbnails(monkeypatch: pytest.MonkeyPatch) -> GreyFrames:
    made = GreyFrames(video=True)
    monkeypatch.setattr(module, "Thumbnails", lambda *, video: made)
    return made


def example(**changes: object) -> AttentionExample:
    item = PicturedItem(id="<two>", file=Path("two"))
    usual = {"item": item, "text": "a <i>dog</i>", "subwords": ("w4", "w5"), "visual": None, "words": None}
    return AttentionExample(**usual | changes)


def page(*examples: AttentionExample, **changes: object) -> str:
    usual = {"split": "test", "modality": "image", "text_kind": "captions", "texts": 1000, "backbone": {}}
    html = attention_page(AttentionExamples(examples=examples, **usual | changes)).decode()
    assert well_formed(html)
    assert 'alt=""' not in html
    return html


def drawn(html: str) -> list[np.ndarray]:
    """Decode the images embedded in a page."""
    sources = map(base64.b64decode, re.findall(r'src="data:image/jpeg;base64,([^"]*)"', html))
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int) for data in sources]


def test_region_weights_fill_their_boxes():
    box_N4 = np.array([[0.0, 0.0, 0.5, 1.0], [0.25, 0.0, 0.75, 0.5], [0.0, 0.0, 0.0, 0.0]])
    weight_RC = region_weights(box_N4, np.array([0.5, 0.3, 0.2]))
    side = len(weight_RC)
    quarter = side // 4
    assert weight_RC[1, 1] == weight_RC[1, quarter + 1] == weight_RC[-2, 1] == 0.5, (
        "the heaviest of overlapping regions must be on top"
    )
    assert weight_RC[1, 2 * quarter + 1] == 0.3
    assert weight_RC[-2, 2 * quarter + 1] == weight_RC[1, -2] == 0.2, (
        "cells without a region must have the smallest weight"
    )
    with_boxes = {"visual": np.array([[0.7, 0.2, 0.1]]), "boxes": box_N4}
    (drawn_HW3,) = drawn(page(example(**with_boxes), backbone=None))
    assert drawn_HW3[20, 5, 0] > drawn_HW3[20, 38, 0] + 50, "the heavier left side must be warmer"


def test_attention_page_escapes_html():
    near = (NearestCaption(text=NASTY, cosine=0.5, own=True),)
    seen = {"visual": np.arange(4.0)[None], "words": np.array([[0.25, 0.75]])}
    item = PicturedItem(id=NASTY, file=Path("a"))
    html = page(example(item=item, text=NASTY, subwords=(NASTY, "w"), nearest=near, **seen), split=NASTY)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3 + 1 + 1 + 2 + 1
    html = page(example(words=np.array([[0.25, 0.75]])))
    assert "a &lt;i&gt;dog&lt;/i&gt;" in html
    assert html.count("<img") == 1, "the page must show the image once"


def test_word_shading_and_bar_heights_follow_weights():
    html = page(example(words=np.array([[0.1, 0.4, -0.2]]), subwords=("a", "<b>", "&")))
    assert re.findall(r'--w:([\d.]+)" title="([^"]*)"', html) == [
        ("0.50", "a: 10.0%"),
        ("1.00", "&lt;b&gt;: 40.0%"),
        ("0.00", "&amp;: -20.0%"),
    ]
    html = page(example(words=np.array([[0.1, 0.4, -0.2], [0.2, 0.1, 0.0]])), backbone=None)
    bars = re.findall(r'<i style="height:([\d.]+)%" title="element (\d): ([^"]*)"', html)
    assert bars[:3] == [("25.0", "1", "10.0%"), ("100.0", "2", "40.0%"), ("0.0", "3", "-20.0%")]
    assert bars[3:] == [("100.0", "1", "20.0%"), ("50.0", "2", "10.0%"), ("0.0", "3", "0.00%")]
    assert "<span" not in html, "weights must be bars if their number differs from the number of subwords"
    html = page(example(words=np.array([[0.5, 0.5], [0.1, 0.9]])))
    assert re.findall(r"<small>(vector \d)</small><span", html) == ["vector 1", "vector 2"]


def test_grids_get_an_overlay_and_regions_get_bars():
    html = page(example(visual=np.array([[0.6, 0.1, 0.1, 0.1, 0.1]])))
    assert "class token 60.0%" in html
    assert '<div class="bars">' not in html
    nine = np.arange(9.0)[None] / 36
    html = page(example(visual=nine), backbone=None)
    assert html.count("<img") == 1
    assert len(re.findall(r"element \d: ", html)) == 9
    assert drawn(html)[0].max() < 3, "the image must have no overlay"
    gone = page(example(visual=nine, item=PicturedItem(id="1", file=None)))
    assert "<img" not in gone
    assert gone.count('<div class="bars">') == 1


def test_heaviest_video_frames_are_shown_in_time_order(thumbnails):
    weight_KN = np.array([[0.02, 0.3, 0.05, 0.1, 0.2, 0.33]])
    html = page(example(visual=weight_KN), modality="video")
    assert thumbnails.calls == [6]
    assert re.findall(r"<figcaption><small>([\d.]+)%</small>", html) == ["30.0", "10.0", "20.0", "33.0"]
    assert [frame.mean() for frame in drawn(html)] == pytest.approx([20, 60, 80, 100], abs=3)
    assert re.findall(r'<i( class="pale")? style', html) == [' class="pale"', "", ' class="pale"', "", "", ""]
