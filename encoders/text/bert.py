"""BERT and related models through transformers, or their stored states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from polypool.encoders.backbones.hub import from_config, from_hub
from polypool.encoders.elements import map_elements
from polypool.encoders.encoder import FeatureEncoder, Standardise, TextEncoder
from polypool.infra.compute.device import shapes_only
from polypool.infra.compute.dropout import by_sample
from polypool.infra.errors import InputError
from polypool.infra.fields import at_least
from polypool.infra.paths import ModelName
from polypool.infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class Specials:
    """Ids of the special tokens."""

    start: Annotated[int, at_least(0)]
    end: Annotated[int, at_least(0)]
    mask: Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class BertAssets:
    """The model's configuration, the JSON of its fast tokenizer, and its special tokens."""

    config: dict[str, Any]
    tokenizer: str
    specials: Specials


_FROM_THE_PAD = {
    *("camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types whose position ids start after the padding id."""

_TWO_DIMENSIONAL = {"modernbert", "ultrabert"}
"""Model types that add their sliding window to a mask `(B, L)`."""


def positions(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a transformers model; 0 if its configuration has none."""
    most = config.get("max_position_embeddings") or config.get("n_positions") or 0
    return most - config["pad_token_id"] - 1 if config.get("model_type") in _FROM_THE_PAD else most


def special_ids(tokenizer: Any, *names: str, of: str) -> dict[str, int]:
    """Return the ids of some of the special tokens `start`, `end`, `mask` and `pad`; the end token's for missing ones.

    Raises:
        InputError: the tokenizer has no end token; `of` is the model's name in the message.
    """
    end = tokenizer.eos_token_id
    if end is None:
        raise InputError(f"{of}: its tokenizer has no end token; expected the tokenizer of a text model")
    known = {"start": tokenizer.bos_token_id, "mask": tokenizer.mask_token_id, "pad": tokenizer.pad_token_id}
    return {name: end if known.get(name) is None else known[name] for name in names}


def tokenizer_json(tokenizer: Any, *, of: str) -> str:
    """Return the JSON of a fast tokenizer.

    Raises:
        InputError: the tokenizer is written in Python only; `of` is the model's name in the message.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        kind = type(tokenizer).__name__
        raise InputError(
            f"{of}: its tokenizer, {kind}, has no fast version (tokenizer.json); choose a model with one"
        )
    return tokenizer.backend_tokenizer.to_str()


class Subwords:
    """A fast tokenizer that groups the subwords of a word.

    Args:
        assets: its JSON, the special tokens, and the model's configuration, which limits the number of tokens; see
            `BertAssets`.
        starts, ends: whether to add the start and the end token to texts.

    Raises:
        InputError: the JSON is no tokenizer, or lacks the id of a special token.
    """

    def __init__(self, assets: Mapping[str, Any], *, starts: bool = True, ends: bool = True) -> None:
        from tokenizers import Tokenizer

        specials = assets["specials"]
        try:
            self._tokenizer = Tokenizer.from_str(assets["tokenizer"])
        except Exception as error:  # the library raises no specific exception
            raise InputError(f"tokenizer must be the JSON of a fast tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = self._tokenizer.get_vocab_size()
        if (most := max(specials.values())) >= self.size:
            raise InputError(f"specials must be below {self.size}, the size of the tokenizer, not {most}")
        self.start, self.end, self.mask = (specials[name] for name in ("start", "end", "mask"))
        self.starts, self.ends = starts, ends
        self.longest = max(0, positions(assets.get("config", {})) - starts - ends)
        unknown = self._tokenizer.token_to_id(getattr(self._tokenizer.model, "unk_token", None) or "")
        self.unknown = -1 if unknown is None else unknown

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        for first in range(0, len(captions), 1024):
            for line in self._tokenizer.encode_batch(
                list(captions[first : first + 1024]), add_special_tokens=False
            ):
                words: dict[int | None, list[int]] = {}
                for subword, word in zip(line.ids, line.word_ids, strict=True):
                    words.setdefault(word, []).append(subword)
                yield list(words.values())

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return each subword as the tokenizer writes it, such as `##ing`."""
        return [self._tokenizer.decode([number], skip_special_tokens=False) for number in numbers]


@ENCODERS.register("bert")
class Bert(TextEncoder):
    """The last hidden states of all tokens through a linear map: the text encoder of VSE-infinity's BERT branch.

    Dropout masks are drawn per sample (see `infra.compute.dropout`), except in the library's attention: where its
    dropout is not zero, as in BERT, results depend slightly on the number of workers.

    Args:
        assets: the tokenizer and the model's configuration.
        width: width of the elements.
        name: a model on the hub, or a local folder.
    """

    assets_kind, published = BertAssets, "bert"

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, name: ModelName = "bert-base-uncased"
    ) -> None:
        super().__init__()
        self.width = width
        self.name = name
        self.bert: Any = by_sample(_without_pooler(from_config(assets["config"])))
        self.linear = nn.Linear(self.bert.config.hidden_size, width)

    @classmethod
    def prepare(
        cls, captions: Iterable[str], *, name: ModelName = "bert-base-uncased", **_: Any
    ) -> dict[str, Any]:
        """Read the tokenizer and the configuration from the hub or the folder."""
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = from_hub(AutoTokenizer, name)
        return {
            "config": from_hub(AutoConfig, name).to_dict(),
            "tokenizer": tokenizer_json(tokenizer, of=name),
            "specials": {
                "start": tokenizer.cls_token_id,
                "end": tokenizer.sep_token_id,
                "mask": tokenizer.mask_token_id,
            },
        }

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Subwords:
        return Subwords(assets)

    def load_pretrained(self) -> None:
        from transformers import AutoModel

        self.bert.load_state_dict(_without_pooler(from_hub(AutoModel, self.name)).state_dict())

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token ids `(B, L)` to `(B, L, D)`."""
        state_BLH, mask_BL = self.states(token_BL, mask_BL)
        return self.linear(state_BLH), mask_BL

    def states(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden states `(B, L, H)`, before the map, and their mask."""
        config, whole_BL = self.bert.config, mask_BL.long()
        # transformers reads the values of a (B, L) mask for SDPA, to drop a mask without padding
        if (
            shapes_only(mask_BL)
            and config._attn_implementation == "sdpa"
            and config.model_type not in _TWO_DIMENSIONAL
        ):
            whole_BL = mask_BL[:, None, None].expand(-1, 1, mask_BL.shape[1], -1)
        return self.bert(input_ids=token_BL, attention_mask=whole_BL).last_hidden_state, mask_BL


def _without_pooler(model: Any) -> nn.Module:
    """Remove the unused head over [CLS]: DDP fails on weights without a gradient."""
    if hasattr(model, "pooler"):
        model.pooler = None
    return model


@ENCODERS.register("stored_text")
class StoredText(FeatureEncoder):
    """A linear map of token states stored by `extract --texts`; for states of BERT, equals `bert` with frozen weights.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
    """

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, standardise: Standardise = False
    ) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.linear = nn.Linear(assets["dim"], width)

    def forward(self, x_BLF: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, L, F)` to `(B, L, D)`."""
        return map_elements(self.linear, x_BLF, mask_BL, prepared=self.features), mask_BL

    def before_affine(self, x_BLF: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor, nn.Module]:
        """Return the features `(B, L, F)`, their mask and the linear map."""
        return self.features(x_BLF, mask_BL), mask_BL, self.linear
