"""Regions of pictures by detectors that transformers has: of each its vector, its box, and how sure the detector is.

Regions come as bottom-up attention has them (Anderson et al., "Bottom-up and top-down attention for image captioning
and visual question answering", CVPR 2018): a fixed number of the surest, or as many as are sure enough between a least
and a most. Boxes and scores become columns of the store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone, Described
from polypool.encoders.backbones.hub import Pretrained
from polypool.infra.errors import InputError
from polypool.infra.paths import ModelName
from polypool.infra.pictures import BOXES, SCORES, best_regions, corners
from polypool.infra.registry import BACKBONES


class Detector(Backbone):
    """A detector whose regions become the elements of a picture, the surest first.

    Attributes:
        backbone: the registered name.
        kind: class of transformers.
        types: the types of models that are read rightly.
    """

    gpu = True
    columns = {BOXES: 4, SCORES: 1}  # noqa: RUF012 - as the base class declares it
    backbone: str
    kind = "AutoModelForObjectDetection"
    types: tuple[str, ...]

    def __init__(self, *, name: str, regions: int, least: int, threshold: float, overlap: float) -> None:
        if not 1 <= least <= regions:
            raise ValueError(f"expected 1 <= least <= regions, got {least} and {regions}")
        if not (0 <= threshold <= 1 and 0 < overlap <= 1):
            raise ValueError(
                f"expected a threshold of 0 to 1 and an overlap above 0 to 1, got {threshold:g} and {overlap:g}"
            )
        self.regions, self.least, self.threshold, self.overlap = regions, least, threshold, overlap
        self._pretrained = Pretrained(name, kind=self.kind)
        if (found := self._pretrained.model.config.model_type) not in self.types:
            raise InputError(f"{name}: a model of type {found!r}; expected {' or '.join(self.types)}")

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on."""
        chosen = {name: getattr(self, name) for name in ("regions", "least", "threshold", "overlap")}
        return {"backbone": self.backbone} | chosen | self._pretrained.describe()

    def __call__(self, images: list[Image.Image]) -> list[Described]:
        """Return the regions of each image, `(regions, dim)` or fewer; any mode and size will do."""
        found = self._pretrained.computed(self._pixels(images), self._detect)
        return [
            self._chosen(x_QD, corners(self._of_picture(centre_Q4, image)), score_Q)
            for (x_QD, centre_Q4, score_Q), image in zip(found, images, strict=True)
        ]

    def _chosen(self, x_QD: np.ndarray, box_Q4: np.ndarray, score_Q: np.ndarray) -> Described:
        kept = best_regions(
            box_Q4,
            score_Q,
            most=self.regions,
            least=self.least,
            threshold=self.threshold,
            overlap=self.overlap,
        )
        return Described(x_ND=x_QD[kept], columns={BOXES: box_Q4[kept], SCORES: score_Q[kept, None]})

    def _pixels(self, images: list[Image.Image]) -> list[Any]:
        return self._pretrained.pixels(images)

    def _of_picture(self, centre_Q4: np.ndarray, image: Image.Image) -> np.ndarray:
        """Return boxes as fractions of the picture's sides, where the model gives them of what it was shown."""
        return centre_Q4

    @staticmethod
    @abstractmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        """Return vectors `(B, Q, D)`, boxes `(B, Q, 4)` as centre and sides, and scores `(B, Q)` from 0 to 1."""


