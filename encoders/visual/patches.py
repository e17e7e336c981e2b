"""Vision transformers fine-tuned from pixels: the patch models of VSE+2AD (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from polypool.encoders.backbones.hub import from_config, from_hub
from polypool.encoders.encoder import xavier_linear
from polypool.encoders.visual.pixels import ImageTransform, PixelEncoder
from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import above
from polypool.infra.registry import ENCODERS

_Deviation = Annotated[float, above(0)]
_UNREAD = {
    "vit": "pooler",
    "clip_vision_model": "post_layernorm",
    "siglip_vision_model": "head",
    "dinov2": "embeddings.mask_token",
    "dinov2_with_registers": "embeddings.mask_token",
}
"""Known models, and the part that patches do not depend on: DDP refuses weights without a gradient."""


@dataclass(frozen=True, kw_only=True)
class PatchesAssets:
    """The model's configuration, and mean and deviation of colours in pretraining, of 255."""

    config: dict[str, Any]
    mean: tuple[float, float, float]
    std: tuple[_Deviation, _Deviation, _Deviation]


@ENCODERS.register("patches")
class Patches(PixelEncoder):
    """The last hidden states of all patches, row by row, through a linear map.

    Args:
        assets: see `PatchesAssets`.
        width: width D of the elements.
        name: a ViT, CLIP, SigLIP or DINOv2 on the hub, or in a local folder.
        size: side of the square that images are squashed to, in pixels, a multiple of the patches'; position embeddings
            are interpolated where the model was trained with another.
        class_token: put the [CLS] token before the patches; registers are always left out.
    """

    assets_kind, published = PatchesAssets, "vit"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        name: str = "google/vit-base-patch16-224",
        size: int = 224,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        kind = str(assets["config"].get("model_type"))
        if kind not in _UNREAD:
            raise unknown("kind of vision transformer:", kind, _UNREAD)
        self.width, self.name, self.class_token = width, name, class_token
        if class_token and kind.startswith("siglip"):
            raise ValueError("SigLIP has no [CLS] token; choose class_token=False")
        self.vit = _trimmed(from_config(assets["config"]))
        self.fc = xavier_linear(self.vit.config.hidden_size, width)
        self._options = {} if kind.startswith("dinov2") else {"interpolate_pos_encoding": True}

    @classmethod
    def prepare(cls, *, name: str = "google/vit-base-patch16-224", **_: Any) -> dict[str, Any]:
        """Read configuration and colours from the hub or the folder."""
        from transformers import AutoConfig, AutoImageProcessor

        config = from_hub(AutoConfig, name)
        config = getattr(config, "vision_config", config)
        if config.model_type not in _UNREAD:
            raise unknown(f"kind of vision transformer in {name}:", config.model_type, _UNREAD)
        processor = from_hub(AutoImageProcessor, name, backend="pil")
        return {
            "config": config.to_dict(),
            "mean": [255 * value for value in processor.image_mean],
            "std": [255 * value for value in processor.image_std],
        }

    @classmethod
    def transform(
        cls, assets: Mapping[str, Any], *, size: int = 224, class_token: bool = False, **_: Any
    ) -> ImageTransform:
        patch = assets["config"].get("patch_size")
        if type(patch) is not int or patch < 1:
            raise InputError(f"config.patch_size must be a whole number of at least 1, not {patch!r}")
        if size < patch or size % patch:
            raise InputError(f"patches: size must be a multiple of {patch} pixels, not {size}")
        cells = (size // patch) ** 2 + class_token
        return ImageTransform(size=size, cells=cells, mean=assets["mean"], std=assets["std"], antialias=True)

    def load_pretrained(self) -> None:
        self.vit.load_state_dict(_trimmed(from_hub(type(self.vit), self.name)).state_dict())

    def forward(self, pixels_B3SS: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images to patches `(B, N, D)`."""
        state_BLH = self.vit(pixel_values=pixels_B3SS, **self._options).last_hidden_state
        patches = mask_BN.shape[1] - self.class_token
        state_BNH = state_BLH[:, -patches:]
        if self.class_token:
            state_BNH = torch.cat((state_BLH[:, :1], state_BNH), dim=1)
        return self.fc(state_BNH), mask_BN


def _trimmed(model: Any) -> Any:
    """Remove the part that patches do not depend on."""
    path, _, name = _UNREAD[model.config.model_type].rpartition(".")
    part = model.get_submodule(path)
    setattr(part, name, nn.Identity() if isinstance(getattr(part, name), nn.Module) else None)
    return model
