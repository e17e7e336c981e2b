"""Published models through transformers: from its cache, a local folder, or the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from polypool.encoders.backbones.model_folders import local_folder
from polypool.infra.errors import InputError
from polypool.infra.pictures import rgb

if TYPE_CHECKING:
    from torch import Tensor  # torch is slow to import, and workers without a model import this module, too
    from torch.nn import Module

_HELP = (
    "Give the name of a model on the hub, with a connection to it; or set HF_HOME to a cache that has the model, or "
    "POLYPOOL_MODELS to a folder with a folder of its name; or give a local folder with config.json, "
    "model.safetensors and preprocessor_config.json (images) or tokenizer.json (text)"
)

_TIMEOUT = 5.0  # timeout of the hub in seconds


def from_hub(kind: Any, name: str, **options: Any) -> Any:
    """Return `kind.from_pretrained(name)`, where `kind` is a class of transformers.

    Cached models are used without contacting the hub, so runs repeat. Weights are read from safetensors only.

    Args:
        kind: such as `AutoModel`, `AutoTokenizer`, `AutoConfig`.
        name: a model on the hub, or a local folder.
        options: passed on.

    Raises:
        InputError: an unknown model, no connection, a missing or damaged file, or weights of another architecture.
    """
    from huggingface_hub import HfApi  # slow to import, and most workers need no model

    folder, named = local_folder(name), Path(name).expanduser()
    if folder:
        name, places = str(folder), (True,)
    elif named.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such folder. {_HELP}")
    else:
        places = (True, False)
    for local in places:
        try:
            if not local:
                HfApi().model_info(name, timeout=_TIMEOUT)  # otherwise each file would be retried
            return _load(kind, name, local_files_only=local, **options)
        except InputError:
            raise
        except Exception as error:  # transformers, safetensors and tokenizers each raise their own exceptions
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    raise InputError(f"cannot load {name!r} with {kind.__name__}: {reason.rstrip(' .')}. {_HELP}")


def half_of_pair(name: str, half: Literal["text", "vision"]) -> Any:
    """Return the configuration of one tower of an image-text model, with the pair's projection width.

    Raises:
        InputError: an unknown model, or one without such a tower.
    """
    from transformers import AutoConfig

    pair = from_hub(AutoConfig, name)
    if not hasattr(pair, f"{half}_config"):
        raise InputError(
            f"{name}: a model of type {pair.model_type!r} has no {half} half; expected one of images and texts, such "
            "as openai/clip-vit-base-patch32"
        )
    config = getattr(pair, f"{half}_config")
    if hasattr(pair, "projection_dim"):  # the tower's own default may differ
        config.projection_dim = pair.projection_dim
    return config


def from_config(config: Mapping[str, Any], *, kind: str = "") -> Any:
    """Return a new model of a configuration (as from `to_dict`), with untrained weights.

    Entries that name code to fetch and run (`auto_map`, kernels on the hub) are ignored.

    Args:
        config: with its `model_type`.
        kind: transformers class; the default class of that type if empty.

    Raises:
        InputError: transformers does not know the model type, or cannot build it with these values.
    """
    import transformers
    from transformers import AutoConfig, AutoModel

    plain = {
        key: value
        for key, value in config.items()
        if key not in ("model_type", "auto_map", "dtype", "torch_dtype") and "implementation" not in key
    }
    try:
        known = AutoConfig.for_model(config["model_type"], **plain)
        if kind:
            return getattr(transformers, kind)(known)
        return AutoModel.from_config(known, trust_remote_code=False)
    except Exception as error:  # transformers and torch raise any exception for a wrong value
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(f"no model can be built of its config: {type(error).__name__}: {reason}") from error


def known_as(name: str) -> str:
    """Return the name by which a store records a model: its name on the hub, or the last part of a folder."""
    folder = local_folder(name)
    return folder.resolve().name if folder else name


def weights_digest(model: Module) -> str:
    """Return the SHA-256 of a model's weights and their names."""
    digest = hashlib.sha256()
    for key, value in model.state_dict().items():
        digest.update(key.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _load(kind: Any, name: str, **options: Any) -> Any:
    from huggingface_hub.utils import logging as hub_logging
    from transformers import PreTrainedModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    options |= {"trust_remote_code": False}  # the model's code would run, or a prompt to trust it appear
    if not hasattr(kind, "from_config") and not issubclass(
        kind, PreTrainedModel
    ):  # neither a model nor an Auto class of models
        return kind.from_pretrained(name, **options)
    options |= {"dtype": "float32", "use_safetensors": True, "output_loading_info": True}
    model, loaded = kind.from_pretrained(name, **options)
    missing = [key for key in loaded["missing_keys"] if "pooler" not in key]
    if missing:
        raise InputError(f"{name}: {len(missing)} weights are missing, such as {min(missing)}. {_HELP}")
    for key in loaded["missing_keys"]:  # an unused pooler; random weights would change the digest
        model.get_parameter(key).data.zero_()
    return model


class Pretrained:
    """A vision model with its preprocessing, on the GPU if one is available.

    Args:
        name: a model on the hub, or a local folder.
        kind: transformers class.
        bfloat16: compute in bfloat16 under autocast.
        options: passed on to `from_pretrained`.

    Attributes:
        note: warning if bfloat16 is slow on this machine; otherwise empty.
    """

    def __init__(self, name: str, *, kind: str = "AutoModel", bfloat16: bool = False, **options: Any) -> None:
        import transformers

        from polypool.infra.compute.device import best_device, computes_bfloat16

        self.name, self.bfloat16, self._moving = name, bfloat16, Lock()
        self.processor = from_hub(transformers.AutoImageProcessor, name, backend="pil")
        self.model = from_hub(getattr(transformers, kind), name, **options).eval()
        slow = bfloat16 and not computes_bfloat16(best_device())
        self.note = "bfloat16 is emulated on this machine, and slower than float32" if slow else ""

    def setting(self, name: str, *, of: str) -> Any:
        """Return an entry of the model's configuration.

        Raises:
            InputError: the model has no such entry: it is not one `of` the expected kind.
        """
        if not hasattr(self.model.config, name):
            kind = self.model.config.model_type
            raise InputError(f"{self.name}: a model of type {kind!r} has no {name}; expected {of}")
        return getattr(self.model.config, name)

    def pixels(self, images: Sequence[Image.Image | Tensor], **options: Any) -> list[Tensor]:
        """Return each image as model input `(3, H, W)`.

        Args:
            images: of any mode and size, or model inputs, which are returned unchanged.
            options: override settings of the preprocessing.
        """
        # without the layout, images of height 3 would be read as channels first
        options |= {"return_tensors": "pt", "input_data_format": "channels_last"}
        return [
            self.processor([rgb(image)], **options)["pixel_values"][0]
            if isinstance(image, Image.Image)
            else image
            for image in images
        ]

    def states(self, pixels: list[Tensor], *, of: str = "last_hidden_state") -> list[np.ndarray]:
        """Return an output of the model for each image, float32.

        Args:
            pixels: model input of each image.
            of: name of the output; the last hidden state is `(N, D)` tokens or a `(D, H, W)` map.
        """
        return [x for (x,) in self.computed(pixels, lambda model, pixel_BCHW: [model(pixel_BCHW)[of]])]

    def computed(
        self, pixels: list[Tensor], compute: Callable[[Any, Tensor], Sequence[Tensor]]
    ) -> list[list[np.ndarray]]:
        """Return the outputs of `compute` for each image, float32.

        Images are one batch if all have the same size, otherwise one batch each. On a GPU, calls of several threads
        overlap.

        Args:
            pixels: model input of each image.
            compute: called with the model and a batch `(B, 3, H, W)`; each output has a first axis of B.
        """
        import torch

        from polypool.infra.compute.device import best_device, own_stream

        if len({image.shape for image in pixels}) > 1:
            return [made for image in pixels for made in self.computed([image], compute)]
        device = best_device()
        precision = torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)
        with torch.inference_mode(), own_stream(device), precision:
            with self._moving:
                model = self.model.to(device)
            pixel_BCHW = torch.stack(pixels)
            if device.type == "cuda":
                pixel_BCHW = pixel_BCHW.pin_memory().to(device, non_blocking=True)
            found = [x.float().cpu().numpy() for x in compute(model, pixel_BCHW)]
        return [list(of_image) for of_image in zip(*found, strict=True)]

    def describe(self) -> dict[str, Any]:
        """Return the name, the preprocessing, the SHA-256 of the weights, and the precision if it is not float32."""
        return {
            "name": known_as(self.name),
            "preprocessing": json.loads(
                json.dumps(self.processor.to_dict())
            ),  # as read back from a store: no tuples
            "sha256": weights_digest(self.model),
            **({"bfloat16": True} if self.bfloat16 else {}),
        }
