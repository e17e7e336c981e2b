"""One modality of a model (encoder and aggregator), and joint pooling of two modalities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled
from polypool.encoders.encoder import Encoder
from polypool.infra.errors import InputError
from polypool.tasks.similarities.vectors import (
    Embeddings,
    at_least_float32,
    l2_normalise,
    mean_and_log_variance,
)


class Branch(nn.Module):
    """One modality: inputs -> set -> embeddings, of unit length except for log-variances.

    Args:
        encoder: returns the set.
        aggregator: pools it to a vector, or a few.
    """

    def __init__(self, encoder: Encoder, aggregator: Aggregator) -> None:
        super().__init__()
        if encoder.global_width and not aggregator.takes_global_feature:
            raise InputError(
                f"the encoder {type(encoder).__name__} returns a global feature, which the aggregator "
                f"{type(aggregator).__name__} does not take; choose an aggregator such as slots or pie, or another "
                "encoder"
            )
        self.encoder = encoder
        self.aggregator = aggregator
        if encoder.global_width not in (0, self.width):
            raise InputError(
                f"the encoder {type(encoder).__name__} returns a global feature of width {encoder.global_width}, to "
                f"which the aggregator {type(aggregator).__name__} adds vectors of width {self.width}: give the "
                f"aggregator width={encoder.global_width}"
            )

    @property
    def width(self) -> int:
        return self.aggregator.width or self.encoder.width

    def forward(self, x: Tensor, mask_BN: Tensor) -> Embeddings:
        """Return the embeddings, `(B, D)` or `(B, K, D)`, and the aggregator's residual and global feature, if any.

        Vectors are L2-normalised. Distributions are `(B, 2, D)`, without a global feature; log-variances are not
        normalised.
        """
        pooled = self._encode_and_pool(x, mask_BN)
        if self.aggregator.makes == "vectors":
            return Embeddings(l2_normalise(pooled.vectors), pooled.residual, pooled.global_feature)
        mean_BD, log_variance_BD = mean_and_log_variance(at_least_float32(pooled.vectors))
        return Embeddings(torch.stack((l2_normalise(mean_BD), log_variance_BD), dim=1), pooled.residual)

    def _encode_and_pool(self, x: Tensor, mask_BN: Tensor) -> Pooled:
        """Encode and pool sets.

        An aggregator that averages pools the input of the encoder's last affine map, which then maps one vector per
        set.
        """
        if self.aggregator.averages and (mapped := self.encoder.before_affine(x, mask_BN)):
            x_BNF, mask_BN, affine = mapped
            return Pooled(affine(self.aggregator(x_BNF, mask_BN).vectors))
        return self.pool(self.encoder(x, mask_BN))

    def pool(self, encoded: Sequence[Tensor], *, context: Context | None = None) -> Pooled:
        """Pool sets.

        Args:
            encoded: output of the encoder: `x_BND`, `mask_BN` and an optional `global_feature_BS`.
            context: the other modality, for an aggregator that needs it.
        """
        x_BND, mask_BN, *global_feature = encoded
        return self.aggregator(
            x_BND, mask_BN, context=context, global_feature_BS=global_feature[0] if global_feature else None
        )


def refuse_distributions(aggregator: Aggregator, model: str) -> None:
    """Refuse an aggregator that returns distributions, for a model that would read the log-variance as a vector.

    Args:
        aggregator: of the model.
        model: name in the message.

    Raises:
        InputError: the aggregator returns distributions.
    """
    if aggregator.makes != "vectors":
        raise InputError(
            f"the aggregator {type(aggregator).__name__} returns distributions, a mean and a log-variance, and {model} "
            "needs vectors; choose an aggregator such as gpo or mean"
        )


def refuse_global_feature(encoder: Encoder, model: str, *, others: str) -> None:
    """Refuse an encoder with a global feature, for a model that does not use it.

    Raises:
        InputError: the encoder returns a global feature; the message names the model and alternative encoders.
    """
    if encoder.global_width:
        raise InputError(
            f"the encoder {type(encoder).__name__} returns a global feature, which {model} does not take; choose an "
            f"encoder such as {others}"
        )


def check_widths(visual: int, text: int, why: str = "cross-attention needs the same width") -> None:
    """Check that two encoders whose elements are compared have the same width.

    Raises:
        InputError: the widths differ; the message gives the reason.
    """
    if visual != text:
        raise InputError(
            f"the visual encoder returns elements of width {visual} and the text encoder of {text}; {why}"
        )


def look_at_each_other(*branches: Branch) -> bool:
    """Whether an aggregator of two branches needs the other modality, so that embeddings depend on the pair.

    Raises:
        InputError: one needs a vector of the other modality, whose aggregator returns several or needs a context.
    """
    for branch, other in zip(branches, reversed(branches), strict=True):
        aggregator, source = branch.aggregator, other.aggregator
        if aggregator.context == "vector" and (source.context != "none" or source.num_embeddings != 1):
            raise InputError(
                f"the aggregator {type(aggregator).__name__} needs one vector of the other modality, which "
                f"{type(source).__name__} does not return; choose an aggregator there such as mean or gpo"
            )
    return any(branch.aggregator.context != "none" for branch in branches)


def pool_both(
    branches: tuple[Branch, Branch],
    encoded: tuple[Sequence[Tensor], Sequence[Tensor]],
    *,
    all_pairs: bool = False,
) -> tuple[Tensor, Tensor]:
    """Pool the sets of two modalities, with the other as context for aggregators that need it.

    Args:
        branches: of the first and the second modality.
        encoded: outputs of their encoders for Q and for G sets; Q = G without `all_pairs`.
        all_pairs: pool every set with every set of the other modality.

    Returns:
        the vectors of both: `(Q, D)`, or `(Q, K, D)` for aggregators with K vectors; with `all_pairs`, both are
            `(Q, G, D)` or `(Q, G, K, D)`.
    """
    alone = [
        branch.pool(sets).vectors if branch.aggregator.context == "none" else None
        for branch, sets in zip(branches, encoded, strict=True)
    ]
    pooled = []
    for own, other in ((0, 1), (1, 0)):
        vectors = alone[own]
        if vectors is None:
            vector, (x_BND, mask_BN, *_) = alone[other], encoded[other]
            of_vector = branches[own].aggregator.context == "vector" and vector is not None
            context = Context(vector) if of_vector else Context(x_BND, mask_BN)
            vectors = branches[own].pool(encoded[own], context=context._replace(all_pairs=all_pairs)).vectors
        elif all_pairs:
            vectors = vectors[:, None].expand(-1, len(encoded[other][0]), *vectors.shape[1:])
        pooled.append(vectors)
    return pooled[0], pooled[1].transpose(0, 1) if all_pairs else pooled[1]