@BACKBONES.register("detr")
class DETR(Detector):
    """DETR: Carion et al., "End-to-end object detection with transformers", ECCV 2020.

    A region's vector is the last state of its query in the decoder; its score, the highest probability of a class that
    is an object. The published weights name a backbone of timm, which is then needed beside (`pip install timm`).

    Args:
        name: a model on the hub, or a local folder.
        regions: how many at most.
        least: how many at least.
        threshold: the score that regions beyond the `least` need; bottom-up attention has 10 to 100, beyond 0.2.
        overlap: leave out a region of which more than this share (intersection over union) is in a surer one; DETR
            has learnt not to find things twice, so none by default.
    """

    backbone, types = "detr", ("detr", "table-transformer")

    def __init__(
        self,
        *,
        name: ModelName = "facebook/detr-resnet-50",
        regions: int = 36,
        least: int = 1,
        threshold: float = 0.0,
        overlap: float = 1.0,
    ) -> None:
        super().__init__(name=name, regions=regions, least=least, threshold=threshold, overlap=overlap)
        self.dim: int = self._pretrained.setting("d_model", of="a DETR")

    def _pixels(self, images: list[Image.Image]) -> list[Any]:
        return self._pretrained.pixels(images, do_pad=False)  # each image has the size that it has

    @staticmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        found = model(pixel_BCHW)
        score_BQ = found.logits.float().softmax(dim=-1)[..., :-1].amax(dim=-1)  # the last class is no object
        return found.last_hidden_state, found.pred_boxes, score_BQ


@BACKBONES.register("rtdetr")
class RTDETR(Detector):
    """RT-DETR and its second version: Zhao et al., "DETRs beat YOLOs on real-time object detection", CVPR 2024.

    A region's vector is the last state of its query in the decoder; its score, the highest probability of a class.

    Args:
        name: a model on the hub, or a local folder.
        regions, least, threshold, overlap: see `detr`.
    """

    backbone, types = "rtdetr", ("rt_detr", "rt_detr_v2")

    def __init__(
        self,
        *,
        name: ModelName = "PekingU/rtdetr_r50vd",
        regions: int = 36,
        least: int = 1,
        threshold: float = 0.0,
        overlap: float = 1.0,
    ) -> None:
        super().__init__(name=name, regions=regions, least=least, threshold=threshold, overlap=overlap)
        self.dim: int = self._pretrained.setting("d_model", of="an RT-DETR")

    @staticmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        found = model(pixel_BCHW)
        return found.last_hidden_state, found.pred_boxes, found.logits.float().sigmoid().amax(dim=-1)


@BACKBONES.register("owlv2")
class OWLv2(Detector):
    """OWLv2: Minderer, Gritsenko and Houlsby, "Scaling open-vocabulary object detection", NeurIPS 2023.

    Every patch proposes a region. Its vector is what the model compares with the embedding of a text, so that regions
    are told apart by what can be said of them; its score is how likely it is an object of any kind (objectness).

    Args:
        name: a model on the hub, or a local folder.
        regions, least, threshold: see `detr`.
        overlap: leave out a region of which more than this share (intersection over union) is in a surer one; as
            neighbouring patches find the same thing, 0.7 by default, as in bottom-up attention.
    """

    backbone, kind, types = "owlv2", "AutoModelForZeroShotObjectDetection", ("owlv2",)

    def __init__(
        self,
        *,
        name: ModelName = "google/owlv2-base-patch16-ensemble",
        regions: int = 36,
        least: int = 1,
        threshold: float = 0.0,
        overlap: float = 0.7,
    ) -> None:
        super().__init__(name=name, regions=regions, least=least, threshold=threshold, overlap=overlap)
        self.dim: int = self._pretrained.setting("text_config", of="an OWLv2").hidden_size

    def _of_picture(self, centre_Q4: np.ndarray, image: Image.Image) -> np.ndarray:
        """Return boxes of the picture: the model sees it at the top left of a square."""
        width, height = image.size
        return centre_Q4 * max(width, height) / np.array([width, height, width, height], np.float32)

    @staticmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        map_BHWD, _ = model.image_embedder(pixel_BCHW)
        x_BQD = map_BHWD.flatten(1, 2)
        _, vector_BQC = model.class_predictor(x_BQD)
        score_BQ = model.objectness_predictor(x_BQD).float().sigmoid()
        return vector_BQC, model.box_predictor(x_BQD, map_BHWD), score_BQ
