"""The base classes of encoders, which make a set in the joint width of raw inputs or stored features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from infra.errors import InputError
from infra.fields import at_least


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of the training split's features: `mean` and `std` per channel, over so many sets and vectors."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    sets: int = 0
    vectors: int = 0


@dataclass(frozen=True, kw_only=True)
class FeatureAssets:
    """What an encoder of stored features needs: their width, and their statistics where the store has such.

    Raises:
        InputError: statistics of another width.
    """

    dim: Annotated[int, at_least(1)]
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std") if self.statistics else ():
            if (found := len(getattr(self.statistics, name))) != self.dim:
                raise InputError(f"{name} of the statistics must be a list of {self.dim}, not of {found}")


class Encoder(nn.Module, ABC):
    """`(x, mask_BN)` -> `(x_BND, mask_BN)`, or `(x_BND, mask_BN, global_BS)` with a vector of the whole.

    Constructors take `assets` first: what an encoder needs beside its parameters and weights, as plain
    JSON, so that a checkpoint can be rebuilt without the data it was trained on.
    """

    width: int
    """Width D of the elements that come out."""
    global_width: int = 0
    """Width S of the global feature; 0 where there is none."""
    reads: str = "features"
    """What it reads: stored `features`, of images or of texts; `pixels`; or the `tokens` of texts."""
    assets_kind: Any = dict[str, Any]
    """What `assets` hold, so that those of a file can be checked before they are used: a dataclass of their fields."""

    @abstractmethod
    def forward(self, x: Tensor, mask_BN: Tensor) -> tuple[Tensor, ...]:
        """Encode each set.

        Returns:
            The sets `(B, N, D)`; their mask `(B, N)`, which differs from `mask_BN` where an encoder changes the sets'
            sizes; and the global features `(B, S)`, where `global_width` is not 0.
        """

    def load_pretrained(self) -> None:
        """Load published weights into a new encoder, where there are any; a checkpoint's replace them."""


class FeatureEncoder(Encoder):
    """An encoder of stored features `(B, N, F)`.

    Args:
        assets: `dim`, the width F, and `statistics`, the store's per-channel `mean` and `std` or None.
        standardise: whether features are brought to mean 0 and deviation 1 by these statistics first.
    """

    assets_kind = FeatureAssets

    def __init__(self, assets: Mapping[str, Any], *, standardise: bool) -> None:
        super().__init__()
        statistics = assets.get("statistics")
        if standardise and not statistics:
            raise ValueError(
                "standardise=True needs the per-channel statistics of the training split, and this feature store "
                "has none: `python -m pipelines.extract` writes them, `ingest` does not; choose standardise=False"
            )
        self.standardise = standardise
        if standardise:
            self.register_buffer("mean_F", torch.tensor(statistics["mean"]))
            self.register_buffer("scale_F", torch.tensor(statistics["std"]).clamp(min=1e-6).reciprocal())

    def features(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features `(..., F)` in the precision of the weights.

        With `standardise`, they are standardised, and zero in the pads.

        Args:
            x: as they are stored.
            mask: `(...)`, True for real elements; None where there are no pads.
        """
        x = x.to(next(self.parameters()).dtype)
        if self.standardise:
            x = (x - self.mean_F) * self.scale_F
            x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        return x


class Tokenizer(Protocol):
    """Captions to words, each a list of subwords; `start` and `end` are put around them later, if `ends` says so."""

    size: int
    ends: bool
    start: int
    end: int
    mask: int

    def encode(self, captions: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yield each caption's words as lists of subword numbers, without special tokens."""

    def subwords(self, numbers: Sequence[int]) -> list[str]:
        """Return how each subword is written, special tokens too."""


@runtime_checkable
class WordTokenizer(Tokenizer, Protocol):
    """A tokenizer whose subwords are whole words."""

    def split(self, caption: str) -> list[str]:
        """Return a caption's words as strings, as many as `encode` numbers."""


def as_written(tokenizer: Tokenizer, caption: str, numbers: Sequence[int]) -> list[str]:
    """Return how a caption's subwords are written; of a word that the tokenizer does not know, that word itself.

    Args:
        tokenizer: of the caption.
        caption: the text.
        numbers: of its subwords from the first on, with the special tokens that stand around them.
    """
    subwords = tokenizer.subwords(numbers)
    if not isinstance(tokenizer, WordTokenizer):
        return subwords
    words, ends = iter(tokenizer.split(caption)), (tokenizer.start, tokenizer.end)
    return [
        subword if number in ends or (word := next(words, subword)) == subword else f"{word} (unknown)"
        for number, subword in zip(numbers, subwords, strict=True)
    ]


class TextEncoder(Encoder):
    """An encoder of token numbers `(B, L)`."""

    reads = "tokens"

    @classmethod
    @abstractmethod
    def prepare(cls, captions: Iterable[str], **params: Any) -> dict[str, Any]:
        """Make the assets of a new encoder from the training captions and the parameters of its spec."""

    @classmethod
    @abstractmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Tokenizer:
        """Return what splits captions for this encoder."""


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear map with Xavier-uniform weights and zero biases, as in the VSE family."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
