from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polypool.infra.errors import InputError
from polypool.pipelines.data.rendered.captions import captions
from polypool.pipelines.data.rendered.scenes import (
    HEIGHT,
    RADII,
    WIDTH,
    compose,
    draw,
    scene_of,
    write_scenes,
)
from polypool.pipelines.data.rendered.shapes import COLOURS, Scene, Shape
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.readers.karpathy import Karpathy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    assert write_scenes(folder, images=20, seed=3) == folder / "dataset_scenes.json"
    return folder


def shape(**changed: object) -> Shape:
    usual = {"form": "circle", "colour": "red", "size": "modality", "striped": False, "x": 50, "y": 80}
    return Shape(**usual | {"radius": 20} | changed)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_coco_reader_takes_every_scene(folder):
    items = list(Karpathy(json=folder / "dataset_scenes.json", images=folder).read().rows)
    assert all(isinstance(item, Item) for item in items)
    assert Counter(item.split for item in items) == {"train": 15, "val": 2, "test": 3}
    assert {len(set(item.captions)) for item in items} == {5}
    with Image.open(folder / items[0].path) as image:
        assert (image.size, image.format, image.mode) == ((WIDTH, HEIGHT), "JPEG", "RGB")


def test_the_file_has_the_fields_of_karpathys(folder):
    data = json.loads((folder / "dataset_scenes.json").read_text())
    assert data["dataset"] == "scenes"
    entry = data["images"][17]
    assert set(entry) == {"filepath", "filename", "imgid", "cocoid", "sentids", "split", "sentences"}
    assert [sentence["sentid"] for sentence in entry["sentences"]] == entry["sentids"]
    assert len({id for entry in data["images"] for id in entry["sentids"]}) == 100
    sentence = entry["sentences"][0]
    assert sentence["imgid"] == entry["imgid"] == 17
    assert " ".join(sentence["tokens"]) in sentence["raw"].lower().replace(",", "")
    assert {entry["filepath"] for entry in data["images"]} == {"images/train2014", "images/val2014"}


def test_a_seed_names_a_corpus(folder, tmp_path):
    write_scenes(tmp_path / "same", images=20, seed=3)
    files = [path.relative_to(folder) for path in folder.rglob("*.*")]
    assert len(files) == 21
    assert all((tmp_path / "same" / file).read_bytes() == (folder / file).read_bytes() for file in files)
    assert scene_of(0, seed=3)[0] != scene_of(0, seed=4)[0]


def test_shapes_lie_inside_and_do_not_touch():
    for seed in range(200):
        shapes = compose(rng(seed)).shapes
        assert 3 <= len(shapes) <= 5
        for one in shapes:
            assert RADII[one.size][0] <= one.radius <= RADII[one.size][1]
            assert one.radius < one.x < WIDTH - one.radius
            assert one.radius < one.y < HEIGHT - one.radius
            assert all(
                np.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius
                for other in shapes
                if other is not one
            )


@pytest.mark.parametrize("colour", COLOURS)
def test_a_shape_is_drawn_in_its_colour_at_its_place(colour):
    background = "beige" if colour not in ("white", "yellow", "pink") else "dark"
    scene = Scene(background=background, pattern="plain", shapes=(shape(colour=colour),))
    pixels_HWC = np.asarray(draw(scene, rng()), float)
    inside = pixels_HWC[75:85, 45:55].mean((0, 1))
    outside = pixels_HWC[75:85, 150:200].mean((0, 1))
    distances = {name: np.abs(inside - rgb).sum() for name, rgb in COLOURS.items()}
    assert min(distances, key=distances.get) == colour
    assert np.abs(inside - outside).sum() > 90


def test_a_ring_has_a_hole_and_a_pattern_has_contrast():
    ring = Scene(background="beige", pattern="plain", shapes=(shape(form="ring"),))
    hole = np.asarray(draw(ring, rng()), float)[78:83, 48:53].mean((0, 1))
    assert np.abs(hole - COLOURS["red"]).sum() > 200
    plain, striped = (
        np.asarray(draw(Scene(background="grey", pattern=pattern, shapes=()), rng()), float)
        for pattern in ("plain", "striped")
    )
    assert striped.std() > plain.std() + 2


def test_captions_are_true():
    green = {"form": "star", "colour": "green"}
    shapes = (
        shape(**green, x=30),
        shape(**green, x=100, size="large"),
        shape(form="ring", colour="blue", x=180),
    )
    scene = Scene(background="grey", pattern="dotted", shapes=shapes)
    told = {caption for seed in range(60) for caption in captions(scene, rng(seed), count=10)}
    text = "\n".join(sorted(told))
    assert "Two green stars" in text
    assert "on a dotted grey background" in text
    untrue = ("small", "red", "four", "Four", " above ", " below ", " over ", " under ", " beneath ", "An ")
    assert not [word for word in untrue if word in text]
    beside = ("A green star left of a blue", "A green star to the left of a blue")
    assert any(caption.startswith(beside) for caption in told)
    on_the_right = [caption for caption in told if "on the right" in caption.lower()]
    assert on_the_right
    assert not any("star" in caption or "green" in caption for caption in on_the_right)
    pair = (shape(colour="orange"), shape(colour="orange", x=150))
    of_pair = captions(Scene(background="grey", pattern="plain", shapes=pair), rng(), count=15)
    assert "an orange" in "\n".join(of_pair)


def test_captions_differ_within_and_between_scenes():
    scenes = [compose(rng(seed)) for seed in range(50)]
    told = [captions(scene, rng(seed)) for seed, scene in enumerate(scenes)]
    assert all(len(set(five)) == 5 for five in told)
    assert len({caption for five in told for caption in five}) > 240


def test_too_few_scenes_and_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="at least 20"):
        write_scenes(tmp_path, images=19)
    (tmp_path / "images").write_text("a file")
    with pytest.raises(InputError, match="images"):
        write_scenes(tmp_path, images=20)
