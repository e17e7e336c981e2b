"""Image models of transformers: patch tokens, image embeddings of image-text models, cells of convolutional maps.

All use the model's preprocessing, which discards the border if it includes a centre crop (CLIP, DINOv2). Sources:
Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021; He et al., "Deep residual learning for image
recognition", CVPR 2016; Jiang et al., "In defense of grid features for visual question answering", CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from polypool.encoders.backbones import Backbone
from polypool.encoders.backbones.hub import Pretrained, half_of_pair
from polypool.infra.errors import InputError
from polypool.infra.paths import ModelName
from polypool.infra.pictures import rgb
from polypool.infra.registry import BACKBONES

if TYPE_CHECKING:
    from torch import Tensor

_KIND = "a vision transformer"


@BACKBONES.register("vit")
class ViT(Backbone):
    """The last hidden states of all patches, in row-major order; for ViT, DeiT and similar models.

    Args:
        name: a model on the hub, or a local folder.
        cls: prepend the [CLS] token. Other special tokens are always dropped.
        grid: average the patches over the cells of a `grid` x `grid` partition; None keeps all patches. If the numbers
            do not divide, neighbouring cells share patches.
        layers: concatenate the states of the last `layers` layers, the last one first, each through the model's final
            norm, as in the linear evaluation of DINOv2; elements are `layers` times as wide.
        bfloat16: compute in bfloat16, which takes half the time on processors and GPUs that support it.
    """

    gpu = True
    backbone = "vit"
    kind = "AutoModel"
    """Class of transformers."""

    def __init__(
        self,
        *,
        name: ModelName = "google/vit-base-patch16-224",
        cls: bool = False,
        grid: int | None = None,
        layers: int = 1,
        bfloat16: bool = False,
    ) -> None:
        if grid is not None and grid < 1:
            raise ValueError(f"grid must be at least 1, not {grid}")
        self.cls, self.grid, self.layers = cls, grid, layers
        self._pretrained = Pretrained(name, kind=self.kind, bfloat16=bfloat16)
        self.note = self._pretrained.note
        most: int = self._pretrained.setting("num_hidden_layers", of=_KIND)
        if not 1 <= layers <= most:
            raise InputError(f"layers must be between 1 and the {most} of {name}, not {layers}")
        self.dim: int = self._pretrained.setting("hidden_size", of=_KIND) * layers
        self._patch: int = self._pretrained.setting("patch_size", of=_KIND)

    def describe(self) -> dict[str, Any]:
        grid = {} if self.grid is None else {"grid": self.grid}
        layers = {} if self.layers == 1 else {"layers": self.layers}
        return {"backbone": self.backbone, "cls": self.cls} | grid | layers | self._pretrained.describe()

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the model's input `(3, H, W)`."""
        (pixel_CHW,) = self._pretrained.pixels([image])
        return pixel_CHW

    def __call__(self, images: list[Image.Image | Tensor]) -> list[np.ndarray]:
        """Return the features of each image, `(patches, dim)` or `(grid * grid, dim)` float32, after an optional [CLS].

        Images may have any mode and size.
        """
        pixels = self._pretrained.pixels(images)
        features = []
        for token_ND, image in zip(self._states(pixels), pixels, strict=True):
            rows, columns = (side // self._patch for side in image.shape[1:])
            patch_ND = token_ND[-rows * columns :]
            if self.grid is not None:
                patch_ND = _cells(patch_ND.reshape(rows, columns, -1), self.grid)
            features.append(np.concatenate([token_ND[: int(self.cls)], patch_ND]))
        return features

    def _states(self, pixels: list[Tensor]) -> list[np.ndarray]:
        """Return the states of all tokens of each image, `(N, dim)`."""
        if self.layers == 1:
            return self._pretrained.states(pixels)
        layers = [*range(-1, -1 - self.layers, -1)]
        of_images = self._pretrained.computed(pixels, lambda model, x: _normed_states(model, x, layers))
        return [np.concatenate(states, axis=-1) for states in of_images]


class _OfPair(ViT):
    """The image tower of an image-text model: patches, or the embedding of the whole image.

    Attributes:
        pooled_kind, pooled_output, pooled_width: transformers class that computes the embedding, the name of its
            output, and the setting that holds its width.
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
        self.cls, self.grid, self.layers, config = False, None, 1, half_of_pair(name, "vision")
        self._pretrained = Pretrained(name, kind=self.pooled_kind, bfloat16=bfloat16, config=config)
        self.note = self._pretrained.note
        self.dim = self._pretrained.setting(self.pooled_width, of="one half of a pair")

    def describe(self) -> dict[str, Any]:
        return super().describe() | ({"pooled": True} if self.pooled else {})

    def __call__(self, images: list[Image.Image | Tensor]) -> list[np.ndarray]:
        """Return the features of each image, `(patches, dim)`, or its embedding `(1, dim)`; float32."""
        if not self.pooled:
            return super().__call__(images)
        pixels = self._pretrained.pixels(images)
        return [embedding_D[None] for embedding_D in self._pretrained.states(pixels, of=self.pooled_output)]


@BACKBONES.register("clip")
class CLIP(_OfPair):
    """The vision tower of CLIP.

    Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021. Patches are from
    the last layer, before the norm and the projection, which CLIP applies to the [CLS] token only.

    Args:
        name: a model on the hub, or a local folder.
        cls: prepend the [CLS] token.
        pooled: return only the image embedding, [CLS] after the norm and the projection; `clip_text(pooled=True)`
            computes the matching text embedding.
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
        name: ModelName = "openai/clip-vit-base-patch32",
        cls: bool = False,
        pooled: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, pooled=pooled, grid=grid, bfloat16=bfloat16)


