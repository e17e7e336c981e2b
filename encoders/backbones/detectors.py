"""Region features from object detectors of transformers: a vector, a box and a score for each region.

Regions are selected as in bottom-up attention (Anderson et al., "Bottom-up and top-down attention for image captioning
and visual question answering", CVPR 2018): a fixed number with the highest scores, or all above a threshold between a
minimum and a maximum number. Boxes and scores become columns of the store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone, ImageFeatures
from polypool.encoders.backbones.hub import Pretrained
from polypool.infra.errors import InputError
from polypool.infra.paths import ModelName
from polypool.infra.pictures import BOXES, SCORES, best_regions, corners
from polypool.infra.registry import BACKBONES


class Detector(Backbone):
    """A detector whose regions become the elements of an image, in descending order of score.

    Attributes:
        backbone: the registered name.
        kind: transformers class.
        types: supported model types.
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
        """Return all settings that determine the features."""
        chosen = {name: getattr(self, name) for name in ("regions", "least", "threshold", "overlap")}
        return {"backbone": self.backbone} | chosen | self._pretrained.describe()

    def __call__(self, images: list[Image.Image]) -> list[ImageFeatures]:
        """Return the regions of each image, `(regions, dim)` or fewer; images may have any mode and size."""
        found = self._pretrained.computed(self._pixels(images), self._detect)
        return [
            self._chosen(x_QD, corners(self._of_picture(centre_Q4, image)), score_Q)
            for (x_QD, centre_Q4, score_Q), image in zip(found, images, strict=True)
        ]

    def _chosen(self, x_QD: np.ndarray, box_Q4: np.ndarray, score_Q: np.ndarray) -> ImageFeatures:
        kept = best_regions(
            box_Q4,
            score_Q,
            most=self.regions,
            least=self.least,
            threshold=self.threshold,
            overlap=self.overlap,
        )
        return ImageFeatures(x_ND=x_QD[kept], columns={BOXES: box_Q4[kept], SCORES: score_Q[kept, None]})

    def _pixels(self, images: list[Image.Image]) -> list[Any]:
        return self._pretrained.pixels(images)

    def _of_picture(self, centre_Q4: np.ndarray, image: Image.Image) -> np.ndarray:
        """Convert boxes from the model's input to fractions of the image's sides."""
        return centre_Q4

    @staticmethod
    @abstractmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        """Return vectors `(B, Q, D)`, boxes `(B, Q, 4)` as centre and size, and scores `(B, Q)` in [0, 1]."""


@BACKBONES.register("detr")
class DETR(Detector):
    """DETR: Carion et al., "End-to-end object detection with transformers", ECCV 2020.

    A region's vector is its query's last decoder state; its score is the highest probability of an object class. The
    published weights use a timm backbone (`pip install timm`).

    Args:
        name: a model on the hub, or a local folder.
        regions: maximum number of regions.
        least: minimum number of regions.
        threshold: minimum score of regions beyond the `least`; bottom-up attention keeps 10 to 100 above 0.2.
        overlap: drop a region whose intersection over union with a higher-scored one exceeds this; DETR is trained
            without duplicates, so 1 (none dropped) by default.
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
        return self._pretrained.pixels(images, do_pad=False)  # images differ in size

    @staticmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        found = model(pixel_BCHW)
        score_BQ = (
            found.logits.float().softmax(dim=-1)[..., :-1].amax(dim=-1)
        )  # the last class is "no object"
        return found.last_hidden_state, found.pred_boxes, score_BQ


@BACKBONES.register("rtdetr")
class RTDETR(Detector):
    """RT-DETR and RT-DETRv2: Zhao et al., "DETRs beat YOLOs on real-time object detection", CVPR 2024.

    A region's vector is its query's last decoder state; its score is the highest class probability.

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

    Every patch proposes a region. Its vector is the class embedding that the model compares with text embeddings; its
    score is objectness, the probability of an object of any class.

    Args:
        name: a model on the hub, or a local folder.
        regions, least, threshold: see `detr`.
        overlap: drop a region whose intersection over union with a higher-scored one exceeds this; neighbouring patches
            detect the same object, so 0.7 by default, as for the region proposals of bottom-up attention.
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
        """Convert boxes to fractions of the image's sides: the input has the image at the top left of a square."""
        width, height = image.size
        return centre_Q4 * max(width, height) / np.array([width, height, width, height], np.float32)

    @staticmethod
    def _detect(model: Any, pixel_BCHW: Any) -> Sequence[Any]:
        map_BHWD, _ = model.image_embedder(pixel_BCHW)
        x_BQD = map_BHWD.flatten(1, 2)
        _, vector_BQC = model.class_predictor(x_BQD)
        score_BQ = model.objectness_predictor(x_BQD).float().sigmoid()
        return vector_BQC, model.box_predictor(x_BQD, map_BHWD), score_BQ
