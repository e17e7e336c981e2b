"""A narrow bidirectional GRU over one sequence that sets of all sizes share, such as rank encodings.

The forward states of a smaller set are a prefix of the largest set's; the backward direction starts at each size's end.
A step of 32 states is far cheaper than its torch calls, so all steps are one call of compiled code, or shorter numpy
calls without a compiler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from polypool.aggregators.ranks.kernels import native

Array = np.ndarray


class SharedGRU(torch.autograd.Function):
    """`(x_NC, size_S, *weights)` -> `(S, N, H)`: the mean of both directions, undefined beyond a size.

    Inputs are float32 or float64, and int64 sizes from 1 to N. Weights are in the order of `GRU.weights`.
    """

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, x_NC: Tensor, size_S: Tensor, *weights: Tensor) -> Tensor:
        """Run forwards once, and backwards from each size's end."""
        ctx.save_for_backward(x_NC, *weights)
        ctx.read = [(direction, direction.read()) for direction in directions(x_NC, size_S, *weights)]
        (_, (there_1NI, _)), (_, (back_SNI, _)) = ctx.read
        mean_SNH = there_1NI[:, -2::-1, :-1] + back_SNI[:, :-1, :-1]
        mean_SNH *= mean_SNH.dtype.type(0.5)
        return torch.from_numpy(mean_SNH)

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")  # without autocast, like forward
    def backward(ctx: Any, grad_SNH: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the sequence and the weights."""
        _ = ctx.saved_tensors  # torch rejects saved tensors that were modified in place
        (there, kept_there), (back, kept_back) = ctx.read
        half_SNH = grad_SNH.numpy() * there.x_NC.dtype.type(0.5)
        half_1NH = np.ascontiguousarray(half_SNH.sum(axis=0, keepdims=True)[:, ::-1])
        from_there_NC, *of_there = there.back(half_1NH, *kept_there)
        from_back_NC, *of_back = back.back(half_SNH, *kept_back)
        from_back_NC += from_there_NC[::-1]
        return torch.from_numpy(from_back_NC), None, *map(torch.from_numpy, (*of_there, *of_back))


def directions(x_NC: Tensor, size_S: Tensor, *weights: Tensor) -> tuple[Direction, Direction]:
    """Return the forward direction (on the reversed sequence) and the backward direction."""
    x, size, *arrays = (np.ascontiguousarray(part.detach().numpy()) for part in (x_NC, size_S, *weights))
    return Direction(x[::-1].copy(), np.array([len(x)]), *arrays[:4]), Direction(x, size, *arrays[4:])


class Direction:
    """One direction; reads a sequence from each size's end to the start.

    With gates r and z and candidate n as in `torch.nn.GRU`: q = W_hn h + b_hn, n = tanh(W_in x + b_in + r q), and the
    next state is n + z (h - n). States have an additional constant 1, whose weights are the recurrent biases.

    Args:
        x_NC: the sequence.
        size_S: the sizes.
        of_input_GC, of_state_GH: weights; G concatenates r, z and n, H each.
        input_bias_G, state_bias_G: biases.
    """

    def __init__(self, x_NC: Array, size_S: Array, *weights: Array) -> None:
        self.x_NC, self.size_S = x_NC, size_S
        self.of_input_GC, self.of_state_GH, self.input_bias_G, self.state_bias_G = weights
        self.hidden = self.of_state_GH.shape[1]
        self.library = native.library(torch.float32 if x_NC.dtype == np.float32 else torch.float64)

    def read(self) -> tuple[Array, Array]:
        """Return the states `(S, N + 1, H + 1)`, the last being the initial state, and intermediates for `back`."""
        longest, sets = len(self.x_NC), len(self.size_S)
        input_NG = _product(self.x_NC, self.of_input_GC.T)
        input_NG += self.input_bias_G
        weight_IG = np.vstack((self.of_state_GH.T, self.state_bias_G)).copy()
        state_SNI = np.zeros((sets, longest + 1, self.hidden + 1), self.x_NC.dtype)
        state_SNI[..., self.hidden] = 1
        kept_SNK = np.zeros((sets, longest, 4 * self.hidden), self.x_NC.dtype)
        self._steps("shared_states", input_NG, weight_IG, state_SNI, kept_SNK)
        return state_SNI, kept_SNK

    def back(self, grad_SNH: Array, state_SNI: Array, kept_SNK: Array) -> tuple[Array, ...]:
        """Return the gradients of the sequence and the weights; overwrites the gradient of the states."""
        hidden = self.hidden
        part_SNK = np.zeros_like(kept_SNK)
        self._steps("shared_gradients", self.of_state_GH, state_SNI, kept_SNK, grad_SNH, part_SNK)
        part_NK = part_SNK.sum(axis=0)
        input_NG = np.concatenate((part_NK[:, : 2 * hidden], part_NK[:, 3 * hidden :]), axis=1)
        part_AG, past_AI = (
            part_SNK[..., : 3 * hidden].reshape(-1, 3 * hidden),
            state_SNI[:, 1:].reshape(-1, hidden + 1),
        )
        state_GI = _product(part_AG.T, past_AI)
        of_input_GC, input_bias_G = _product(input_NG.T, self.x_NC), input_NG.sum(axis=0)
        return (
            _product(input_NG, self.of_input_GC),
            of_input_GC,
            state_GI[:, :hidden],
            input_bias_G,
            state_GI[:, hidden],
        )

    def _steps(self, name: str, *arrays: Array) -> None:
        """Run all steps; the last array is `(S, N, 4 H)`."""
        if self.library is None:
            STEPS[name](self.size_S, *arrays)
        else:
            pointers = [array.ctypes.data for array in arrays]
            getattr(self.library, name)(
                self.size_S.ctypes.data, *arrays[-1].shape[:2], self.hidden, *pointers
            )


def _product(a: Array, b: Array) -> Array:
    """Return a @ b on torch's threads, with which numpy's threads would compete."""
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def states(size_S: Array, input_NG: Array, weight_IG: Array, state_SNI: Array, kept_SNK: Array) -> None:
    """The numpy version of `shared_states` in the C file; sigmoid(x) = (1 + tanh(x / 2)) / 2 cannot overflow."""
    hidden, half = state_SNI.shape[2] - 1, state_SNI.dtype.type(0.5)
    gates, rest = slice(2 * hidden), slice(2 * hidden, 3 * hidden)
    scale_G = np.repeat([half, 1], (2 * hidden, hidden)).astype(half.dtype)
    input_NG, weight_IG, real_NS1 = input_NG * scale_G, weight_IG * scale_G, _real(size_S, kept_SNK)
    for k in reversed(range(len(input_NG))):
        past_SI, kept_SK = state_SNI[:, k + 1], kept_SNK[:, k]
        np.matmul(past_SI, weight_IG, out=kept_SK[:, : rest.stop])
        gate_SG, n_SH, state_SH = kept_SK[:, gates], kept_SK[:, rest.stop :], state_SNI[:, k, :hidden]
        gate_SG += input_NG[k, gates]
        np.tanh(gate_SG, out=gate_SG)
        gate_SG *= half
        gate_SG += half
        np.multiply(kept_SK[:, :hidden], kept_SK[:, rest], out=n_SH)
        n_SH += input_NG[k, rest]
        np.tanh(n_SH, out=n_SH)
        np.subtract(past_SI[:, :hidden], n_SH, out=state_SH)
        state_SH *= kept_SK[:, hidden : rest.start]
        state_SH += n_SH
        state_SH *= real_NS1[k]


def gradients(
    size_S: Array,
    weight_GH: Array,
    state_SNI: Array,
    kept_SNK: Array,
    grad_SNH: Array,
    part_SNK: Array,
) -> None:
    """The numpy version of `shared_gradients` in the C file, with the products of all steps at once."""
    sets, longest, hidden = grad_SNH.shape
    real_SN1 = _real(size_S, kept_SNK).swapaxes(0, 1)
    r, z, q, n = np.split(kept_SNK, 4, axis=2)
    to_r, to_z, to_q, to_n = np.split(part_SNK, 4, axis=2)
    np.multiply((1 - z) * real_SN1, 1 - n * n, out=to_n)
    np.multiply(to_n, r, out=to_q)
    np.multiply(to_q * q, 1 - r, out=to_r)
    np.multiply((state_SNI[:, 1:, :hidden] - n) * real_SN1, z * (1 - z), out=to_z)
    part_SN4H = part_SNK.reshape(sets, longest, 4, hidden)
    for k in range(longest):
        grad_SH, part_S4H = grad_SNH[:, k], part_SN4H[:, k]
        part_S4H *= grad_SH[:, None]
        if k + 1 < longest:
            to_past_SH = grad_SNH[:, k + 1]
            to_past_SH += grad_SH * z[:, k]
            to_past_SH += part_SNK[:, k, : 3 * hidden] @ weight_GH


def _real(size_S: Array, like_SNK: Array) -> Array:
    """Return the mask `(N, S, 1)`: 1 where a set has an element, else 0."""
    return (np.arange(like_SNK.shape[1])[:, None] < size_S).astype(like_SNK.dtype)[..., None]


STEPS = {"shared_states": states, "shared_gradients": gradients}
