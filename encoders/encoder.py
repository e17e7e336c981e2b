"""Base classes of encoders, which map raw inputs or stored features to sets of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from polypool.infra.compute.dropout import drawn_again
from polypool.infra.errors import LACKING, InputError
from polypool.infra.fields import Rule, at_least, require

if TYPE_CHECKING:
    from polypool.encoders.adaptations import Adaptation
    from polypool.encoders.text.tokenizers import Tokenizer

Standardise = bool | Literal["auto"]
_STANDARDISE = Rule("True, False or auto", lambda value: isinstance(value, bool) or value == "auto")


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Per-channel mean and standard deviation of the training features: `vectors` vectors in `sets` sets."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    sets: int = 0
    vectors: int = 0


@dataclass(frozen=True, kw_only=True)
class FeatureAssets:
    """Width of stored features, and their statistics if the store has them."""

    dim: Annotated[int, at_least(1)]
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std") if self.statistics else ():
            if (found := len(getattr(self.statistics, name))) != self.dim:
                raise InputError(f"{name} of the statistics must be a list of {self.dim}, not of {found}")


class Encoder(nn.Module, ABC):
    """`(x, mask_BN)` -> `(x_BND, mask_BN)`, or `(x_BND, mask_BN, global_BS)` with a global feature.

    Constructors take `assets` first: everything besides parameters and weights that the encoder needs, as plain JSON,
    so that a checkpoint can be loaded without the training data.
    """

    width: int
    """Width D of the elements."""
    global_width: int = 0
    """Width S of the global feature; 0 for none."""
    reads: str = "features"
    """Input: stored `features`, `pixels` of images or videos, or `tokens` of texts."""
    published: str = ""
    """Submodule with published weights (a transformers model), which `--adapt` changes; empty for none."""
    adaptation: Adaptation | None = None
    """Its adaptation; None if all its weights are trained."""
    assets_kind: Any = dict[str, Any]
    """Dataclass that validates `assets` read from a file."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls) and "before_affine" not in vars(cls):
            cls.before_affine = Encoder.before_affine  # an overridden `forward` may end with another step

    @abstractmethod
    def forward(self, x: Tensor, mask_BN: Tensor) -> tuple[Tensor, ...]:
        """Encode each set.

        Returns:
            The sets `(B, N, D)`; their mask `(B, N)`, which may differ from `mask_BN`; and global features `(B, S)`,
            unless `global_width` is 0.
        """

    def before_affine(self, x: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor, nn.Module] | None:
        """Return the input of the last step of `forward`, if that is an affine map of each element.

        Returns:
            The sets `(B, N, F)`, their mask, and the map, which commutes with means; or None.
        """
        return None

    def load_pretrained(self) -> None:
        """Load published weights, if any, into a new encoder."""


def recompute(model: nn.Module) -> None:
    """Enable activation checkpointing in published parts: activations are recomputed in the backward pass.

    Raises:
        InputError: no encoder of the model has a published part, or one does not support it.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder) and module.published]
    if not encoders:
        raise InputError(
            "--optim.recompute is for encoders with published weights, such as `patches` and `bert`"
        )
    for encoder in encoders:
        part: Any = encoder.get_submodule(encoder.published)
        try:
            part.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": drawn_again})
        except ValueError as error:
            raise InputError(f"--optim.recompute: {error}") from error


class FeatureEncoder(Encoder):
    """An encoder of stored features `(B, N, F)`.

    Args:
        assets: see `FeatureAssets`.
        standardise: standardise features by the store's statistics; `auto` does so if the store has them.
    """

    assets_kind = FeatureAssets
    mean_F: Tensor
    scale_F: Tensor

    def __init__(self, assets: Mapping[str, Any], *, standardise: Standardise) -> None:
        super().__init__()
        require(_STANDARDISE, standardise=standardise)
        statistics = assets.get("statistics")
        self.standardise = bool(statistics) if standardise == "auto" else standardise
        if self.standardise:
            if not statistics:
                raise ValueError(
                    f"standardise=True needs the statistics of the features, and this store has none: {LACKING}; "
                    "ingest it with --corpus and --replace, or choose standardise=False, or auto"
                )
            self.register_buffer("mean_F", torch.tensor(statistics["mean"]))
            self.register_buffer("scale_F", torch.tensor(statistics["std"]).clamp(min=1e-6).reciprocal())

    def features(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return stored features `(..., F)` in the dtype of the weights; standardised ones are zero in the padding.

        `mask` `(...)` is True for real elements, None without padding.
        """
        x = x.to(next(self.parameters()).dtype)
        if self.standardise:
            x = (x - self.mean_F) * self.scale_F
            x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        return x


class TextEncoder(Encoder):
    """An encoder of token ids `(B, L)`."""

    reads = "tokens"

    @classmethod
    @abstractmethod
    def prepare(cls, captions: Iterable[str], **params: Any) -> dict[str, Any]:
        """Compute the assets of a new encoder from the training captions and the parameters of its spec."""

    @classmethod
    @abstractmethod
    def tokenizer(cls, assets: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer of this encoder."""


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear map with Xavier-uniform weights and zero bias, as in the VSE family."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
