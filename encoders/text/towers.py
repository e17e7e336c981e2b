"""The text towers of CLIP and SigLIP: token states, or the pooled embedding."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from polypool.encoders.backbones.hub import from_config, from_hub, half_of_pair
from polypool.encoders.encoder import TextEncoder
from polypool.encoders.text.bert import Specials, Subwords, special_ids, tokenizer_json
from polypool.infra.errors import unknown
from polypool.infra.fields import at_least
from polypool.infra.paths import ModelName
from polypool.infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class TowerSpecials(Specials):
    """Ids of the special tokens; `pad` fills texts up to a fixed size for models that need one."""

    pad: Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class TowerAssets:
    """Configuration, JSON of the fast tokenizer, special tokens; `strips` for models trained without punctuation."""

    config: dict[str, Any]
    tokenizer: str
    specials: TowerSpecials
    strips: bool = False


class _TextTower(TextEncoder):
    """A text `tower` and a linear map `fc` to the joint width: the model's projection, or a new one."""

    assets_kind, published = TowerAssets, "tower"
    kind: str
    """Transformers class."""
    model_type: str
    projection: str
    """Name of its projection."""
    tokenizer_kind = "AutoTokenizer"
    strips = ""
    """End token of models trained without punctuation; empty for none."""

    def __init__(self, assets: Mapping[str, Any], *, name: str, width: int | None, pooled: bool) -> None:
        super().__init__()
        if (kind := assets["config"].get("model_type")) != self.model_type:
            raise unknown("kind of text half:", str(kind), [self.model_type])
        if width is not None and width < 1:
            raise ValueError(f"width must be at least 1, not {width}")
        self.name, self.pooled, self._own = name, pooled, width is None
        self.tower, projection = self._apart(from_config(assets["config"], kind=self.kind))
        self.fc = projection if width is None else nn.Linear(self.tower.config.hidden_size, width)
        self.width = self.fc.out_features
        self.longest: int = self.tower.config.max_position_embeddings
        self.end, self.pad = assets["specials"]["end"], assets["specials"]["pad"]

    def _apart(self, model: nn.Module) -> tuple[Any, nn.Linear]:
        """Remove and return the projection: DDP fails on weights without a gradient."""
        projection = getattr(model, self.projection)
        setattr(model, self.projection, nn.Identity())
        return model, projection

    @classmethod
    def prepare(cls, captions: Iterable[str], *, name: ModelName = "", **_: Any) -> dict[str, Any]:
        """Read the tokenizer and the configuration from the hub or the folder."""
        import transformers

        name = name or (cls.__init__.__kwdefaults__ or {})["name"]
        config = half_of_pair(name, "text")
        if config.model_type != cls.model_type:
            raise unknown(f"kind of text half in {name}:", config.model_type, [cls.model_type])
        tokenizer = from_hub(getattr(transformers, cls.tokenizer_kind), name)
        return {
            "config": config.to_dict(),
            "tokenizer": tokenizer_json(tokenizer, of=name),
            "specials": special_ids(tokenizer, "start", "end", "mask", "pad", of=name),
            "strips": bool(cls.strips) and tokenizer.eos_token == cls.strips,
        }

    def load_pretrained(self) -> None:
        import transformers

        kind, config = getattr(transformers, self.kind), self.tower.config
        tower, projection = self._apart(from_hub(kind, self.name, config=config))
        self.tower.load_state_dict(tower.state_dict())
        if self._own:
            self.fc.load_state_dict(projection.state_dict())

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token ids `(B, L)`, real ones first, to `(B, N, D)`; longer texts are truncated as in pretraining."""
        state_BNH, mask_BN = self.states(token_BL, mask_BL)
        return self.fc(state_BNH), mask_BN

    def states(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden states `(B, N, H)`, before the map, and their mask."""
        token_BN, mask_BN, last_B = self.read(token_BL, mask_BL)
        state_BNH = self.tower(input_ids=token_BN).last_hidden_state
        if self.pooled:
            state_BNH = state_BNH[torch.arange(len(last_B), device=last_B.device), last_B][:, None]
            mask_BN = mask_BN.new_ones(len(last_B), 1)
        return state_BNH[:, : mask_BN.shape[1]], mask_BN

    @abstractmethod
    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the model's token ids, the mask of the elements (the first positions), and the position to pool."""