@BACKBONES.register("siglip")
class SigLIPBackbone(_OfPair):
    """The vision tower of SigLIP, and of SigLIP 2 with fixed sizes (Zhai et al., ICCV 2023).

    Source: "Sigmoid loss for language image pre-training". It has no [CLS] token; patches are taken before its
    attention pooling.

    Args:
        name: a model on the hub, or a local folder.
        pooled: return only the image embedding, the output of the attention pooling; `siglip_text(pooled=True)`
            computes the matching text embedding.
        grid, bfloat16: see `ViT`.
    """

    backbone, kind = "siglip", "SiglipVisionModel"
    pooled_kind, pooled_output, pooled_width = "SiglipVisionModel", "pooler_output", "hidden_size"

    def __init__(
        self,
        *,
        name: ModelName = "google/siglip-base-patch16-224",
        pooled: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, pooled=pooled, grid=grid, bfloat16=bfloat16)


@BACKBONES.register("dinov2")
class DINOv2(ViT):
    """DINOv2, with or without registers (Oquab et al., TMLR 2024).

    Source: "DINOv2: learning robust visual features without supervision". Register tokens are dropped.

    Args:
        name: a model on the hub, or a local folder.
        cls: prepend the [CLS] token.
        grid, layers, bfloat16: see `ViT`.
    """

    backbone = "dinov2"

    def __init__(
        self,
        *,
        name: ModelName = "facebook/dinov2-base",
        cls: bool = False,
        grid: int | None = None,
        layers: int = 1,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, grid=grid, layers=layers, bfloat16=bfloat16)
        model_type = self._pretrained.model.config.model_type
        if not model_type.startswith("dinov2"):
            raise InputError(f"{name}: a model of type {model_type!r}; expected a DINOv2")


@BACKBONES.register("resnet")
class ResNetBackbone(Backbone):
    """The cells of the last feature map in row-major order, as in the grid models of VSE-infinity.

    Supports all convolutional models of transformers.

    Args:
        name: a model on the hub, or a local folder.
        size: resize the whole image to a square of this many pixels (512 in VSE-infinity); by default the model's
            preprocessing applies, which discards the border.
    """

    gpu = True

    def __init__(self, *, name: ModelName = "microsoft/resnet-50", size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        self.size = size
        self._pretrained = Pretrained(name)
        self.dim: int = self._pretrained.setting("hidden_sizes", of="a ResNet or its like")[-1]

    def describe(self) -> dict[str, Any]:
        return {"backbone": "resnet", "size": self.size} | self._pretrained.describe()

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the model's input `(3, H, W)`."""
        options = {}
        if self.size is not None:
            image = rgb(image).resize((self.size, self.size), Image.Resampling.BICUBIC)
            options = {"do_resize": False, "do_center_crop": False}
        (pixel_CHW,) = self._pretrained.pixels([image], **options)
        return pixel_CHW

    def __call__(self, images: list[Image.Image | Tensor]) -> list[np.ndarray]:
        """Return the features of each image, `(cells, dim)` float32; images may have any mode and size."""
        pixels = [self.prepare(image) if isinstance(image, Image.Image) else image for image in images]
        maps_DHW = self._pretrained.states(pixels)
        return [np.ascontiguousarray(map_DHW.reshape(self.dim, -1).T) for map_DHW in maps_DHW]


def _normed_states(model: Any, pixel_BCHW: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Return the states `(B, N, D)` of some layers, each through the model's final norm."""
    states = model(pixel_BCHW, output_hidden_states=True).hidden_states
    return [model.layernorm(states[layer]) for layer in layers]


def _cells(x_RCD: np.ndarray, grid: int) -> np.ndarray:
    """Return the means over the cells of a partition `(grid * grid, D)`, as `adaptive_avg_pool2d` divides it."""
    for axis in (0, 1):
        size = x_RCD.shape[axis]
        parts = [slice(cell * size // grid, -(-(cell + 1) * size // grid)) for cell in range(grid)]
        x_RCD = np.stack([x_RCD.swapaxes(0, axis)[part].mean(axis=0) for part in parts]).swapaxes(0, axis)
    return x_RCD.reshape(grid * grid, -1)
