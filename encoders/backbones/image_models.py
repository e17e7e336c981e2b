"""Image models of transformers: patch tokens, image embeddings of image-text models, cells of convolutional maps.

All use the model's preprocessing, which discards the border if it includes a centre crop (CLIP, DINOv2). Sources:
Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021; He et al., "Deep residual learning for image
recognition", CVPR 2016; Jiang et al., "In defense of grid features for visual question answering", CVPR 2020.
"""

from __future__ import annotations

import math
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
        layers: a number takes the last `layers` layers, the last one first; a string lists layers by number, from 1,
            such as "3,6,9,12" or "9" for one layer. Each passes through the model's final norm, if patches do in the
            model. The channels of several layers are concatenated, as in the linear evaluation of DINOv2.
        stack: make the layers further elements instead, of the same width: all elements of the first layer, then those
            of the next. With `cls=True, grid=1, stack=True` the elements are [CLS] and the mean patch of each layer, as
            in attentive layer fusion (Ciernik et al., ICML 2026), which takes each layer after a norm inside it.
        bfloat16: compute in bfloat16, which takes half the time on processors and GPUs that support it.
    """

    gpu = True
    backbone = "vit"
    kind = "AutoModel"
    """Class of transformers."""
    norms: tuple[str, ...] = ("layernorm", "norm")
    """Names of the final norm of the patches; models of CLIP have none of these."""

    def __init__(
        self,
        *,
        name: ModelName = "google/vit-base-patch16-224",
        cls: bool = False,
        grid: int | None = None,
        layers: int | str = 1,
        stack: bool = False,
        bfloat16: bool = False,
    ) -> None:
        if grid is not None and grid < 1:
            raise ValueError(f"grid must be at least 1, not {grid}")
        self.cls, self.grid, self.layers, self.stack = cls, grid, layers, stack
        self._pretrained = Pretrained(name, kind=self.kind, bfloat16=bfloat16)
        self.note = self._pretrained.note
        self._last: int = self._pretrained.setting("num_hidden_layers", of=_KIND)
        self._numbers = _layer_numbers(layers, self._last, name=name)
        if isinstance(layers, str):  # without spaces: equal features are one data set
            self.layers = ",".join(map(str, self._numbers))
        self.dim: int = self._pretrained.setting("hidden_size", of=_KIND)
        self.dim *= 1 if stack else len(self._numbers)
        self._patch: int = self._pretrained.setting("patch_size", of=_KIND)

    def describe(self) -> dict[str, Any]:
        grid = {} if self.grid is None else {"grid": self.grid}
        layers = {} if self.layers == 1 else {"layers": self.layers}
        stack = {"stack": True} if self.stack else {}
        return (
            {"backbone": self.backbone, "cls": self.cls} | grid | layers | stack | self._pretrained.describe()
        )

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the model's input `(3, H, W)`."""
        (pixel_CHW,) = self._pretrained.pixels([image])
        return pixel_CHW

    def __call__(self, images: list[Image.Image | Tensor]) -> list[np.ndarray]:
        """Return the features of each image, `(patches, dim)` or `(grid * grid, dim)` float32, after an optional [CLS].

        With `stack`, each layer gives that many. Images may have any mode and size.
        """
        pixels = self._pretrained.pixels(images)
        features = []
        for states, image in zip(self._pretrained.computed(pixels, self._states), pixels, strict=True):
            rows, columns = (side // self._patch for side in image.shape[1:])
            layers = [self._elements(token_ND, rows, columns) for token_ND in states]
            features.append(np.concatenate(layers, axis=0 if self.stack else 1))
        return features

    def _elements(self, token_ND: np.ndarray, rows: int, columns: int) -> np.ndarray:
        cells = rows * columns
        merged = max(1, math.isqrt(cells // len(token_ND)))  # hierarchical models merge patches
        rows, columns = rows // merged, columns // merged
        ahead = len(token_ND) - rows * columns
        if ahead < self.cls or (ahead and merged > 1):
            expected, choose = ("one of each and [CLS]", "cls=False or ") if self.cls else ("one of each", "")
            raise InputError(
                f"{self._pretrained.name}: {len(token_ND)} states of an image of {cells} patches; expected {expected}; "
                f"choose {choose}another model"
            )
        patch_ND = token_ND[-rows * columns :]
        if self.grid is not None:
            patch_ND = _cells(patch_ND.reshape(rows, columns, -1), self.grid)
        return np.concatenate([token_ND[: int(self.cls)], patch_ND])

    def _states(self, model: Any, pixel_BCHW: Tensor) -> list[Tensor]:
        """Return the states `(B, N, D)` of all tokens in each layer."""
        found = model(pixel_BCHW, output_hidden_states=self._numbers != [self._last])
        norms = [getattr(model, name) for name in self.norms if hasattr(model, name)]

        def normed(x_BND: Tensor) -> Tensor:
            return norms[0](x_BND) if norms else x_BND

        return [
            found.last_hidden_state if number == self._last else normed(found.hidden_states[number])
            for number in self._numbers
        ]


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
        self,
        *,
        name: str,
        pooled: bool,
        cls: bool = False,
        grid: int | None = None,
        layers: int | str = 1,
        stack: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self.pooled = pooled
        if not pooled:
            super().__init__(name=name, cls=cls, grid=grid, layers=layers, stack=stack, bfloat16=bfloat16)
            return
        if cls or grid is not None or layers != 1 or stack:
            raise ValueError(
                "pooled=True is one embedding of the whole image; leave out cls, grid, layers and stack"
            )
        self.cls, self.grid, self.layers, self.stack = False, None, 1, False
        config = half_of_pair(name, "vision")
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
        grid, layers, stack, bfloat16: see `ViT`.
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
        layers: int | str = 1,
        stack: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(
            name=name, cls=cls, pooled=pooled, grid=grid, layers=layers, stack=stack, bfloat16=bfloat16
        )


@BACKBONES.register("siglip")
class SigLIPBackbone(_OfPair):
    """The vision tower of SigLIP, and of SigLIP 2 with fixed sizes (Zhai et al., ICCV 2023).

    Source: "Sigmoid loss for language image pre-training". It has no [CLS] token; patches are taken before its
    attention pooling.

    Args:
        name: a model on the hub, or a local folder.
        pooled: return only the image embedding, the output of the attention pooling; `siglip_text(pooled=True)`
            computes the matching text embedding.
        grid, layers, stack, bfloat16: see `ViT`.
    """

    backbone, kind, norms = "siglip", "SiglipVisionModel", ("post_layernorm",)
    pooled_kind, pooled_output, pooled_width = "SiglipVisionModel", "pooler_output", "hidden_size"

    def __init__(
        self,
        *,
        name: ModelName = "google/siglip-base-patch16-224",
        pooled: bool = False,
        grid: int | None = None,
        layers: int | str = 1,
        stack: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, pooled=pooled, grid=grid, layers=layers, stack=stack, bfloat16=bfloat16)


@BACKBONES.register("dinov2")
class DINOv2(ViT):
    """DINOv2, with or without registers (Oquab et al., TMLR 2024).

    Source: "DINOv2: learning robust visual features without supervision". Register tokens are dropped.

    Args:
        name: a model on the hub, or a local folder.
        cls: prepend the [CLS] token.
        grid, layers, stack, bfloat16: see `ViT`.
    """

    backbone = "dinov2"

    def __init__(
        self,
        *,
        name: ModelName = "facebook/dinov2-base",
        cls: bool = False,
        grid: int | None = None,
        layers: int | str = 1,
        stack: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, cls=cls, grid=grid, layers=layers, stack=stack, bfloat16=bfloat16)
        model_type = self._pretrained.model.config.model_type
        if not model_type.startswith("dinov2"):
            raise InputError(f"{name}: a model of type {model_type!r}; expected a DINOv2")


@BACKBONES.register("resnet")
class ResNetBackbone(Backbone):
    """The cells of the last feature map in row-major order, as in the grid models of VSE-infinity.

    Supports convolutional models of transformers with `hidden_sizes` in their configuration: ResNet, RegNet, ConvNeXt.

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
        if maps_DHW[0].ndim != 3:
            raise InputError(
                f"{self._pretrained.name}: last hidden states of shape {maps_DHW[0].shape}, expected a map "
                f"({self.dim}, rows, columns); choose a ResNet, RegNet or ConvNeXt"
            )
        return [np.ascontiguousarray(map_DHW.reshape(self.dim, -1).T) for map_DHW in maps_DHW]


def _layer_numbers(layers: int | str, most: int, *, name: str) -> list[int]:
    """Return the numbers of the layers that `ViT(layers=...)` selects, from 1.

    Raises:
        InputError: anything but a count or a list of distinct layers of the model.
    """
    if isinstance(layers, int):
        numbers = [*range(most, most - min(layers, most + 1), -1)]
    else:
        numbers = [int(number) if number.strip().isdecimal() else 0 for number in str(layers).split(",")]
    if not numbers or min(numbers) < 1 or max(numbers) > most or len(set(numbers)) < len(numbers):
        raise InputError(
            f"{name} has layers 1 to {most}: layers must be how many of the last, 1 to {most}, or a string of distinct "
            f'layers, such as "{most}", not {layers!r}'
        )
    return numbers


def _cells(x_RCD: np.ndarray, grid: int) -> np.ndarray:
    """Return the means over the cells of a partition `(grid * grid, D)`, as `adaptive_avg_pool2d` divides it."""
    for axis in (0, 1):
        size = x_RCD.shape[axis]
        parts = [slice(cell * size // grid, -(-(cell + 1) * size // grid)) for cell in range(grid)]
        x_RCD = np.stack([x_RCD.swapaxes(0, axis)[part].mean(axis=0) for part in parts]).swapaxes(0, axis)
    return x_RCD.reshape(grid * grid, -1)
