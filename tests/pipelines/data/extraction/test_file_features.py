from __future__ import annotations

import numpy as np
import pytest

from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore, StoreWriter
from polypool.pipelines.data.extraction import FileFeatures
from polypool.tasks.inputs.corpus_inputs import FeatureSource

VIDEO = {"decoder": "av 16.0.0", "frames": 4, "pool": "mean"}


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
