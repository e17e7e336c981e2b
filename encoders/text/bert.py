"""BERT and its relatives through transformers: the text encoder of VSE-infinity's BERT branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from encoders.base import TextEncoder
from infra.compute.dropout import by_sample
from infra.errors import InputError
from infra.fields import at_least
from infra.registry import ENCODERS


@dataclass(frozen=True, kw_only=True)
class Specials:
    """The numbers of the special tokens."""

    start: Annotated[int, at_least(0)]
    end: Annotated[int, at_least(0)]
    mask: Annotated[int, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class BertAssets:
    """The model's configuration, the JSON of its fast tokenizer, and its special tokens."""

    config: dict[str, Any]
    tokenizer: str
    specials: Specials


class Subwords:
    """A transformers tokenizer that keeps the subwords of a word together.

    Args:
        serialised: the JSON of a fast tokenizer.
        specials: the numbers of the tokens `start`, `end` and `mask`.

    Raises:
        InputError: no tokenizer, or one that has no such numbers.
    """

    ends = True

    def __init__(self, serialised: str, specials: Mapping[str, int]) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(serialised)
        except Exception as error:  # the library raises nothing more exact
            raise InputError(f"tokenizer must be the JSON of a fast tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = self._tokenizer.get_vocab_size()
        if (most := max(specials.values())) >= self.size:
            raise InputError(f"specials must be below {self.size}, the size of the tokenizer, not {most}")
        self.start, self.end, self.mask = (specials[name] for name in ("start", "end", "mask"))

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words as lists of subwords, without special tokens."""
        for first in range(0, len(captions), 1024):
            for line in self._tokenizer.encode_batch(
                list(captions[first : first + 1024]), add_special_tokens=False
            ):
                words: dict[int, list[int]] = {}
                for subword, word in zip(line.ids, line.word_ids, strict=True):
                    words.setdefault(word, []).append(subword)
                yield list(words.values())

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return each subword as text: `##` before one that goes on a word, or whatever the tokenizer has for it."""
        return [self._tokenizer.decode([number], skip_special_tokens=False) for number in numbers]


@ENCODERS.register("bert")
class Bert(TextEncoder):
    """The last hidden states of every token, the special ones too, through a linear map.

    Its dropout is drawn by the sample (see `infra.compute.dropout`), but for that inside the attention, which is a
    function of the library's: with that above zero, as in BERT, several workers learn not quite what one learns.

    Args:
        assets: the tokenizer and the model's configuration.
        width: width of the elements that come out.
        name: a model on the hub, or a local folder.
    """

    assets_kind = BertAssets

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, name: str = "bert-base-uncased"
    ) -> None:
        from encoders.backbones.hub import from_config

        super().__init__()
        self.width = width
        self.name = name
        self.bert = by_sample(_without_pooler(from_config(assets["config"])))
        self.linear = nn.Linear(self.bert.config.hidden_size, width)

    @classmethod
    def prepare(cls, captions: Iterable[str], *, name: str = "bert-base-uncased", **_: Any) -> dict[str, Any]:
        """Take the tokenizer and the configuration from the hub or the folder."""
        from transformers import AutoConfig, AutoTokenizer

        from encoders.backbones.hub import from_hub

        tokenizer = from_hub(AutoTokenizer, name)
        return {
            "config": from_hub(AutoConfig, name).to_dict(),
            "tokenizer": tokenizer.backend_tokenizer.to_str(),
            "specials": {
                "start": tokenizer.cls_token_id,
                "end": tokenizer.sep_token_id,
                "mask": tokenizer.mask_token_id,
            },
        }

    @classmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Subwords:
        """Return the subword tokenizer."""
        return Subwords(assets["tokenizer"], assets["specials"])

    def load_pretrained(self) -> None:
        """Load the published weights."""
        from transformers import AutoModel

        from encoders.backbones.hub import from_hub

        self.bert.load_state_dict(_without_pooler(from_hub(AutoModel, self.name)).state_dict())

    def forward(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Encode token numbers `(B, L)` to `(B, L, D)`."""
        state_BLH, mask_BL = self.states(token_BL, mask_BL)
        return self.linear(state_BLH), mask_BL

    def states(self, token_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden states `(B, L, H)`, before the map, and their mask."""
        state_BLH = self.bert(input_ids=token_BL, attention_mask=mask_BL.long()).last_hidden_state
        return state_BLH, mask_BL


def _without_pooler(model: nn.Module) -> nn.Module:
    """Drop the head over [CLS], which nothing here reads: DDP refuses weights without a gradient."""
    if hasattr(model, "pooler"):
        model.pooler = None
    return model
