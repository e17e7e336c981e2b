"""Vision transformers fine-tuned from pixels: the patch models of VSE+2AD (section 4.2), and other models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from polypool.encoders.backbones.hub import from_config, from_hub
from polypool.encoders.encoder import xavier_linear
from polypool.encoders.visual.pixels import ImageTransform, PixelEncoder
from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import Rule, above, at_least, require
from polypool.infra.paths import ModelName
from polypool.infra.registry import ENCODERS

ClassToken = bool | Literal["only"]
_CLASS_TOKEN = Rule("True, False or only", lambda value: isinstance(value, bool) or value == "only")
_Deviation = Annotated[float, above(0)]
_UNREAD = {
    "vit": "pooler",
    "clip_vision_model": "post_layernorm",
    "siglip_vision_model": "head",
    "dinov2": "embeddings.mask_token",
    "dinov2_with_registers": "embeddings.mask_token",
}
"""Known model types, and their part that does not affect patches: DDP fails on weights without a gradient."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Output of a model outside the known types.

    Attributes:
        cells: number of patches of an image, or of cells of a map.
        ahead: number of tokens before them, such as [CLS] and registers.
        unread: names of weights that do not affect the states, which are not trained.
    """

    cells: Annotated[int, at_least(1)]
    ahead: Annotated[int, at_least(0)]
    unread: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PatchesAssets:
    """The model's configuration, and the colours' mean and standard deviation in pretraining, on a scale of 255.

    Attributes:
        layout: output of a model outside the known types; None for known ones.
    """

    config: dict[str, Any]
    mean: tuple[float, float, float]
    std: tuple[_Deviation, _Deviation, _Deviation]
    layout: Layout | None = None


@ENCODERS.register("patches")
class Patches(PixelEncoder):
    """The last hidden states of all patches in row-major order, through a linear map.

    Args:
        assets: see `PatchesAssets`.
        width: width D of the elements.
        name: a ViT, CLIP, SigLIP or DINOv2 on the hub, or in a local folder; or any other vision model of transformers
            whose last hidden states are patches, or a map of cells: DINOv3, DeiT, Swin, ConvNeXt and others. Leading
            tokens are inferred from the number of states, and weights that do not affect the patches are frozen.
        size: side of the square that images are resized to, in pixels, a multiple of the patch size; position
            embeddings are interpolated if the model was pretrained at another size and supports it.
        class_token: prepend the [CLS] token, the model's first; `only` drops the patches, so that an image or a frame
            of a video is one element. Registers are always dropped.
    """

    assets_kind, published = PatchesAssets, "vit"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        name: ModelName = "google/vit-base-patch16-224",
        size: int = 224,
        class_token: ClassToken = False,
    ) -> None:
        super().__init__()
        require(_CLASS_TOKEN, class_token=class_token)
        kind, layout = str(assets["config"].get("model_type")), assets.get("layout")
        if kind not in _UNREAD and layout is None:
            raise unknown("kind of vision transformer:", kind, _UNREAD)
        self.width, self.name, self.class_token = width, name, class_token
        if class_token and (kind.startswith("siglip") or (layout and not layout["ahead"])):
            raise ValueError(f"{kind} has no [CLS] token; choose class_token=False")
        self.vit = _trimmed(from_config(assets["config"]))
        for weight in layout["unread"] if layout else ():
            self.vit.get_parameter(weight).requires_grad_(False)
        # the width of the states; in hierarchical models, of the last stage
        states = getattr(self.vit.config, "hidden_size", 0) or self.vit.config.hidden_sizes[-1]
        self.fc = xavier_linear(states, width)
        self._patches = _patches(assets, size=size)
        self._options = _options(self.vit)

    @classmethod
    def prepare(
        cls, *, name: ModelName = "google/vit-base-patch16-224", size: int = 224, **_: Any
    ) -> dict[str, Any]:
        """Read configuration and colours from the hub or the folder."""
        from transformers import AutoConfig, AutoImageProcessor

        config = from_hub(AutoConfig, name)
        config = getattr(config, "vision_config", config)
        known = config.model_type in _UNREAD
        layout = {} if known else {"layout": asdict(_layout(config.to_dict(), name=name, size=size))}
        processor = from_hub(AutoImageProcessor, name, backend="pil")
        return {
            "config": config.to_dict(),
            "mean": [255 * value for value in processor.image_mean],
            "std": [255 * value for value in processor.image_std],
            **layout,
        }

    @classmethod
    def transform(
        cls, assets: Mapping[str, Any], *, size: int = 224, class_token: ClassToken = False, **_: Any
    ) -> ImageTransform:
        cells = _patches(assets, size=size) * (class_token != "only") + bool(class_token)
        return ImageTransform(size=size, cells=cells, mean=assets["mean"], std=assets["std"], antialias=True)

    def load_pretrained(self) -> None:
        self.vit.load_state_dict(_trimmed(from_hub(type(self.vit), self.name)).state_dict())

    def cells(self, pixels_I3SS: Tensor) -> Tensor:
        state_ILH = _states(self.vit(pixel_values=pixels_I3SS, **self._options))
        if self.class_token == "only":
            return self.fc(state_ILH[:, :1])
        state_INH = state_ILH[:, -self._patches :]
        if self.class_token:
            state_INH = torch.cat((state_ILH[:, :1], state_INH), dim=1)
        return self.fc(state_INH)


def _trimmed(model: Any) -> Any:
    """Remove the part of a known model that does not affect the patches."""
    if model.config.model_type not in _UNREAD:
        return model
    path, _, name = _UNREAD[model.config.model_type].rpartition(".")
    part = model.get_submodule(path)
    setattr(part, name, nn.Identity() if isinstance(getattr(part, name), nn.Module) else None)
    return model


def _patches(assets: Mapping[str, Any], *, size: int) -> int:
    """Return the number of patches per image."""
    if layout := assets.get("layout"):
        return layout["cells"]
    patch = assets["config"].get("patch_size")
    if type(patch) is not int or patch < 1:
        raise InputError(f"config.patch_size must be a whole number of at least 1, not {patch!r}")
    if size < patch or size % patch:
        raise InputError(f"patches: size must be a multiple of {patch} pixels, not {size}")
    return (size // patch) ** 2


def _states(output: Any) -> Tensor:
    """Return the last hidden states `(B, L, H)`; for a map `(B, H, rows, columns)`, its cells in row-major order."""
    state = output.last_hidden_state
    return state.flatten(2).transpose(1, 2) if state.ndim == 4 else state


def _options(model: Any) -> dict[str, bool]:
    """Return the options with which a model reads images of another size than in pretraining."""
    wanted = "interpolate_pos_encoding"
    takes = wanted in inspect.signature(model.forward).parameters
    return {wanted: True} if takes and not model.config.model_type.startswith("dinov2") else {}


def _layout(config: Mapping[str, Any], *, name: str, size: int) -> Layout:
    """Determine a model's output for an image by a forward pass on the meta device.

    Raises:
        InputError: the model uses batch normalisation, fails on images of this size, or has fewer states than patches.
    """
    with torch.device("meta"):
        model = _trimmed(from_config(config)).train()
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            raise InputError(
                f"{name}: uses batch normalisation, which depends on batch size and workers; extract its "
                "features, or choose the encoder `cnn`"
            )
        pixels_13SS = torch.empty(1, 3, size, size)
        try:
            output = model(pixel_values=pixels_13SS, **_options(model))
            state_1LH = _states(output)
            state_1LH.sum().backward()
        except Exception as error:  # each model raises its own exceptions
            raise InputError(f"{name}: reads no images of {size} x {size} pixels: {error}") from error
    tokens, patch = state_1LH.shape[1], config.get("patch_size")
    is_map = output.last_hidden_state.ndim == 4
    cells = tokens if is_map or type(patch) is not int else (size // patch) ** 2
    if math.isqrt(tokens) ** 2 == tokens and cells > tokens:  # hierarchical models merge patches
        cells = tokens
    if cells > tokens:
        raise InputError(
            f"{name}: {tokens} states of an image of {cells} patches; expected one of each at least"
        )
    unread = tuple(weight for weight, x in model.named_parameters() if x.grad is None)
    return Layout(cells=cells, ahead=tokens - cells, unread=unread)
