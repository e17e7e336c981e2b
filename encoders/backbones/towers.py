"""Vision transformers that learned from text, or from images alone: their patch tokens, or the embedding that was
trained to lie near that of a text.

All see an image through its own preprocessing, which cuts the border off where it asks for a centre crop (CLIP,
DINOv2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.hub import Pretrained, half_of_pair
from encoders.backbones.vit import ViT
from infra.errors import InputError
from infra.registry import BACKBONES


class _OfPair(ViT):
    """The image half of a pair: its patches, or its embedding of the whole image.

    Attributes:
        pooled_kind, pooled_output, pooled_width: class of transformers that makes the embedding, the name of what it
            returns, and the setting that says how wide it is.
    """

    pooled_kind: str
    pooled_output: str
    pooled_width: str

    def __init__(
        self, *, name: str, pooled: bool, cls: bool = False, grid: int | None = None, bfloat16: bool = False
    ) -> None:
        self.pooled = pooled
        if not pooled:
            super().__init__(name=name, cls=cls, grid=grid, bfloat16=bfloat16)
            return
        if cls or grid is not None:
            raise ValueError("pooled=True is one embedding of the whole image; leave out cls and grid")
        self.cls, self.grid, config = False, None, half_of_pair(name, "vision")
        self._pretrained = Pretrained(name, kind=self.pooled_kind, bfloat16=bfloat16, config=config)
        self.note = self._pretrained.note
        self.dim = self._pretrained.setting(self.pooled_width, of="one half of a pair")

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on."""
        return super().describe() | ({"pooled": True} if self.pooled else {})

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        """Return the features `(patches, dim)` of each image, or its embedding, `(1, dim)`; float32."""
        if not self.pooled:
            return super().__call__(images)
        pixels = self._pretrained.pixels(images)
        return [embedding_D[None] for embedding_D in self._pretrained.states(pixels, of=self.pooled_output)]


@BACKBONES.register("clip")
class CLIP(_OfPair):
    """The vision tower of CLIP: Radford et al., "Learning transferable visual models from natural language
    supervision", ICML 2021. Patches are those of the last layer, before the norm and the projection that only the
    [CLS] token goes through.

    Args:
        name: a model on the hub, or a local folder.
        cls: put the [CLS] token before the patches.
        pooled: instead of patches, the one embedding of the image beside which `clip_text(pooled=True)` has the text's:
            [CLS] after the norm and the projection.
        grid, bfloat16: see `ViT`.
    """

    backbone, kind = "clip", "CLIPVisionModel"
    pooled_kind, pooled_output, pooled_width = (
        "CLIPVisionModelWithProjection",
        "image_embeds",
        "projection_dim",
    )

    def __init__(
        self,
        *,
        name: str = "openai/clip-vit-base-patch32",
        cls: bool = False,
        pooled: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, pooled=pooled, grid=grid, bfloat16=bfloat16)


@BACKBONES.register("siglip")
class SigLIPBackbone(_OfPair):
    """The vision tower of SigLIP and of SigLIP 2 with fixed sizes: Zhai et al., "Sigmoid loss for language image
    pre-training", ICCV 2023. It has no [CLS] token; its attention pooling is left out of the patches.

    Args:
        name: a model on the hub, or a local folder.
        pooled: instead of patches, the one embedding of the image beside which `siglip_text(pooled=True)` has the
            text's: what attention pooling makes of them.
        grid, bfloat16: see `ViT`.
    """

    backbone, kind = "siglip", "SiglipVisionModel"
    pooled_kind, pooled_output, pooled_width = "SiglipVisionModel", "pooler_output", "hidden_size"

    def __init__(
        self,
        *,
        name: str = "google/siglip-base-patch16-224",
        pooled: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, pooled=pooled, grid=grid, bfloat16=bfloat16)


@BACKBONES.register("dinov2")
class DINOv2(ViT):
    """DINOv2, also with registers, which are left out: Oquab et al., "DINOv2: learning robust visual features without
    supervision", TMLR 2024.

    Args:
        name: a model on the hub, or a local folder.
        cls: put the [CLS] token before the patches.
        grid, bfloat16: see `ViT`.
    """

    backbone = "dinov2"

    def __init__(
        self,
        *,
        name: str = "facebook/dinov2-base",
        cls: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, grid=grid, bfloat16=bfloat16)
        model_type = self._pretrained.model.config.model_type
        if not model_type.startswith("dinov2"):
            raise InputError(f"{name}: a model of type {model_type!r}; expected a DINOv2")