@ENCODERS.register("clip_text")
class ClipText(_TextTower):
    """The text tower of CLIP: the normalised states of all tokens, including start and end.

    Attention is causal, so padding does not change the states. Deviation: CLIP first repairs broken Unicode (ftfy); the
    fast tokenizer does not.

    Source: Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021.

    Args:
        assets: the tokenizer and the configuration.
        name: a model on the hub, or a local folder.
        width: width of a new linear map; None for the model's projection.
        pooled: return a set of one element, the end token's state, as in pretraining.
    """

    kind, model_type, projection = "CLIPTextModelWithProjection", "clip_text_model", "text_projection"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        name: ModelName = "openai/clip-vit-base-patch32",
        width: int | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__(assets, name=name, width=width, pooled=pooled)

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Subwords:
        return Subwords(assets)

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the token ids; a truncated text keeps its end token."""
        last_B = mask_BL.sum(dim=1) - 1
        token_BN, mask_BN = token_BL[:, : self.longest], mask_BL[:, : self.longest]
        if token_BL.shape[1] > self.longest:
            is_last_BN = torch.arange(self.longest, device=last_B.device) == self.longest - 1
            token_BN = token_BN.masked_fill(is_last_BN & (last_B >= self.longest)[:, None], self.end)
        return token_BN, mask_BN, last_B.clamp(max=self.longest - 1)


class SiglipSubwords(Subwords):
    """A fast tokenizer of lower-case texts; `strips` in its assets drops punctuation."""

    def __init__(self, assets: Mapping[str, Any]) -> None:
        super().__init__(assets, starts=False, ends=False)
        self.longest = max(0, self.longest - 1)  # the encoder adds the end token
        self._table = str.maketrans("", "", string.punctuation) if assets["strips"] else {}

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        yield from super().encode(
            [" ".join(text.lower().translate(self._table).split()) for text in captions]
        )


@ENCODERS.register("siglip_text")
class SiglipText(_TextTower):
    """The text tower of SigLIP, and of SigLIP 2 with fixed sizes: the normalised states of the text's tokens.

    The model was trained on 64 positions without a mask (text, end token, padding), so tokens attend to padding; the
    returned set has only the text. Texts are lower-cased, and for SigLIP (not SigLIP 2) stripped of punctuation.

    Source: Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023.

    Args:
        assets: the tokenizer and the configuration.
        name: a model on the hub, or a local folder; with a tokenizer.json.
        width: width of a new linear map; None for the model's projection.
        pooled: return a set of one element, the last position's state, as in pretraining.
    """

    kind, model_type, projection = "SiglipTextModel", "siglip_text_model", "head"
    tokenizer_kind = "PreTrainedTokenizerFast"  # its own tokenizer class needs another file and library
    strips = "</s>"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        name: ModelName = "google/siglip-base-patch16-224",
        width: int | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__(assets, name=name, width=width, pooled=pooled)

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> SiglipSubwords:
        return SiglipSubwords(assets)

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many token ids as in pretraining: the truncated text, the end token and padding."""
        mask_BN = mask_BL[:, : self.longest - 1]
        size_B1 = mask_BN.sum(dim=1, keepdim=True)
        place_P = torch.arange(self.longest, device=token_BL.device)
        text_BP = nn.functional.pad(
            token_BL[:, : self.longest], (0, max(0, self.longest - token_BL.shape[1]))
        )
        token_BP = text_BP.masked_fill(place_P >= size_B1, self.pad).masked_fill(place_P == size_B1, self.end)
        return token_BP, mask_BN, torch.full_like(size_B1[:, 0], self.longest - 1)
