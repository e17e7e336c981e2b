from __future__ import annotations

import numpy as np
import pytest

from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.data.extraction.file_features import FileFeatures
from polypool.tasks.inputs.corpus_inputs import FeatureSource

VIDEO = {"decoder": "av 16.0.0", "frames": 4, "pool": "mean"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"video": 7}, "source.video: it must be a mapping of names to values, not 7"),
        ({"video": []}, "source.video: it must be a mapping"),
        ({"video": {"frames": "all"}}, "source.video: decoder is missing"),
        ({"video": VIDEO | {"decoder": 7}}, "source.video: decoder must be text, not 7"),
        ({"video": VIDEO | {"decoder": " "}}, "decoder must be a decoder's name and version, not ' '"),
        (
            {"video": VIDEO | {"frames": "some"}},
            "frames must be 'all' or a whole number of at least 1, not 'some'",
        ),
        ({"video": VIDEO | {"frames": 0}}, "frames must be 'all' or a whole number"),
        ({"video": VIDEO | {"frames": True}}, "frames must be 'all' or a whole number"),
        ({"video": VIDEO | {"every": 0}}, "every must be at least 1, not 0"),
        ({"video": VIDEO | {"pool": ["mean"]}}, "pool must be one of mean, concat, all, not"),
        ({"video": VIDEO, "batch": "16"}, "batch must be a whole number, not '16'"),
        (
            {"extractor": "cells"},
            "manifest.json: source must be a mapping, its `extractor`, if any, one with",
        ),
        ({"extractor": {"backbone": ["cells"]}}, "manifest.json: source must be a mapping"),
    ],
)
def test_what_a_manifest_says_wrong_of_its_making_is_named(tmp_path, source, message):
    with StoreWriter(tmp_path, dim=2, source={"extractor": {"backbone": "cells"}} | source) as writer:
        writer.add("a", np.ones((1, 2)))
    path = tmp_path / "video.mp4"
    path.touch()
    with pytest.raises(InputError) as caught:
        FileFeatures(FeatureSource.of(FeatureStore.open(tmp_path))).of(path, video=True)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'manifest.json'}: ")


@pytest.mark.parametrize(("source", "has"), [({}, "images"), ({"video": VIDEO}, "videos")])
def test_whether_images_or_videos_can_be_described_is_said_before_one_comes(tmp_path, source, has):
    extractor = Cells(grid=2, pixels=8)
    source = {"extractor": extractor.describe()} | source
    with StoreWriter(tmp_path, dim=extractor.dim, source=source) as writer:
        writer.add("a", np.ones((1, extractor.dim)))
    features = FileFeatures(FeatureSource.of(FeatureStore.open(tmp_path)))
    features.check(video=has == "videos")
    with pytest.raises(InputError, match=f"the model was trained on features of {has}"):
        features.check(video=has == "images")
