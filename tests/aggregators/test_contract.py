from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled, pool_all_pairs
from polypool.aggregators.averages.attention import Attention
from polypool.aggregators.averages.cls import CLS
from polypool.aggregators.averages.mean import Mean
from polypool.aggregators.contract import check_aggregator
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.relations.score_attention import ScoreAttention
from polypool.aggregators.selections.by_text import TextSoftmax
from polypool.aggregators.sets.pie import PIE
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


class ContextPadsRead(ScoreAttention):
    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        return super().forward(x_BND, mask_BN, context=context._replace(mask=torch.ones_like(context.mask)))


def changed(base: type[Aggregator], change: Callable[[Pooled, Tensor, Context], Pooled]) -> type[Aggregator]:
    """Return an aggregator whose result is `change(pooled, x_BND, context)`."""

    class Changed(base):
        def forward(self, x_BND: Tensor, mask_BN: Tensor, **beside: Any) -> Pooled:
            return change(super().forward(x_BND, mask_BN, **beside), x_BND, beside.get("context"))

    return Changed


def plus(pooled: Pooled, vector: Tensor) -> Pooled:
    return pooled._replace(vectors=pooled.vectors + vector)


PairsTurned = changed(
    ScoreAttention,
    lambda pooled, _, c: pooled._replace(vectors=pooled.vectors.flip(1)) if c.all_pairs else pooled,
)
OtherResidual = changed(PIE, lambda pooled, *_: pooled._replace(residual=pooled.residual[:, :1]))
WeightsInPads = changed(Mean, lambda pooled, *_: pooled._replace(weights=pooled.weights + 1e-3))
WeightsOfMates = changed(Mean, lambda pooled, x_BND, _: pooled._replace(weights=pooled.weights * len(x_BND)))


class Centred(Mean):
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        return plus(pooled := super().forward(x_BND, mask_BN), -pooled.vectors.mean(dim=0))


class First(CLS):
    symmetric = True


class OneVectorOfTwo(Mean):
    num_embeddings = 2


class WeightsOfRanks(Mean):
    weights_over = "embeddings"


class NoAverage(Attention):
    averages = True


class Unhooked(Mean):
    def __call__(self, x_BND: Tensor, mask_BN: Tensor, **beside: Tensor) -> Pooled:
        return self.forward(x_BND, mask_BN)


class ByColumn(Aggregator):
    """Weigh elements by their column, masked columns counted."""

    symmetric = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        weight_BN = (mask_BN / torch.arange(1, mask_BN.shape[1] + 1)).to(x_BND.dtype)
        return Pooled(torch.einsum("bnd,bn->bd", x_BND.masked_fill(~mask_BN[..., None], 0.0), weight_BN))


class MaskedLate(Aggregator):
    """Mask pads only after a linear map: correct output, wrong gradient of the map."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        return Pooled(self.linear(x_BND).masked_fill(~mask_BN[..., None], float("-inf")).amax(dim=1))


class MaskInPlace(Mean):
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        mask_BN[:, 1:] = False
        return super().forward(x_BND, mask_BN)


class PadsInPlace(Mean):
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        return super().forward(x_BND.masked_fill_(~mask_BN[..., None], 0.0), mask_BN)


class InTraining(Mean):
    """A mean whose result `change` replaces in training mode."""

    change: Callable[[Tensor, Tensor, Pooled], Tensor]

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        pooled = super().forward(x_BND, mask_BN)
        return Pooled(type(self).change(x_BND, mask_BN, pooled)) if self.training else pooled


class MaskIgnored(InTraining):
    change = staticmethod(lambda x_BND, mask_BN, pooled: x_BND.mean(dim=1))


class Dropped(InTraining):
    """Valid: dropout is random and depends on the padded shape of the sets."""

    change = staticmethod(
        lambda x_BND, mask_BN, pooled: (
            nn.functional.dropout(x_BND).masked_fill(~mask_BN[..., None], 0.0).sum(dim=1)
        )
    )


class CountsItsBatches(Mean):
    """Count batches, empty ones included."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.register_buffer("seen", torch.zeros(()))

    def __call__(self, x_BND: Tensor, mask_BN: Tensor, **beside: Tensor) -> Pooled:
        self.seen += 1
        return super().__call__(x_BND, mask_BN, **beside)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (MaskInPlace, "forward changes the mask in place; change a copy"),
        (PadsInPlace, "forward changes the elements in place"),
        (MaskIgnored, "more padding changes"),
        (CountsItsBatches, "no sets change seen"),
        (ByColumn, "a hole in the mask"),
        (Centred, "batch mates change"),
        (First, "the order matters"),
        (MaskedLate, "NaN under the mask"),
        (ContextPadsRead, "padding changes|under the mask changes|not finite"),
        (PairsTurned, "vectors of all pairs differ from single pairs"),
        (OtherResidual, r"the residual has shape \(4, 1, 8\)"),
        (OneVectorOfTwo, r"the vectors have shape \(4, 8\), expected \(4, 2, 8\)"),
        (WeightsOfRanks, r"the weights have shape \(4, 9\), expected \[\(4, 1, 9\)\]"),
        (WeightsInPads, "a padding element has a weight"),
        (WeightsOfMates, "padding or batch mates change the weights"),
        (NoAverage, "does not commute with an affine map"),
        (Unhooked, "one call runs a forward hook 0 times"),
    ],
)
def test_contract_check_detects_violations(broken, message):
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=message):
        check_aggregator(broken(8), 8)


