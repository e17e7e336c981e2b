"""The text halves of CLIP and SigLIP: their tokens as sets, or the embedding that was trained beside an image's."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from encoders.base import TextEncoder
from encoders.text.bert import Specials, Subwords
from infra.errors import InputError, unknown
from infra.fields import at_least
from infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class TowerSpecials(Specials):
    """The numbers of the special tokens; `pad` fills up a text where the model reads texts of one size."""

    pad: Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class TowerAssets:
    """The configuration of the text half, the JSON of its fast tokenizer, and its special tokens.

    Attributes:
        strips: whether the model was trained on texts without punctuation.
    """

    config: dict[str, Any]
    tokenizer: str
    specials: TowerSpecials
    strips: bool = False


class _TextTower(TextEncoder):
    """What both halves share.

    Elements go through a linear map to the width of the joint space: the model's own projection, or a new one.

    Attributes:
        tower: the model of transformers, without its projection.
        fc: the map.
    """

    assets_kind = TowerAssets
    kind: str
    """Class of transformers, which has the projection."""
    model_type: str
    projection: str
    """The projection's name in it."""
    tokenizer_kind = "AutoTokenizer"
    strips = ""
    """The end token by which a model is known that was trained without punctuation; none where empty."""

    def __init__(self, assets: Mapping[str, Any], *, name: str, width: int | None, pooled: bool) -> None:
        from encoders.backbones.hub import from_config

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

    def _apart(self, model: nn.Module) -> tuple[nn.Module, nn.Linear]:
        """Take the projection out, of which DDP would refuse weights without a gradient."""
        projection = getattr(model, self.projection)
        setattr(model, self.projection, nn.Identity())
        return model, projection

    @classmethod
    def prepare(cls, captions: Iterable[str], *, name: str = "", **_: Any) -> dict[str, Any]:
        """Take the tokenizer and the configuration from the hub or the folder."""
        import transformers

        from encoders.backbones.hub import from_hub, half_of_pair

        name = name or cls.__init__.__kwdefaults__["name"]
        config = half_of_pair(name, "text")
        if config.model_type != cls.model_type:
            raise unknown(f"kind of text half in {name}:", config.model_type, [cls.model_type])
        tokenizer = from_hub(getattr(transformers, cls.tokenizer_kind), name)
        end = tokenizer.eos_token_id
        numbers = {
            "start": tokenizer.bos_token_id,
            "end": end,
            "mask": tokenizer.mask_token_id,
            "pad": tokenizer.pad_token_id,
        }
        if end is None:
            raise InputError(
                f"{name}: its tokenizer has no token at the end of a text; expected one of a pair"
            )
        return {
            "config": config.to_dict(),
            "tokenizer": tokenizer.backend_tokenizer.to_str(),
            "specials": {token: end if number is None else number for token, number in numbers.items()},
            "strips": bool(cls.strips) and tokenizer.eos_token == cls.strips,
        }

    def load_pretrained(self) -> None:
        """Load the published weights."""
        import transformers

        from encoders.backbones.hub import from_hub

        kind, config = getattr(transformers, self.kind), self.tower.config
        tower, projection = self._apart(from_hub(kind, self.name, config=config))
        self.tower.load_state_dict(tower.state_dict())
        if self._own:
            self.fc.load_state_dict(projection.state_dict())

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token numbers `(B, L)`, real ones first, to `(B, N, D)`; longer texts are cut as in pretraining."""
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
        """Return what the model reads, the mask of the elements, which come first, and the place that is pooled."""


@ENCODERS.register("clip_text")
class ClipText(_TextTower):
    """The text half of CLIP: the states of all tokens behind the last norm, start and end among them.

    Attention looks back alone, so pads change nothing. Deviation: CLIP repairs broken Unicode (ftfy) before it splits;
    the fast tokenizer does not.

    Source: Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021.

    Args:
        assets: the tokenizer and the configuration.
        name: a model on the hub, or a local folder.
        width: of the elements, through a new linear map; where None, through the model's own projection.
        pooled: a set of one instead: the state of the end token, which the projection was trained on.
    """

    kind, model_type, projection = "CLIPTextModelWithProjection", "clip_text_model", "text_projection"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        name: str = "openai/clip-vit-base-patch32",
        width: int | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__(assets, name=name, width=width, pooled=pooled)

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Subwords:
        """Return the subword tokenizer."""
        return Subwords(assets["tokenizer"], assets["specials"])

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens as they are; one that is too long keeps its end."""
        last_B = mask_BL.sum(dim=1) - 1
        token_BN, mask_BN = token_BL[:, : self.longest], mask_BL[:, : self.longest]
        if token_BL.shape[1] > self.longest:
            is_last_BN = torch.arange(self.longest, device=last_B.device) == self.longest - 1
            token_BN = token_BN.masked_fill(is_last_BN & (last_B >= self.longest)[:, None], self.end)
        return token_BN, mask_BN, last_B.clamp(max=self.longest - 1)


class SiglipSubwords(Subwords):
    """A fast tokenizer for texts in lower case, which put no token at their start.

    Args:
        serialised, specials: see `Subwords`; the encoder puts the end token.
        strips: leave out punctuation.
    """

    ends = False

    def __init__(self, serialised: str, specials: Mapping[str, int], *, strips: bool) -> None:
        super().__init__(serialised, specials)
        self._table = str.maketrans("", "", string.punctuation) if strips else {}

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words as lists of subwords."""
        yield from super().encode(
            [" ".join(text.lower().translate(self._table).split()) for text in captions]
        )


@ENCODERS.register("siglip_text")
class SiglipText(_TextTower):
    """The text half of SigLIP, and of SigLIP 2 with fixed sizes: the states of all tokens behind the last norm.

    All tokens see each other and the pads, since the model was trained on texts that fill 64 places, without a mask:
    the text, an end token, pads. The set holds the text alone. Texts are in lower case, and SigLIP's, but not SigLIP
    2's, without punctuation.

    Source: Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023.

    Args:
        assets: the tokenizer and the configuration.
        name: a model on the hub, or a local folder; with a tokenizer.json.
        width: of the elements, through a new linear map; where None, through the model's own projection.
        pooled: a set of one instead: the state of the last place, which the projection was trained on.
    """

    kind, model_type, projection = "SiglipTextModel", "siglip_text_model", "head"
    tokenizer_kind = "PreTrainedTokenizerFast"  # its own class reads another file, with another library
    strips = "</s>"

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        name: str = "google/siglip-base-patch16-224",
        width: int | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__(assets, name=name, width=width, pooled=pooled)

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> SiglipSubwords:
        """Return the subword tokenizer."""
        return SiglipSubwords(assets["tokenizer"], assets["specials"], strips=assets["strips"])

    def read(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many places as in pretraining: the text, which is cut where it is too long, the end and pads."""
        mask_BN = mask_BL[:, : self.longest - 1]
        size_B1 = mask_BN.sum(dim=1, keepdim=True)
        place_P = torch.arange(self.longest, device=token_BL.device)
        text_BP = nn.functional.pad(
            token_BL[:, : self.longest], (0, max(0, self.longest - token_BL.shape[1]))
        )
        token_BP = text_BP.masked_fill(place_P >= size_B1, self.pad).masked_fill(place_P == size_B1, self.end)
        return token_BP, mask_BN, torch.full_like(size_B1[:, 0], self.longest - 1)
