"""A narrow bidirectional GRU over one sequence that sets of all sizes share, such as rank encodings.

The forward states of a smaller set are a prefix of the largest set's; the backward direction starts at each size's end.
A step of 32 states is far cheaper than its torch calls, so all steps are one call of compiled code.
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

    def read(self) -> tuple[Array, Array]:
        """Return the states `(S, N + 1, H + 1)` and intermediates for `back`; the initial state is at index `size`."""
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
        library = native.library(torch.float32 if self.x_NC.dtype == np.float32 else torch.float64)
        pointers = [array.ctypes.data for array in arrays]
        getattr(library, name)(self.size_S.ctypes.data, *arrays[-1].shape[:2], self.hidden, *pointers)


def _product(a: Array, b: Array) -> Array:
    """Return a @ b on torch's threads, with which numpy's threads would compete."""
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
