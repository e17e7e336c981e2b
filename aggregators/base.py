"""The base class of aggregators, which make one vector, or a few, of a set of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from infra.compute.tracing import traced
from infra.errors import InputError


class Pooled(NamedTuple):
    """What an aggregator returns.

    Of B sets with N elements, K vectors each. Where all pairs of Q sets with G contexts were asked for, `(Q, G, ...)`
    stands in the place of `(B, ...)` throughout.
    """

    vectors: Tensor
    """`(B, D)`, or `(B, K, D)` where `num_embeddings` is not one; where it is None, sets of fewer than K vectors are
    filled up with zero vectors, which have no direction and count nowhere. Of an aggregator that `makes` a
    distribution, `(B, 2, D)`: the mean, then the log-variance."""
    residual: Tensor | None = None
    """`(B, K, D)`, of an aggregator whose vectors are a global feature plus a residual each; None for any other."""
    weights: Tensor | None = None
    """Attention or pooling weights, as `Aggregator.weights_over` says; None where there is no such thing.

    They are a by-product of the vectors and cost no pass of their own."""


class Context(NamedTuple):
    """What an aggregator may look at beside its sets: the other modality."""

    x: Tensor
    """Elements `(B, M, C)` for an aggregator whose `context` is "set", `(B, C)` for one whose `context` is "vector"."""
    mask: Tensor | None = None
    """`(B, M)`, True for real elements; None beside vectors."""
    all_pairs: bool = False
    """False: set b meets context b. True: each of Q sets meets each of G contexts."""


class Aggregator(nn.Module, ABC):
    """`(x_BND, mask_BN)` -> `Pooled`: `(B, D)` vectors, or `(B, K, D)` where `num_embeddings` K is not one.

    Masks are bool and True marks a real element. What lies under the mask, how far a set is padded and
    which sets share its batch never change a result; `aggregators/contract.py` holds every registered
    aggregator to that. Constructors take the width of the elements first: `Aggregator(dim, *, ...)`.

    The attributes below are facts that others rely on; a class declares those that differ from the defaults, or its
    constructor does where they depend on parameters.
    """

    num_embeddings: int | None = 1
    """How many vectors it makes of a set, K; None where their number depends on the set, and is at most its size."""
    makes: Literal["vectors", "distribution"] = "vectors"
    """What they are. "vectors": points, each to be brought to unit length; "distribution": the mean and the natural
    logarithm of the variance of a Gaussian with a variance for each channel. Then `num_embeddings` is 2, and the mean
    alone may be brought to unit length."""
    width: int | None = None
    """Width of the vectors; None where it is that of the elements."""
    context: Literal["none", "set", "vector"] = "none"
    """What it needs of the other modality: nothing, a set, or one vector."""
    takes_global_feature: bool = False
    """True: `forward` takes `global_feature_BS`, a vector of the whole that some encoders add to the set."""
    symmetric: bool = True
    """True: the order of a set's elements does not matter."""
    weights_over: Literal["elements", "ranks", "embeddings"] = "elements"
    """What the weights are over. "elements": `(B, N)`, or `(B, N, D)` with a weight for each channel, 0 in the pads;
    "embeddings": `(B, K, N)`, the elements' weights in each of K vectors, likewise; "ranks": `(B, N)` or `(B, N, D)`
    over each channel's values in descending order, where those beyond a set's size mean nothing."""

    def __call__(
        self,
        x_BND: Tensor,
        mask_BN: Tensor,
        *,
        context: Context | None = None,
        global_feature_BS: Tensor | None = None,
    ) -> Pooled:
        """Check what goes in, then run `forward` and its hooks with what is not None.

        Raises:
            InputError: what `check_sets` refuses, a context or a global feature that is missing, not wanted or of a
                wrong shape, or a `forward` that does not return `Pooled`.
        """
        check_sets(x_BND, mask_BN)
        self._check_context(len(x_BND), context)
        self._check_global_feature(len(x_BND), global_feature_BS)
        beside = {"context": context, "global_feature_BS": global_feature_BS}
        beside = {name: part for name, part in beside.items() if part is not None}
        pooled = super().__call__(x_BND, mask_BN, **beside)
        if not isinstance(pooled, Pooled):
            raise InputError(
                f"{type(self).__name__}.forward returns {type(pooled).__name__}, expected Pooled: "
                "return Pooled(vectors), with the weights beside them where there are any"
            )
        return pooled

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

        A class leaves out the keywords that its attributes do not ask for: it is never called with them.

        Args:
            x_BND: the sets' elements, padded to a common size.
            mask_BN: True for real elements; every set has at least one.
            context: the other modality, where `context` is not "none"; always given then.
            global_feature_BS: a vector of each whole, where `takes_global_feature`; None where the encoder makes none.
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
        if not context.all_pairs and len(context.x) != sets:
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
        if global_feature_BS.dim() != 2 or len(global_feature_BS) != sets:
            raise InputError(
                f"the global feature of {name} has shape {tuple(global_feature_BS.shape)}, expected a vector for each "
                f"of {sets} sets"
            )


def pool_all_pairs(
    forward: Callable[..., Pooled], x_QND: Tensor, mask_QN: Tensor, context: Context, **more: Tensor | None
) -> Pooled:
    """Pool every set with every context by a `forward` that knows matched ones alone: Q x G calls in one batch.

    For an aggregator that has no faster way:

        if context.all_pairs:
            return pool_all_pairs(self.forward, x_BND, mask_BN, context)

    Args:
        forward: of the aggregator, called once, with `all_pairs=False`.
        x_QND: the sets' elements.
        mask_QN: True for real elements.
        context: G contexts.
        more: what else `forward` takes of each set.
    """
    shape = len(x_QND), len(context.x)

    def of_sets(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.repeat_interleave(shape[1], dim=0)

    def of_contexts(part: Tensor | None) -> Tensor | None:
        return None if part is None else torch.cat([part] * shape[0])

    pooled = forward(
        of_sets(x_QND),
        of_sets(mask_QN),
        context=Context(of_contexts(context.x), of_contexts(context.mask)),
        **{name: of_sets(part) for name, part in more.items()},
    )
    return Pooled(*(None if part is None else part.unflatten(0, shape) for part in pooled))


def check_sets(x_BND: Tensor, mask_BN: Tensor) -> None:
    """Refuse sets that no aggregator can work with; the cost is that of a look at the mask.

    Only on a CPU are sets without an element found: elsewhere the host would have to wait for the device, and what such
    a set gives there is undefined. NaN among the features is no error here, it comes out as NaN.

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
        empty_B = ~mask_BN.any(dim=1)
        if empty_B.any():
            raise InputError(
                f"{int(empty_B.sum())} of {len(empty_B)} sets have no element, the first is number "
                f"{int(empty_B.int().argmax())} of the batch (from 0); leave it out, or keep at least one element"
            )
