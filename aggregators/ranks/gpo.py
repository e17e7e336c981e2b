"""Generalised pooling operator, GPO (VSE-infinity, section 3.2 and its code), and its variants."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.positions import encode_ranks
from polypool.aggregators.ranks.by_size import weights_by_size
from polypool.aggregators.ranks.fspool import stretch
from polypool.aggregators.ranks.kernels import native
from polypool.aggregators.ranks.shared_gru import SharedGRU
from polypool.aggregators.ranks.sorted_sum import sort_descending, sorted_sum, triton_kernels
from polypool.infra.compute.device import shapes_only, traced
from polypool.infra.compute.gru import GRU
from polypool.infra.errors import InputError, unknown
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS

CACHED = 1 << 22
"""Maximum number of weights cached between calls without gradients: all sizes up to 2,895, or up to 90 with separate
weights for each of 1,024 channels."""


@AGGREGATORS.register("gpo")
class GPO(Aggregator):
    """A weighted sum over each channel's sorted values, with weights generated from the ranks.

    Sinusoidal encodings of the ranks 0 to N - 1 pass through a bidirectional GRU whose directions are averaged, then a
    linear map; the softmax of score / temperature gives the weight of every rank. As in the authors' code, and unlike
    equation 5, ranks start at 0, the map has no bias, and the temperature is 0.1 (the paper has none). That makes
    12,704 parameters; the paper counts 0.1 M for both modalities. Weights depend only on a set's size; on a
    CPU they are computed once per distinct size in a batch.

    Parameters select the other designs of tables 8 and 11 to 13. `interpolate` learns `positions` weights and
    interpolates them to a set's size. The paper does not say how they are normalised; here they are divided by their
    sum.

    Args:
        dim: width of the elements.
        decoder: `bigru`, `transformer` (table 8), `mlp` or `interpolate` (table 11).
        encoding: of the ranks, `sinusoidal`, or `index` for learned embeddings (table 11); `interpolate` uses none.
        positions: width of the encoding; with `interpolate`, the number of learned weights.
        hidden: width of the GRU per direction, of the MLP, or of the transformer's inner layer.
        temperature: divides the scores.
        per_channel: separate weights for each channel (table 12).
        feature_conditioned: concatenate the sorted values to the encodings, so that weights depend on them (table 13).
        longest: number of learned rank embeddings with `encoding="index"`. A larger set is an error on a CPU. On a
            GPU and in traced code, which read no sizes, its further ranks share the last embedding.
    """

    weights_over = "ranks"

    def __init__(
        self,
        dim: int,
        *,
        decoder: str = "bigru",
        encoding: str = "sinusoidal",
        positions: int = 32,
        hidden: int = 32,
        temperature: float = 0.1,
        per_channel: bool = False,
        feature_conditioned: bool = False,
        longest: int = 256,
    ) -> None:
        super().__init__()
        require(above(0), temperature=temperature)
        if encoding not in ("sinusoidal", "index"):
            raise unknown("encoding", encoding, ("sinusoidal", "index"))
        if positions < 2 or positions % 2:
            raise ValueError(f"positions must be an even number of at least 2, not {positions}")
        self.positions, self.temperature = positions, temperature
        self.per_channel, self.feature_conditioned = per_channel, feature_conditioned
        self._cache: tuple[list[Tensor], dict[int, Tensor]] = [], {}
        channels = dim if per_channel else 1
        self.decoder = ""
        if decoder == "interpolate":
            if feature_conditioned:
                raise ValueError("decoder must be one that reads encodings where feature_conditioned is True")
            self.stretched = nn.Parameter(torch.zeros(positions, channels))
            return
        if decoder not in DECODERS:
            raise unknown("decoder", decoder, (*DECODERS, "interpolate"))
        self.index = nn.Embedding(longest, positions) if encoding == "index" else None
        generator = DECODERS[decoder](positions + dim * feature_conditioned, hidden)
        self.decoder = generator.name
        self.add_module(self.decoder, generator)
        self.linear = nn.Linear(generator.width, channels, bias=False)

    def _of_sizes(self, size_S: Tensor, longest: int) -> Tensor:
        """Return the weights `(S, longest, 1 or D)` of sets of some sizes, 0 beyond a set's size."""
        return self._decode(size_S, None, longest) if self.decoder else self._stretch(size_S, longest)

    def _squeezed(self, weight_SNC: Tensor) -> Tensor:
        return weight_SNC if self.per_channel else weight_SNC.squeeze(-1)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the pooled vectors `(B, D)` and the weights over ranks `(B, N)`, or `(B, N, D)` with `per_channel`."""
        device = x_BND.device.type
        autocast = torch.is_autocast_enabled(device)  # bfloat16 would change the weights by several per cent
        with torch.autocast(device, enabled=False) if autocast else nullcontext():
            weight = self._weights(x_BND, mask_BN)
        return Pooled(sorted_sum(x_BND, weight, mask_BN), weights=weight)

    def _weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        size_B, padded = mask_BN.sum(dim=1), mask_BN.shape[1]
        if self.feature_conditioned:
            return self._squeezed(self._decode(size_B, sort_descending(x_BND, mask_BN), padded))
        if torch.is_grad_enabled() or shapes_only(mask_BN):
            return self._squeezed(weights_by_size(self._of_sizes, mask_BN))
        weight = pad_sequence(self._cached_weights(size_B.tolist()), batch_first=True)
        after_sets = (0, 0) * (weight.dim() - 2) + (0, padded - weight.shape[1])
        return nn.functional.pad(weight, after_sets)

    def _cached_weights(self, sizes: list[int]) -> list[Tensor]:
        """Return the weights of each size without gradients, cached until a parameter changes.

        The cache compares values, because not every change increments a tensor's version.
        """
        now = [*self.parameters()]
        before, cache = self._cache
        if len(before) != len(now) or not all(map(_same, before, now)):
            before, cache = [parameter.detach().clone() for parameter in now], {}
        new = sorted({*sizes} - cache.keys())
        if new:
            weight = self._squeezed(self._of_sizes(torch.tensor(new, device=now[0].device), new[-1]))
            cache = cache | {size: weight[row, :size].clone() for row, size in enumerate(new)}
            if sum(weight.numel() for weight in cache.values()) > CACHED:
                cache = {size: cache[size] for size in {*sizes}}
            self._cache = before, cache  # one assignment, atomic for other threads
        return [cache[size] for size in sizes]

    def _decode(self, size_S: Tensor, sorted_SND: Tensor | None, longest: int) -> Tensor:
        """Return the weights `(S, longest, 1 or D)` for some sizes, and for sorted features unless they are None."""
        x_SNC = self._encodings(longest)[None]
        if sorted_SND is not None:
            x_SNC = torch.cat((x_SNC.expand(len(sorted_SND), -1, -1), sorted_SND.to(x_SNC.dtype)), dim=-1)
        score_SNC = self.linear(self.get_submodule(self.decoder)(x_SNC, size_S)) / self.temperature
        return score_SNC.masked_fill(_beyond(size_S, longest), float("-inf")).softmax(dim=1)

    def _stretch(self, size_S: Tensor, longest: int) -> Tensor:
        """Return the interpolated weights `(S, longest, 1 or D)`."""
        learned_VC = (self.stretched / self.temperature).softmax(dim=0)
        weight_SNC = stretch(learned_VC, size_S, longest)
        beyond_SN1 = _beyond(size_S.to(learned_VC.device), weight_SNC.shape[1])
        weight_SNC = weight_SNC.masked_fill(beyond_SN1, 0.0)
        return weight_SNC / weight_SNC.sum(dim=1, keepdim=True)

    def _encodings(self, longest: int) -> Tensor:
        weight = self.linear.weight
        if self.index is None:
            wide = torch.promote_types(weight.dtype, torch.float32)
            # a CUDA graph would outlive the cache's tensor
            encode = encode_ranks if shapes_only(weight) else _encoded
            return encode(longest, self.positions, device=weight.device, dtype=wide).to(weight.dtype)
        last = self.index.num_embeddings - 1
        if longest > last + 1 and not shapes_only(weight):
            raise InputError(
                f"a set has {longest} elements, and gpo has learned encodings of {self.index.num_embeddings} ranks; "
                "set longest to the size of the largest set"
            )
        return self.index(torch.arange(longest, device=weight.device).clamp(max=last))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)


@lru_cache(maxsize=16)
def _encoded(length: int, dim: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return `encode_ranks`, cached; computed outside inference mode, so that later calls can require gradients."""
    with torch.inference_mode(False):
        return encode_ranks(length, dim, device=device, dtype=dtype)