def test_contract_check_accepts_dropout_in_training():
    check_aggregator(Dropped(8), 8)


@pytest.mark.parametrize("spec", ["gpo", "nextvlad", "map(k=3, heads=2)", "late"])
def test_empty_batch_has_empty_output_and_gradient(spec):
    module = AGGREGATORS.build(spec, 8)
    x_BND = torch.empty(0, 5, 8, requires_grad=True)
    vectors = module(x_BND, torch.empty(0, 5, dtype=torch.bool)).vectors
    assert vectors.shape == (0, 8) if vectors.ndim == 2 else (0, module.num_embeddings or 1, 8)
    vectors.sum().backward()
    assert x_BND.grad.shape == x_BND.shape


class WithGlobal(TextSoftmax):
    """Add the global feature; pool all pairs by repeating the inputs."""

    takes_global_feature = True

    def forward(
        self, x_BND: Tensor, mask_BN: Tensor, *, context: Context, global_feature_BS: Tensor | None = None
    ) -> Pooled:
        if context.all_pairs:
            return pool_all_pairs(self.forward, x_BND, mask_BN, context, global_feature_BS=global_feature_BS)
        pooled = super().forward(x_BND, mask_BN, context=context)
        return pooled if global_feature_BS is None else plus(pooled, global_feature_BS)


def test_all_pairs_of_empty_batches_are_empty():
    x_BND, mask_BN = random_sets([4, 2], 8)
    none = Context(x_BND[:0], mask_BN[:0], all_pairs=True)
    module = ScoreAttention(8, k=3)
    assert module(x_BND, mask_BN, context=none).vectors.shape == (2, 0, 3, 8)
    every = Context(x_BND, mask_BN, all_pairs=True)
    assert module(x_BND[:0], mask_BN[:0], context=every).vectors.shape == (0, 2, 3, 8)


def test_pool_all_pairs_passes_contract_check():
    check_aggregator(WithGlobal(8), 8)


SETS = random_sets([4, 2, 3], 8)
TWO = random_sets([4, 2], 8)


@pytest.mark.parametrize(
    ("module", "beside", "message"),
    [
        (Mean, {"context": Context(*SETS)}, "Mean takes no context; remove it"),
        (Mean, {"global_feature_BS": SETS[0][:, 0]}, "Mean takes no global feature"),
        (
            ScoreAttention,
            {},
            r"ScoreAttention needs a set .* context=Context\(x_BMC, mask_BM\), not None",
        ),
        (ScoreAttention, {"context": SETS}, r"Context\(x_BMC, mask_BM\), not tuple"),
        (ScoreAttention, {"context": Context(SETS[0])}, "is a set and needs a mask"),
        (ScoreAttention, {"context": Context(SETS[0], SETS[1].float())}, r"torch.bool, .* not torch.float32"),
        (ScoreAttention, {"context": Context(*TWO)}, r"3 sets and 2 contexts; .* all_pairs=True"),
        (TextSoftmax, {}, r"TextSoftmax needs a vector .* context=Context\(x_BC\), not None"),
        (TextSoftmax, {"context": Context(*SETS)}, r"a floating-point vector .* \(3, 4, 8\) with a mask"),
        (TextSoftmax, {"context": Context(SETS[0][:2, 0])}, "3 sets and 2 contexts"),
        (TextSoftmax, {"context": Context(SETS[0][:, 0].long())}, r"not torch.int64 of shape \(3, 8\)"),
        (PIE, {"global_feature_BS": SETS[0][:2, 0]}, r"has shape \(2, 8\), expected a vector for each of 3"),
        (PIE, {"global_feature_BS": SETS[0]}, r"has shape \(3, 4, 8\), expected a vector"),
    ],
)
def test_invalid_context_or_global_feature_is_refused(module, beside, message):
    with pytest.raises(InputError, match=message):
        module(8)(*SETS, **beside)


class ReturnsATensor(Mean):
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        return super().forward(x_BND, mask_BN).vectors


class WantsTheRest(Mean):
    context = "rest"


def test_invalid_plugin_class_is_refused():
    with pytest.raises(InputError, match=r"ReturnsATensor.forward returns Tensor, expected Pooled"):
        ReturnsATensor(8)(*SETS)
    with pytest.raises(
        InputError, match=r'WantsTheRest.context must be "none", "set" or "vector", not \'rest\''
    ):
        WantsTheRest(8)(*SETS)
