"""Vision transformers that learned from text, or from images alone: their patch tokens.

All see an image through its own preprocessing, which cuts the border off where it asks for a centre crop (CLIP,
DINOv2).
"""

from __future__ import annotations

from encoders.backbones.vit import ViT
from infra.errors import InputError
from infra.registry import BACKBONES


@BACKBONES.register("clip")
class CLIP(ViT):
    """The vision tower of CLIP: Radford et al., "Learning transferable visual models from natural language
    supervision", ICML 2021. Patches are those of the last layer, before the norm and the projection that only the
    [CLS] token goes through.

    Args:
        name: a model on the hub, or a local folder.
        cls: put the [CLS] token before the patches.
        grid, bfloat16: see `ViT`.
    """

    backbone, kind = "clip", "CLIPVisionModel"

    def __init__(
        self,
        *,
        name: str = "openai/clip-vit-base-patch32",
        cls: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, grid=grid, bfloat16=bfloat16)


@BACKBONES.register("siglip")
class SigLIPBackbone(ViT):
    """The vision tower of SigLIP and of SigLIP 2 with fixed sizes: Zhai et al., "Sigmoid loss for language image
    pre-training", ICCV 2023. It has no [CLS] token; its attention pooling is left out.

    Args:
        name: a model on the hub, or a local folder.
        grid, bfloat16: see `ViT`.
    """

    backbone, kind = "siglip", "SiglipVisionModel"

    def __init__(
        self, *, name: str = "google/siglip-base-patch16-224", grid: int | None = None, bfloat16: bool = False
    ) -> None:
        super().__init__(name=name, grid=grid, bfloat16=bfloat16)


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
