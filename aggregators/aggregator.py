"""Base class of aggregators, the call contract, and the checks of its inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import shapes_only, traced
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


class Pooled(NamedTuple):
    """Output of an aggregator.

    Shapes are for B sets with N elements and K vectors each. With `Context.all_pairs`, `(Q, G, ...)` replaces
    `(B, ...)`, for Q sets and G contexts.
    """

    vectors: Tensor
    """`(B, D)`, or `(B, K, D)` where `num_embeddings` is not one; where it is None, sets with fewer than K vectors are
    padded with zero vectors, which similarities ignore. `(B, 2, D)`, the mean and the log-variance, where the
    aggregator `makes` a distribution."""
    residual: Tensor | None = None
    """Residuals `(B, K, D)`, where each vector is a global feature plus a residual; otherwise None."""
    weights: Tensor | None = None
    """Attention or pooling weights, in the shape that `Aggregator.weights_over` declares; None where the method has
    none."""
    global_feature: Tensor | None = None
    """Global features `(B, D)` that the residuals are added to; otherwise None."""


class Context(NamedTuple):
    """The other modality, for aggregators that are conditioned on it."""

    x: Tensor
    """Elements `(B, M, C)` for an aggregator whose `context` is "set", `(B, C)` for one whose `context` is "vector"."""
    mask: Tensor | None = None
    """`(B, M)` bool, True for real elements; None where `x` holds vectors."""
    all_pairs: bool = False
    """False pools set b with context b; True pools each of Q sets with each of G contexts."""


class Aggregator(nn.Module, ABC):
    """`(x_BND, mask_BN)` -> `Pooled` with vectors `(B, D)`, or `(B, K, D)` where `num_embeddings` K is not 1.

    Masks are bool, True for real elements. Masked values, padding and the other sets of a batch never change a result,
    except for batch statistics in training; `aggregators/contract.py` checks this. Constructors take the width of the
    elements first: `Aggregator(dim, *, ...)`.

    Subclasses override the attributes below where they differ from the defaults, or set them in the constructor where
    they depend on parameters.
    """

    num_embeddings: int | None = 1
    """Number of vectors K per set; None where it depends on the set."""
    makes: Literal["vectors", "distribution"] = "vectors"
    """"vectors": points that may be normalised one by one; "distribution": the mean and the natural logarithm of the
    variance of a diagonal Gaussian. Then `num_embeddings` is 2, and the mean alone may be normalised."""
    width: int | None = None
    """Width of the vectors; None if equal to the width of the elements."""
    context: Literal["none", "set", "vector"] = "none"
    """Input that `forward` needs from the other modality: nothing, a set, or one vector."""
    takes_global_feature: bool = False
    """Whether `forward` takes `global_feature_BS`, the vector of the whole image or text that some encoders return."""
    averages: bool = False
    """Whether the vector is a weighted average of the elements whose weights sum to 1 and do not depend on the
    elements' values. Pooling then commutes with an affine map."""
    symmetric: bool = True
    """Whether the result is invariant to permutations of the elements."""
    weights_over: Literal["elements", "ranks", "embeddings"] = "elements"
    """Shape of `Pooled.weights`. "elements": `(B, N)`, or `(B, N, D)` per channel, 0 in the padding. "embeddings":
    `(B, K, N)`, one row per vector, 0 in the padding. "ranks": `(B, N)` or `(B, N, D)` over each channel's values in
    descending order, undefined beyond a set's size."""

    def __init__(self, dim: int | None = None) -> None:
        """Initialise the module; an aggregator without parameters needs no constructor, and ignores the width."""
        super().__init__()

    def __call__(
        self,
        x_BND: Tensor,
        mask_BN: Tensor,
        *,
        context: Context | None = None,
        global_feature_BS: Tensor | None = None,
    ) -> Pooled:
        """Check the inputs, then call `forward` and its hooks with the arguments that are not None.

        For an empty batch (no sets, or no contexts with `all_pairs`) it returns empty vectors without weights, and does
        not call `forward`, so that running statistics do not change. The vectors have the usual number of dimensions,
        such as `(0, D)` or, with `all_pairs`, `(Q, 0, D)`; K is 1 where `num_embeddings` is None.

        Raises:
            InputError: invalid sets (see `check_sets`); a missing, unexpected or misshapen context; an unexpected or
                misshapen global feature; a `forward` that does not return `Pooled`.
        """
        check_sets(x_BND, mask_BN)
        self._check_context(x_BND.shape[0], context)
        self._check_global_feature(x_BND.shape[0], global_feature_BS)
        if not traced() and not (len(x_BND) and (context is None or len(context.x))):
            return self._no_vectors(x_BND, context)
        optional = {"context": context, "global_feature_BS": global_feature_BS}
        given = {name: value for name, value in optional.items() if value is not None}
        pooled = super().__call__(x_BND, mask_BN, **given)
        if not isinstance(pooled, Pooled):
            raise InputError(
                f"{type(self).__name__}.forward returns {type(pooled).__name__}, expected Pooled: "
                "return Pooled(vectors), or Pooled(vectors, weights=weights)"
            )
        return pooled

    def _no_vectors(self, x_BND: Tensor, context: Context | None) -> Pooled:
        pairs = [] if context is None or not context.all_pairs else [len(context.x)]
        vectors = [] if self.num_embeddings == 1 else [self.num_embeddings or 1]
        empty = x_BND.new_zeros(len(x_BND), *pairs, *vectors, self.width or x_BND.shape[2])
        return Pooled(empty + x_BND.sum())  # the sum keeps the graph

    @abstractmethod
    def forward(
        self,
        x_BND: Tensor,
        mask_BN: Tensor,
        *,
        context: Context | None = None,
        global_feature_BS: Tensor | None = None,
    ) -> Pooled:
        """Pool each set.

        A subclass omits the keyword arguments that its attributes do not request: it is never called with them.

        Args:
            x_BND: the sets' elements, padded to a common size.
            mask_BN: True for real elements; every set has at least one.
            context: the other modality; given unless the attribute `context` is "none".
            global_feature_BS: a vector of each whole image or text; None where the encoder returns none.
        """

    def _check_context(self, sets: int, context: Context | None) -> None:
        name = type(self).__name__
        if self.context not in ("none", "set", "vector"):
            raise InputError(f'{name}.context must be "none", "set" or "vector", not {self.context!r}')
        if self.context == "none":
            if context is not None:
                raise InputError(f"{name} takes no context; remove it")
            return
        if not isinstance(context, Context):
            parts = "x_BMC, mask_BM" if self.context == "set" else "x_BC"
            raise InputError(
                f"{name} needs a {self.context} of the other modality: pass context=Context({parts}), not "
                f"{'None' if context is None else type(context).__name__}"
            )
        if self.context == "set":
            if context.mask is None:
                raise InputError(f"the context of {name} is a set and needs a mask")
            check_sets(context.x, context.mask)
        elif context.mask is not None or context.x.dim() != 2 or not context.x.is_floating_point():
            raise InputError(
                f"the context of {name} is a floating-point vector for each set, (sets, width) and no mask, not "
                f"{context.x.dtype} of shape {tuple(context.x.shape)}{' with a mask' * (context.mask is not None)}"
            )
        if not context.all_pairs and context.x.shape[0] != sets:
            raise InputError(
                f"{sets} sets and {len(context.x)} contexts; pass one context per set, or Context(..., all_pairs=True) "
                "for every set with every context"
            )

    def _check_global_feature(self, sets: int, global_feature_BS: Tensor | None) -> None:
        if global_feature_BS is None:
            return
        name = type(self).__name__
        if not self.takes_global_feature:
            raise InputError(f"{name} takes no global feature; remove it")
        if global_feature_BS.dim() != 2 or global_feature_BS.shape[0] != sets:
            raise InputError(
                f"the global feature of {name} has shape {tuple(global_feature_BS.shape)}, expected a vector for each "
                f"of {sets} sets"
            )


