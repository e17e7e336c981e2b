"""Text encoders with pretrained weights, which describe texts for `extract --texts`: run once for each text, and not in
every epoch of every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polypool.encoders.backbones import Backbone
from polypool.infra.fields import from_plain
from polypool.infra.paths import ModelName
from polypool.infra.registry import BACKBONES, ENCODERS


class TextBackbone(Backbone):
    """The text encoder of the same name: the states of all tokens, special ones too, before the map to a joint space.

    Texts are split and read as in training, so that a linear map of what is stored is what the encoder makes by it.

    Args:
        name: a model on the hub, or a local folder.
        pooled: instead, the one embedding of the whole text, through the model's own projection.
    """

    gpu = True
    reads = "text"
    backbone: str
    """Its name, and that of the encoder."""
    model: str
    """The encoder's module that is the model of transformers."""

    def __init__(self, *, name: str, pooled: bool = False) -> None:
        from polypool.encoders.backbones.hub import known_as, weights_digest

        kind = ENCODERS.get(self.backbone)
        assets = kind.prepare((), name=name)
        self._encoder = kind(assets, name=name, **({"pooled": True} if pooled else {})).eval()
        self._encoder.load_pretrained()
        self._tokenizer, self._pooled = kind.tokenizer(assets), pooled
        model = self._encoder.get_submodule(self.model)
        self.dim: int = self._encoder.width if pooled else model.config.hidden_size
        self._longest = getattr(self._encoder, "longest", None)  # which cuts longer texts itself
        self._longest = None if self._longest else model.config.max_position_embeddings
        self._described = {
            "backbone": self.backbone,
            "name": known_as(name),
            "preprocessing": {key: value for key, value in assets.items() if key != "config"},
            "sha256": weights_digest(self._encoder if pooled else model),
            **({"pooled": True} if pooled else {}),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on; `preprocessing` is what the tokenizer is made of."""
        return self._described

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray | str]:
        """Return the `(N, dim)` float32 features of each text, or why there are none."""
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
        from polypool.infra.compute.device import best_device

        if not lines:
            return []
        size_B, device = np.array([len(line) for line in lines]), best_device()
        subword_P = np.array([number for line in lines for number in line], np.int64)
        encoder = self._encoder.to(device)
        with torch.inference_mode():
            tokens = (x.to(device) for x in pad_tokens(subword_P, size_B, self._tokenizer))
            x_BND, mask_BN = (encoder if self._pooled else encoder.states)(*tokens)
        return [x_ND[mask_N].cpu().numpy() for x_ND, mask_N in zip(x_BND, mask_BN, strict=True)]

    @classmethod
    def pieces(cls, described: Mapping[str, Any], text: str) -> list[str]:
        """Return the tokens of a text's states, as strings.

        Args:
            described: what `describe` returned.
            text: any.

        Raises:
            InputError: that makes no tokenizer.
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
    """The last hidden states of BERT and its relatives.

    Args:
        name: a model on the hub, or a local folder.
        pooled: instead, their mean, special tokens included: the sentence embedding of MiniLM and most models of
            sentence-transformers, before it is brought to length 1.
    """

    backbone, model = "bert", "bert"

    def __init__(self, *, name: ModelName = "bert-base-uncased", pooled: bool = False) -> None:
        super().__init__(name=name)
        self._mean = pooled
        self._described |= {"pooled": True} if pooled else {}

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray | str]:
        """Return the `(N, dim)` states of each text, or their `(1, dim)` mean; or why there are none."""
        features = super().__call__(texts)
        if not self._mean:
            return features
        return [x if isinstance(x, str) else x.mean(axis=0, keepdims=True) for x in features]


@BACKBONES.register("decoder")
class DecoderStates(TextBackbone):
    """The last hidden states of any decoder of transformers, special tokens included.

    Args:
        name: a model on the hub, or a local folder; with a tokenizer.json.
        pooled: instead, the last of them, that of the end token: the embedding of E5-Mistral and Qwen3-Embedding,
            before it is brought to length 1.
    """

    backbone, model = "decoder", "model"

    def __init__(self, *, name: ModelName = "Qwen/Qwen3-Embedding-0.6B", pooled: bool = False) -> None:
        super().__init__(name=name)
        self._last = pooled
        self._described |= {"pooled": True} if pooled else {}

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray | str]:
        """Return the `(N, dim)` states of each text, or the `(1, dim)` last one; or why there are none."""
        features = super().__call__(texts)
        return [x if isinstance(x, str) or not self._last else x[-1:] for x in features]


@BACKBONES.register("clip_text")
class ClipTextStates(TextBackbone):
    """The text half of CLIP: its states behind the last norm.

    Args:
        name: a model on the hub, or a local folder.
        pooled: instead, the embedding trained to be near that of an image, as `clip(pooled=True)` has it.
    """

    backbone, model = "clip_text", "tower"

    def __init__(self, *, name: ModelName = "openai/clip-vit-base-patch32", pooled: bool = False) -> None:
        super().__init__(name=name, pooled=pooled)


@BACKBONES.register("siglip_text")
class SiglipTextStates(TextBackbone):
    """The text half of SigLIP, and of SigLIP 2 with fixed sizes: its states behind the last norm.

    Args:
        name: a model on the hub, or a local folder; with a tokenizer.json.
        pooled: instead, the embedding trained to be near that of an image, as `siglip(pooled=True)` has it.
    """

    backbone, model = "siglip_text", "tower"

    def __init__(self, *, name: ModelName = "google/siglip-base-patch16-224", pooled: bool = False) -> None:
        super().__init__(name=name, pooled=pooled)
