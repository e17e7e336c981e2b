"""Detectors as backbones: small random models of each kind against transformers' own post-processing."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from detectors import KINDS, write_detector
from PIL import Image

from polypool.infra.compute.device import best_device
from polypool.infra.pictures import BOXES, SCORES, shared
from polypool.infra.registry import BACKBONES

DIMS = {"detr": 16, "rtdetr": 16, "owlv2": 12}
QUERIES = {"detr": 9, "rtdetr": 12, "owlv2": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("detectors")
    return {kind: write_detector(kind, root / kind) for kind in KINDS}


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def build(kind: str, folder: Path, more: str = ""):
    return BACKBONES.build(f"{kind}(name={str(folder)!r}{more})")


def as_transformers_reads(
    kind: str, folder: Path, image: Image.Image
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors, boxes in pixels and scores of all queries, by transformers' own functions."""
    import transformers as tf

    processor = tf.AutoImageProcessor.from_pretrained(folder, backend="pil")
    device = best_device()
    model = getattr(tf, KINDS[kind]).from_pretrained(folder).eval().to(device)
    pixels = processor([image], return_tensors="pt").to(device)
    size = [image.size[::-1]]
    with torch.no_grad():
        if kind == "owlv2":
            map_BHWD, _ = model.image_embedder(pixels["pixel_values"])
            x_BQD = map_BHWD.flatten(1, 2)
            logits = model.objectness_predictor(x_BQD)[..., None]
            found = SimpleNamespace(logits=logits, pred_boxes=model.box_predictor(x_BQD, map_BHWD))
            vector_BQD = model.class_predictor(x_BQD)[1]
        else:
            found = model(**pixels)
            vector_BQD = found.last_hidden_state
    if kind == "rtdetr":  # its post-processing ranks pairs of query and class
        score_Q = found.logits[0].sigmoid().amax(dim=-1)
        centre_Q4 = found.pred_boxes[0]
        middle_Q2, half_Q2 = centre_Q4[:, :2], centre_Q4[:, 2:] / 2
        box_Q4 = torch.cat([middle_Q2 - half_Q2, middle_Q2 + half_Q2], dim=1)
        box_Q4 = box_Q4 * torch.tensor([image.width, image.height] * 2, device=device)
    else:
        (read,) = processor.post_process_object_detection(found, threshold=-1.0, target_sizes=size)
        box_Q4, score_Q = read["boxes"], read["scores"]
    return tuple(part.cpu().numpy() for part in (vector_BQD[0], box_Q4, score_Q))


@pytest.mark.parametrize(
    ("kind", "height", "width"),
    [("detr", 40, 60), ("rtdetr", 40, 60), ("owlv2", 40, 60), ("owlv2", 60, 40)],
)
def test_regions_match_transformers_post_processing(folders, kind, height, width):
    image = picture(height, width)
    vector_QD, box_Q4, score_Q = as_transformers_reads(kind, folders[kind], image)
    box_Q4 = (box_Q4 / np.array([width, height, width, height])).clip(0, 1)
    backbone = build(kind, folders[kind], ", regions=6, overlap=1.0")
    (found,) = backbone([image])
    assert backbone.dim == DIMS[kind]
    assert len(score_Q) == QUERIES[kind]
    seen_Q = (box_Q4[:, 2:] > box_Q4[:, :2]).all(axis=1)
    order = [number for number in np.argsort(-score_Q, kind="stable") if seen_Q[number]][:6]
    assert found.x_ND.shape == (len(order), DIMS[kind])
    np.testing.assert_allclose(found.x_ND, vector_QD[order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.columns[BOXES], box_Q4[order], atol=1e-5)
    np.testing.assert_allclose(found.columns[SCORES][:, 0], score_Q[order], rtol=1e-4)
    assert np.ptp(found.columns[BOXES], axis=0).max() > 1e-2, "the boxes of this test must differ"


@pytest.mark.parametrize("kind", KINDS)
def test_regions_do_not_depend_on_batch_mates(folders, kind):
    images = [picture(40, 60), picture(60, 40, 1), picture(40, 60, 2).convert("L")]
    backbone = build(kind, folders[kind], ", regions=5")
    for image, together in zip(images, backbone(images), strict=True):
        (alone,) = backbone([image])
        np.testing.assert_allclose(together.x_ND, alone.x_ND, rtol=1e-3, atol=1e-4)
        for name, width in backbone.columns.items():
            assert together.columns[name].shape[1] == width
            np.testing.assert_allclose(together.columns[name], alone.columns[name], rtol=1e-3, atol=1e-4)


def test_regions_overlapping_better_ones_are_dropped(folders):
    image = picture(40, 60)
    (every,) = build("owlv2", folders["owlv2"], ", regions=16, overlap=1.0")([image])
    (few,) = build("owlv2", folders["owlv2"], ", regions=16, overlap=0.1")([image])
    assert len(few.x_ND) < len(every.x_ND)
    for number, box_4 in enumerate(few.columns[BOXES][1:], start=1):
        assert shared(box_4, few.columns[BOXES][:number]).max() <= 0.1