def _beyond(size_S: Tensor, longest: int) -> Tensor:
    """Return the mask `(S, N, 1)`, True beyond a set's size."""
    return (torch.arange(longest, device=size_S.device) >= size_S[:, None])[..., None]


def _shared_gru(x_SNC: Tensor, hidden: int) -> Any:
    """Return the autograd function for one sequence on its device; None to use torch."""
    if traced():
        return None
    if x_SNC.device.type == "cuda":
        cuda = triton_kernels() if x_SNC.dtype == torch.float32 else None
        return cuda.SharedGRU if cuda is not None and hidden in cuda.HIDDEN else None
    usable = not shapes_only(x_SNC) and native.library(x_SNC.dtype) is not None
    return SharedGRU if usable else None


class GRUDecoder(GRU):
    """A bidirectional GRU whose directions are averaged."""

    name = "gru"

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.width = hidden

    def forward(self, x_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, hidden)`."""
        shared = _shared_gru(x_SNC, self.hidden_size) if len(x_SNC) == 1 else None
        if shared is not None:
            weights = [weight for direction in self.weights for weight in direction]
            return shared.apply(x_SNC[0], size_S, *weights)
        state_SN2H, _ = super().forward(x_SNC.expand(size_S.shape[0], -1, -1), size_S)
        return state_SN2H.mean(dim=2)


class Transformer(nn.TransformerEncoderLayer):
    """One transformer encoder layer with the width of its inputs."""

    name = "transformer"
    heads = 4

    def __init__(self, inputs: int, hidden: int) -> None:
        if inputs % self.heads:
            raise ValueError(
                f"a transformer needs encodings of a width that {self.heads} divides, not {inputs}"
            )
        super().__init__(inputs, self.heads, dim_feedforward=hidden, dropout=0.0, batch_first=True)
        self.width = inputs

    def forward(self, x_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, C)`."""
        beyond_SN = torch.arange(x_SNC.shape[1], device=x_SNC.device) >= size_S[:, None]
        return super().forward(x_SNC.expand(len(beyond_SN), -1, -1), src_key_padding_mask=beyond_SN)


class MLP(nn.Sequential):
    """One layer, applied to each rank, independent of the set's size."""

    name = "mlp"

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.ReLU())
        self.width = hidden

    def forward(self, x_SNC: Tensor, size_S: Tensor) -> Tensor:
        """Return the states `(S, N, hidden)`."""
        return super().forward(x_SNC)


DECODERS: dict[str, Any] = {"bigru": GRUDecoder, "transformer": Transformer, "mlp": MLP}
"""Weight generators of tables 8 and 11. Each maps encodings `(S, N, C)` (S = 1 if all sets share them) and set sizes
`(S,)`, on the same device, to states `(S, N, decoder.width)`, undefined beyond a set's size. A generator that ignores
sizes may return S = 1. GPO registers it as a submodule under its `name`."""