def pool_all_pairs(
    forward: Callable[..., Pooled], x_QND: Tensor, mask_QN: Tensor, context: Context, **more: Tensor | None
) -> Pooled:
    """Pool every set with every context by repeating the inputs into one batch of Q x G sets.

    The fallback for aggregators without a faster implementation:

        if context.all_pairs:
            return pool_all_pairs(self.forward, x_BND, mask_BN, context)

    Args:
        forward: the aggregator's, called once with `all_pairs=False`.
        x_QND: the sets' elements.
        mask_QN: True for real elements.
        context: G contexts.
        more: other arguments of `forward` with one row per set.
    """
    sets, contexts = len(x_QND), len(context.x)

    def repeated(part: Tensor) -> Tensor:
        return part.repeat_interleave(contexts, dim=0)

    mask_GM = context.mask
    pooled = forward(
        repeated(x_QND),
        repeated(mask_QN),
        context=Context(
            torch.cat([context.x] * sets), None if mask_GM is None else torch.cat([mask_GM] * sets)
        ),
        **{name: None if part is None else repeated(part) for name, part in more.items()},
    )
    vectors, *others = pooled
    shape = sets, contexts
    return Pooled(
        vectors.unflatten(0, shape), *(None if part is None else part.unflatten(0, shape) for part in others)
    )


