from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from detectors import write_detector
from fake_extractor import bytes_of, corpus_of_files, in_this_process, interrupted
from pictures import noise
from PIL import Image

from polypool.encoders.backbones import Backbone, ImageFeatures
from polypool.infra.errors import InputError
from polypool.infra.pictures import BOXES, SCORES
from polypool.infra.spec import trust_modules
from polypool.infra.store import FeatureStore
from polypool.pipelines.commands import extract as verb
from polypool.pipelines.data import extraction
from polypool.pipelines.data.extraction import FileFeatures, VideoOptions, VideoSettings
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.inputs.corpus_inputs import FeatureSource
from polypool.tasks.scoring.attention_maps import column_of

trust_modules(__name__)


class Corners(Backbone):
    """Describes image corners by mean brightness and index; tall images have fewer corners."""

    dim = 2
    columns = {BOXES: 4, SCORES: 1}  # noqa: RUF012

    def describe(self):
        return {"backbone": f"{__name__}:Corners"}

    def __call__(self, images):
        return [self._of(np.asarray(image.convert("L"), np.float32)) for image in images]

    def _of(self, x_HW):
        (height, width), corners = x_HW.shape, [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1]]
        box_N4 = np.array(corners[: 2 + (width > height)], np.float32)
        places_N4 = (box_N4 * [width, height, width, height]).round().astype(int)
        means = [x_HW[top:bottom, left:right].mean() for left, top, right, bottom in places_N4]
        x_ND = np.stack([means, np.arange(len(means))], axis=1).astype(np.float32)
        return ImageFeatures(x_ND=x_ND, columns={SCORES: x_ND[:, :1] / 255, BOXES: box_N4})


CORNERS = f"{__name__}:Corners"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "images").mkdir()
    for n in range(12):
        noise(30 + 3 * n, 45, seed=n).save(folder / "images" / f"{n}.png")
    return corpus_of_files(folder, folder / "images", [f"{n}.png" for n in range(12)])


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return in_this_process(monkeypatch)


def test_boxes_and_scores_are_stored_with_vectors(corpus, tmp_path):
    verb.extract(corpus=corpus, out=tmp_path / "s", backbone=CORNERS, batch=5)
    store, opened = FeatureStore.open(tmp_path / "s"), Corpus.open(corpus)
    store.verify()
    assert store.columns == {BOXES: 4, SCORES: 1}
    items = [item for split in opened.splits for item in opened.items(split)]
    assert store.ids.to_pylist() == [item.id for item in items]
    for row, item in enumerate(items):
        with Image.open(opened.image_path(item)) as image:
            (described,) = Corners()([image])
        np.testing.assert_array_equal(store[row], described.x_ND.astype(np.float16))
        for name in store.columns:
            np.testing.assert_array_equal(store.column(name)[row], described.columns[name])
    assert len({len(store[row]) for row in range(len(store))}) == 2, "the test needs sets of different sizes"
    box_N4 = store.column(BOXES)[store.rows(["4"])[0]]
    np.testing.assert_array_equal(column_of(store, BOXES)("4", len(box_N4)), box_N4)
    assert column_of(store, BOXES)("4", len(box_N4) + 1) is None, (
        "a column for another number of elements must not be used"
    )
    videos = VideoSettings.plan(Corners(), VideoOptions(pool="concat"), batch=4)
    assert videos.dim == 2 * 2, "frames must keep only their vectors, of two corners each"


def test_interrupted_extraction_resumes_to_same_bytes(corpus, tmp_path, monkeypatch):
    few = 2 * 3 * 2 * 2  # bytes of a shard; vectors are then written ahead of columns
    monkeypatch.setattr(extraction, "StoreWriter", partial(extraction.StoreWriter, shard_bytes=few))
    what = {"corpus": corpus, "backbone": CORNERS, "batch": 2}
    verb.extract(**what, out=tmp_path / "whole")

    with interrupted(after=7):
        verb.extract(**what, out=tmp_path / "again")
    with pytest.raises(InputError, match="not a complete"):
        FeatureStore.open(tmp_path / "again")
    verb.extract(**what, out=tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "whole")


def test_features_of_file_match_stored_features(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a store records only the last part of the folder's path
    folder = write_detector("owlv2", tmp_path / "owlv2")
    spec = f"owlv2(name={folder.name!r}, regions=7, overlap=0.9)"
    verb.extract(corpus=corpus, out=tmp_path / "s", backbone=spec, dtype="float32", batch=1)
    store = FeatureStore.open(tmp_path / "s")
    features = FileFeatures(FeatureSource.of(store))
    path = Corpus.open(corpus).image_path(next(iter(Corpus.open(corpus).items("test"))))
    np.testing.assert_allclose(features.of(path, video=False), store[store.rows(["3"])[0]], atol=1e-6)
    assert store.column(BOXES).dim == 4
    features.check(video=False)
    with pytest.raises(InputError, match="the model was trained on features of images"):
        features.check(video=True)
