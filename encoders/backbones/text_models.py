"""Pretrained text encoders for `extract --texts`: run once per text instead of in every epoch of every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from polypool.encoders.backbones import Backbone
from polypool.infra.fields import from_plain
from polypool.infra.paths import ModelName
from polypool.infra.registry import BACKBONES, ENCODERS


class TextBackbone(Backbone):
    """The token states of the text encoder of the same name, before its linear map.

    Texts are tokenised as in training, so a linear map of the stored states equals the encoder with frozen weights.

    Args:
        name: a model on the hub, or a local folder.
        pooled: return only the embedding of the whole text.
        bfloat16: compute in bfloat16, which takes half the time on processors and GPUs that support it.
    """

    gpu = True
    reads = "text"
    backbone: str
    """Registered name of the backbone and of the encoder."""
    model: str
    """Name of the encoder's submodule with the transformers model."""
    pool: Callable[[np.ndarray], np.ndarray] | None = None
    """Computes the embedding `(1, D)` of a text from its states `(N, D)`; None for the model's own projection."""

    def __init__(self, *, name: str, pooled: bool = False, bfloat16: bool = False) -> None:
        from polypool.encoders.backbones.hub import known_as, weights_digest
        from polypool.encoders.text.bert import positions

        kind, projected = ENCODERS.get(self.backbone), pooled and self.pool is None
        assets = kind.prepare((), name=name)
        self._encoder = kind(assets, name=name, **({"pooled": True} if projected else {})).eval()
        self._encoder.load_pretrained()
        self._tokenizer, self._projected, self._bfloat16 = kind.tokenizer(assets), projected, bfloat16
        self._pool = self.pool if pooled else None
        self._moving = Lock()
        model = self._encoder.get_submodule(self.model)
        self.dim: int = self._encoder.width if projected else model.config.hidden_size
        self._longest = getattr(self._encoder, "longest", None)  # an encoder with this limit truncates
        self._longest = None if self._longest else positions(model.config.to_dict()) or None
        self._described = {
            "backbone": self.backbone,
            "name": known_as(name),
            "preprocessing": {key: value for key, value in assets.items() if key != "config"},
            "sha256": weights_digest(self._encoder if projected else model),
            **({"pooled": True} if pooled else {}),
            **({"bfloat16": True} if bfloat16 else {}),
        }

    def describe(self) -> dict[str, Any]:
        """Return all settings that determine the features; `preprocessing` holds the tokenizer."""
        return self._described

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray | str]:
        """Return the features of each text, `(N, dim)` float32, or the reason if it cannot be encoded."""
        lines = [[number for word in words for number in word] for words in self._tokenizer.encode(texts)]
        sizes = [len(line) + self._tokenizer.starts + self._tokenizer.ends for line in lines]
        most = self._longest or max(sizes, default=0)
        read = iter(self._read([line for line, size in zip(lines, sizes, strict=True) if size <= most]))
        return [
            next(read) if size <= most else f"{size:,} tokens, and the model reads {most:,}" for size in sizes
        ]

    def _read(self, lines: list[list[int]]) -> list[np.ndarray]:
        import torch

        from polypool.encoders.text.tokenizers import pad_tokens
        from polypool.infra.compute.device import best_device, own_stream

        if not lines:
            return []
        size_B, device = np.array([len(line) for line in lines]), best_device()
        subword_P = np.array([number for line in lines for number in line], np.int64)
        precision = torch.autocast(device.type, torch.bfloat16, enabled=self._bfloat16)
        with torch.inference_mode(), own_stream(device), precision:
            with self._moving:
                encoder = self._encoder.to(device)
            tokens = (x.to(device) for x in pad_tokens(subword_P, size_B, self._tokenizer))
            x_BND, mask_BN = (encoder if self._projected else encoder.states)(*tokens)
            x_BND, mask_BN = x_BND.float().cpu().numpy(), mask_BN.cpu().numpy()
        features = [x_ND[mask_N] for x_ND, mask_N in zip(x_BND, mask_BN, strict=True)]
        return features if self._pool is None else [*map(self._pool, features)]

    @classmethod
    def pieces(cls, described: Mapping[str, Any], text: str) -> list[str]:
        """Return the tokens of a text's states as strings.

        Args:
            described: output of `describe`.
            text: any.

        Raises:
            InputError: the description has no valid tokenizer.
        """
        kind = ENCODERS.get(cls.backbone)
        preprocessing = from_plain(dict[str, Any], described.get("preprocessing"), where="preprocessing")
        from_plain(kind.assets_kind, {"config": {}} | preprocessing, where="preprocessing")
        tokenizer = kind.tokenizer(preprocessing)
        (words,) = tokenizer.encode([text])
        numbers = [number for word in words for number in word]
        starts, ends = [tokenizer.start] * tokenizer.starts, [tokenizer.end] * tokenizer.ends
        return tokenizer.subwords([*starts, *numbers, *ends])


@BACKBONES.register("bert")
class BertStates(TextBackbone):
    """The last hidden states of BERT and related models.

    Args:
        name: a model on the hub, or a local folder.
        pooled: return only their mean, including special tokens: the sentence embedding of MiniLM and most models of
            sentence-transformers, before L2 normalisation.
        bfloat16: see `TextBackbone`.
    """

    backbone, model = "bert", "bert"

    def __init__(
        self, *, name: ModelName = "bert-base-uncased", pooled: bool = False, bfloat16: bool = False
    ) -> None:
        super().__init__(name=name, pooled=pooled, bfloat16=bfloat16)

    @staticmethod
    def pool(x_ND: np.ndarray) -> np.ndarray:
        """Return the mean of the states."""
        return x_ND.mean(axis=0, keepdims=True)


@BACKBONES.register("decoder")
class DecoderStates(TextBackbone):
    """The last hidden states of a decoder of transformers, including special tokens.

    Args:
        name: a model on the hub, or a local folder; with a tokenizer.json.
        pooled: return only the end token's state: the embedding of E5-Mistral and Qwen3-Embedding, before L2
            normalisation.
        bfloat16: see `TextBackbone`.
    """

    backbone, model = "decoder", "model"

    def __init__(
        self, *, name: ModelName = "Qwen/Qwen3-Embedding-0.6B", pooled: bool = False, bfloat16: bool = False
    ) -> None:
        super().__init__(name=name, pooled=pooled, bfloat16=bfloat16)

    @staticmethod
    def pool(x_ND: np.ndarray) -> np.ndarray:
        """Return the last state."""
        return x_ND[-1:]


@BACKBONES.register("clip_text")
class ClipTextStates(TextBackbone):
    """The states of CLIP's text tower after its final norm.

    Args:
        name: a model on the hub, or a local folder.
        pooled: return only the text embedding that matches `clip(pooled=True)`.
        bfloat16: see `TextBackbone`.
    """

    backbone, model = "clip_text", "tower"

    def __init__(
        self,
        *,
        name: ModelName = "openai/clip-vit-base-patch32",
        pooled: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, pooled=pooled, bfloat16=bfloat16)


@BACKBONES.register("siglip_text")
class SiglipTextStates(TextBackbone):
    """The states of the text tower of SigLIP, and of SigLIP 2 with fixed sizes, after its final norm.

    Args:
        name: a model on the hub, or a local folder; with a tokenizer.json.
        pooled: return only the text embedding that matches `siglip(pooled=True)`.
        bfloat16: see `TextBackbone`.
    """

    backbone, model = "siglip_text", "tower"

    def __init__(
        self,
        *,
        name: ModelName = "google/siglip-base-patch16-224",
        pooled: bool = False,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(name=name, pooled=pooled, bfloat16=bfloat16)
