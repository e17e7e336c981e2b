"""Base class of aggregators, which turn a set of features into one vector, or a few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import traced
from polypool.infra.errors import InputError


class Pooled(NamedTuple):
    """What an aggregator returns.

    Shapes are those of B sets with N elements and K vectors each; where all pairs of Q sets and G contexts were
    requested, `(Q, G, ...)` replaces `(B, ...)` throughout.
    """

    vectors: Tensor
    """`(B, D)`, or `(B, K, D)` where `num_embeddings` is not one; where it is None, sets of fewer than K vectors are
    padded with zero vectors, which similarities ignore. `(B, 2, D)`, the mean and the log-variance, where the
    aggregator `makes` a distribution."""
    residual: Tensor | None = None
    """`(B, K, D)` where each vector is a global feature plus a residual; None elsewhere."""
    weights: Tensor | None = None
    """Attention or pooling weights, as described by `Aggregator.weights_over`; None where the pooling has none. They
    are computed with the vectors and need no extra pass."""


class Context(NamedTuple):
    """The other modality, for an aggregator that depends on it."""

    x: Tensor
    """Elements `(B, M, C)` for an aggregator whose `context` is "set", `(B, C)` for one whose `context` is "vector"."""
    mask: Tensor | None = None
    """`(B, M)`, True for real elements; None beside vectors."""
    all_pairs: bool = False
    """False: set b is pooled with context b. True: each of Q sets with each of G contexts."""


class Aggregator(nn.Module, ABC):
    """`(x_BND, mask_BN)` -> `Pooled`: `(B, D)` vectors, or `(B, K, D)` where `num_embeddings` K is not one.

    Masks are bool and True marks a real element. Values under the mask, padding and batch mates never change a
    result; `aggregators/contract.py` tests every registered aggregator for that. Constructors take the width of the
    elements first: `Aggregator(dim, *, ...)`.

    A class overrides the attributes below where they differ from the defaults, or its constructor does where they
    depend on parameters.
    """

    num_embeddings: int | None = 1
    """Number of vectors K of a set; None where it depends on the set, and is at most its size."""
    makes: Literal["vectors", "distribution"] = "vectors"
    """"vectors": points, each of which may be normalised; "distribution": the mean and the natural logarithm of the
    variance of a diagonal Gaussian. Then `num_embeddings` is 2, and the mean alone may be normalised."""
    width: int | None = None
    """Width of the vectors; None where it is that of the elements."""
    context: Literal["none", "set", "vector"] = "none"
    """What `forward` needs of the other modality: nothing, a set, or one vector."""
    takes_global_feature: bool = False
    """True: `forward` takes `global_feature_BS`, the vector of the whole that some encoders add to the set."""
    averages: bool = False
    """True: vectors are averages of the elements, one vector a set, whose weights sum to 1 and do not depend on the
    elements' values. An affine map of the elements then gives the same before and after the pooling."""
    symmetric: bool = True
    """True: the order of a set's elements does not matter."""
    weights_over: Literal["elements", "ranks", "embeddings"] = "elements"
    """"elements": `(B, N)`, or `(B, N, D)` with a weight for each channel, 0 in the padding; "embeddings": `(B, K, N)`,
    the elements' weights in each of K vectors, likewise; "ranks": `(B, N)` or `(B, N, D)` over each channel's values in
    descending order, undefined beyond a set's size."""

    def __call__(
        self,
        x_BND: Tensor,
        mask_BN: Tensor,
        *,
        context: Context | None = None,
        global_feature_BS: Tensor | None = None,
    ) -> Pooled:
        """Check the inputs, then call `forward` and its hooks with those that are not None.

        A batch without sets, or without contexts for all pairs, has vectors of shape `(0, D)`, or `(0, K, D)`, and no
        weights; `forward` never sees one, so that running statistics stay as they are.

        Raises:
            InputError: sets that `check_sets` refuses, a context or a global feature that is missing, unexpected or of
                a wrong shape, or a `forward` that does not return `Pooled`.
        """
        check_sets(x_BND, mask_BN)
        self._check_context(x_BND.shape[0], context)
        self._check_global_feature(x_BND.shape[0], global_feature_BS)
        if not traced() and not (len(x_BND) and (context is None or len(context.x))):
            return self._no_vectors(x_BND, context)
        beside = {"context": context, "global_feature_BS": global_feature_BS}
        beside = {name: part for name, part in beside.items() if part is not None}
        pooled = super().__call__(x_BND, mask_BN, **beside)
        if not isinstance(pooled, Pooled):
            raise InputError(
                f"{type(self).__name__}.forward returns {type(pooled).__name__}, expected Pooled: "
                "return Pooled(vectors), with the weights beside them where there are any"
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
        """Aggregate each set.

        A class leaves out the keywords that its attributes do not request: it is never called with them.

        Args:
            x_BND: the sets' elements, padded to a common size.
            mask_BN: True for real elements; every set has at least one.
            context: the other modality; given wherever the attribute `context` is not "none".
            global_feature_BS: a vector of each whole; None where the encoder makes none.
        """

    def _check_context(self, sets: int, context: Context | None) -> None:
        name = type(self).__name__
        if self.context not in ("none", "set", "vector"):
            raise InputError(f'{name}.context must be "none", "set" or "vector", not {self.context!r}')
        if self.context == "none":
            if context is not None:
                raise InputError(f"{name} looks at no other modality; leave out the context")
            return
        if not isinstance(context, Context):
            parts = "x_BMC, mask_BM" if self.context == "set" else "x_BC"
            raise InputError(
                f"{name} looks at a {self.context} of the other modality; give it context=Context({parts}), not "
                f"{'nothing' if context is None else type(context).__name__}"
            )
        if self.context == "set":
            if context.mask is None:
                raise InputError(f"the context of {name} is a set, so it needs a mask")
            check_sets(context.x, context.mask)
        elif context.mask is not None or context.x.dim() != 2 or not context.x.is_floating_point():
            raise InputError(
                f"the context of {name} is a floating-point vector for each set, (sets, width) and no mask, not "
                f"{context.x.dtype} of shape {tuple(context.x.shape)}{' with a mask' * (context.mask is not None)}"
            )
        if not context.all_pairs and context.x.shape[0] != sets:
            raise InputError(
                f"{sets} sets and {len(context.x)} contexts cannot be matched one by one; give as many of both, or "
                "Context(..., all_pairs=True) for every set with every context"
            )

    def _check_global_feature(self, sets: int, global_feature_BS: Tensor | None) -> None:
        if global_feature_BS is None:
            return
        name = type(self).__name__
        if not self.takes_global_feature:
            raise InputError(f"{name} has no place for a global feature; leave it out")
        if global_feature_BS.dim() != 2 or global_feature_BS.shape[0] != sets:
            raise InputError(
                f"the global feature of {name} has shape {tuple(global_feature_BS.shape)}, expected a vector for each "
                f"of {sets} sets"
            )


def pool_all_pairs(
    forward: Callable[..., Pooled], x_QND: Tensor, mask_QN: Tensor, context: Context, **more: Tensor | None
) -> Pooled:
    """Pool every set with every context by a `forward` of matched ones: Q x G sets in one batch.

    For an aggregator that has no faster way:

        if context.all_pairs:
            return pool_all_pairs(self.forward, x_BND, mask_BN, context)

    Args:
        forward: the aggregator's, called once with `all_pairs=False`.
        x_QND: the sets' elements.
        mask_QN: True for real elements.
        context: G contexts.
        more: other arguments of `forward` that have a row for each set.
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


def check_sets(x_BND: Tensor, mask_BN: Tensor) -> None:
    """Refuse sets that no aggregator can pool.

    Empty sets are found on a CPU alone: elsewhere the host would have to wait for the device, and the result of an
    empty set is undefined there. NaN features are accepted and give NaN.

    Raises:
        InputError: features that are not `(B, N, D)` floats, a mask that is not `(B, N)` bools, an empty set.
    """
    if x_BND.dim() != 3 or not x_BND.is_floating_point():
        raise InputError(
            "an aggregator takes floating-point features of shape (sets, elements, width), not "
            f"{x_BND.dtype} of shape {tuple(x_BND.shape)}"
        )
    if mask_BN.dtype != torch.bool:
        raise InputError(
            f"a mask is torch.bool, True for real elements, not {mask_BN.dtype}; mask.bool() makes it of ones and zeros"
        )
    if mask_BN.shape != x_BND.shape[:2]:
        raise InputError(
            f"the mask has shape {tuple(mask_BN.shape)}, and the features {tuple(x_BND.shape)}; expected a mask of "
            f"shape {tuple(x_BND.shape[:2])}, one value for every element"
        )
    if mask_BN.device.type == "cpu" and not traced():
        filled_B = mask_BN.numpy().any(axis=1)  # of small batches, sooner than torch's
        if not filled_B.all():
            empty_B = ~filled_B
            raise InputError(
                f"{int(empty_B.sum())} of {len(empty_B)} sets have no element, the first is number "
                f"{int(empty_B.argmax())} of the batch (from 0); leave it out, or keep at least one element"
            )


def check_counts(**counts: int) -> None:
    """Refuse what is no whole number of at least 1, by its name.

    Raises:
        InputError: likewise.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {count!r}")