def one_vector_aggregator(spec: str, dim: int, *, parameter: str) -> Aggregator:
    """Build the inner aggregator of another one; `parameter` is the name of its spec in error messages.

    Raises:
        InputError: it returns several vectors, or needs the other modality.
    """
    aggregator: Aggregator = AGGREGATORS.build(spec, dim)
    if aggregator.num_embeddings != 1 or aggregator.context != "none":
        raise InputError(
            f"{parameter}={spec} does not return one vector per set without a context; choose one such as mean or gpo"
        )
    return aggregator


def check_sets(x_BND: Tensor, mask_BN: Tensor) -> None:
    """Check the shapes and dtypes of features and mask.

    Empty sets are detected on CPUs only, and not under tracing, because the check would synchronise with an
    accelerator; the result of an undetected empty set is undefined. NaN features are accepted and give NaN.

    Raises:
        InputError: features that are not `(B, N, D)` floats, a mask that is not `(B, N)` bool, an empty set.
    """
    if x_BND.dim() != 3 or not x_BND.is_floating_point():
        raise InputError(
            "an aggregator takes floating-point features of shape (sets, elements, width), not "
            f"{x_BND.dtype} of shape {tuple(x_BND.shape)}"
        )
    if mask_BN.dtype != torch.bool:
        raise InputError(
            f"a mask is torch.bool, True for real elements, not {mask_BN.dtype}; mask.bool() converts ones and zeros"
        )
    if mask_BN.shape != x_BND.shape[:2]:
        raise InputError(
            f"the mask has shape {tuple(mask_BN.shape)}, and the features {tuple(x_BND.shape)}; expected a mask of "
            f"shape {tuple(x_BND.shape[:2])}, one value for every element"
        )
    if not shapes_only(mask_BN):
        filled_B = mask_BN.numpy().any(axis=1)  # faster than torch for small batches
        if not filled_B.all():
            empty_B = ~filled_B
            raise InputError(
                f"{int(empty_B.sum())} of {len(empty_B)} sets have no element, the first is number "
                f"{int(empty_B.argmax())} of the batch (from 0); leave it out, or keep at least one element"
            )


def check_counts(**counts: int) -> None:
    """Check that each value is a whole number of at least 1.

    Raises:
        InputError: names the first value that is not.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {count!r}")
