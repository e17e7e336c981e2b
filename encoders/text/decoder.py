"""Decoders (language models with causal attention) as text encoders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from polypool.encoders.backbones.hub import from_config, from_hub
from polypool.encoders.encoder import TextEncoder
from polypool.encoders.text.bert import BertAssets, Subwords, special_ids, tokenizer_json
from polypool.infra.paths import ModelName
from polypool.infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class DecoderAssets(BertAssets):
    """The assets of `bert`, and which special tokens texts get."""

    starts: bool
    ends: bool


@ENCODERS.register("decoder")
class Decoder(TextEncoder):
    """The last hidden states of all tokens of any decoder of transformers, through a linear map.

    With causal attention only the last state has attended to the whole text: `--text-aggregator last` is the pooling of
    E5-Mistral and Qwen3-Embedding, `position_mean` of SGPT, `latent_attention` of NV-Embed (whose attention is not
    causal). Texts are padded on the right, where padding does not change the states.

    Args:
        assets: the tokenizer and the model's configuration.
        width: width of the elements.
        name: a model on the hub, or a local folder, with a tokenizer.json.
        end: append the end token, as E5-Mistral and Qwen3-Embedding do; SGPT does not. It is the token that the model's
            tokenizer appends, else its end-of-sequence token: for Qwen3-Embedding `<|endoftext|>`, not `<|im_end|>`.
            The start token follows the tokenizer.
    """

    assets_kind, published = DecoderAssets, "model"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        name: ModelName = "Qwen/Qwen3-Embedding-0.6B",
        end: bool = True,
    ) -> None:
        super().__init__()
        self.width, self.name = width, name
        self.model: Any = from_config(assets["config"])
        self.linear = nn.Linear(self.model.config.hidden_size, width)

    @classmethod
    def prepare(
        cls,
        captions: Iterable[str],
        *,
        name: ModelName = "Qwen/Qwen3-Embedding-0.6B",
        end: bool = True,
        **_: Any,
    ) -> dict[str, Any]:
        """Read the tokenizer and the configuration from the hub or the folder."""
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = from_hub(AutoTokenizer, name)
        start, specials = tokenizer.bos_token_id, special_ids(tokenizer, "start", "end", "mask", of=name)
        ids, plain = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
        if ids[-1:] != plain[-1:]:
            specials["end"] = ids[-1]
        return {
            "config": from_hub(AutoConfig, name).to_dict(),
            "tokenizer": tokenizer_json(tokenizer, of=name),
            "specials": specials,
            "starts": start is not None and ids[:1] == [start],
            "ends": end,
        }

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Subwords:
        return Subwords(assets, starts=assets["starts"], ends=assets["ends"])

    def load_pretrained(self) -> None:
        from transformers import AutoModel

        self.model.load_state_dict(from_hub(AutoModel, self.name).state_dict())

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token ids `(B, L)` to `(B, L, D)`."""
        state_BLH, mask_BL = self.states(token_BL, mask_BL)
        return self.linear(state_BLH), mask_BL

    def states(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden states `(B, L, H)`, before the map, and their mask."""
        output = self.model(input_ids=token_BL, attention_mask=mask_BL.long(), use_cache=False)
        return output.last_hidden_state, mask_BL
