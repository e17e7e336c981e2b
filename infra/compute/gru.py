"""GRU over sets of different sizes: cuDNN's on a GPU, and a faster implementation on a CPU.

On a CPU, torch's GRU packs its recurrent weights at every step, and accumulates the gradients of all weights and
elements at every step, which for recurrent weights of 3 x 1024 x 1024 costs as much as the matrix products. Here
weights are packed once, and each weight's gradient is one product over all steps. Under autocast it computes in float32
on a CPU, where torch's is slower in bfloat16.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from polypool.infra.compute.device import shapes_only, traced
from polypool.infra.compute.recurrence import Direction

MANY = 16384
"""With gradients torch is faster on a CPU below this number of states per step (sets x hidden width), where call
overhead dominates."""
WIDE, FEW = 768, 8
"""Without gradients torch is faster on a CPU below this hidden width, or up to this many sets: packing dominates."""


class GRU(nn.RNNBase):
    """One bidirectional layer of `torch.nn.GRU`, batch first and with the same parameter names, for padded sets.

    Args:
        inputs: width E of the elements.
        hidden: width H of the states of each direction.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__("GRU", inputs, hidden, batch_first=True, bidirectional=True)

    def forward(self, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        """Process every set.

        Args:
            x_BNE: the sets' elements, real ones first.
            size_B: number of real elements, at least one per set; on any device.

        Returns:
            The states `(B, N, 2, H)` of both directions, zero in the padding, and each direction's last state
            `(2, B, H)`.
        """
        if shapes_only(x_BNE):
            return self._padded(x_BNE, size_B)
        if self._is_small(len(x_BNE)):
            return self._packed(x_BNE, size_B)
        order = _Order(size_B, x_BNE.shape[1])
        return _Read.apply(x_BNE, order, *(weight for direction in self.weights for weight in direction))

    @property
    def weights(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Input and recurrent weights and biases of each direction."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [tuple(getattr(self, f"{name}_{end}") for name in names) for end in ("l0", "l0_reverse")]

    def _is_small(self, sets: int) -> bool:
        """Whether torch is faster for this size on a CPU."""
        if torch.is_grad_enabled():
            return sets * self.hidden_size < MANY
        return self.hidden_size < WIDE or sets <= FEW

    def _padded(self, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        """Process padded sets; padding after the real elements changes no state, and no size is needed on the host."""
        place_N = torch.arange(x_BNE.shape[1], device=x_BNE.device)
        size_B1 = size_B.to(x_BNE.device)[:, None]
        mirrored_BN = (size_B1 - 1 - place_N).where(place_N < size_B1, place_N)
        forth_BNH = read_padded(x_BNE, *self.weights[0])
        back_BNH = taken(read_padded(taken(x_BNE, mirrored_BN), *self.weights[1]), mirrored_BN)
        state_BNRH = torch.stack((forth_BNH, back_BNH), dim=2)
        last_BRH = torch.cat((taken(forth_BNH, size_B1 - 1), back_BNH[:, :1]), dim=1)
        return state_BNRH.masked_fill((place_N >= size_B1)[..., None, None], 0.0), last_BRH.transpose(0, 1)

    def _packed(self, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        """Process a `PackedSequence`, packed by one row selection, with torch's GRU."""
        order = _Order(size_B, x_BNE.shape[1])
        row_S, x_AE = order.row_RS[0], x_BNE.flatten(0, 1)
        packed = PackedSequence(
            x_AE.index_select(0, row_S), torch.tensor(order.active), order.set_B, order.rank_B
        )
        states, last_RBH = nn.GRU.forward(cast("nn.GRU", self), packed)
        state_AC = states.data.new_zeros(len(x_AE), states.data.shape[1])
        state_BNC = state_AC.index_copy(0, row_S, states.data).unflatten(0, x_BNE.shape[:2])
        return state_BNC.unflatten(-1, (2, self.hidden_size)), last_RBH


def taken(x_BNE: Tensor, place_BM: Tensor) -> Tensor:
    """Return the elements at some positions `(B, M, E)`; `take_along_dim` would fix the sizes of an exported graph."""
    return x_BNE.gather(1, place_BM[..., None].expand(-1, -1, x_BNE.shape[2]))


def read_padded(x_BNE: Tensor, *weights: Tensor) -> Tensor:
    """Return the states `(B, N, H)` of one direction: one call of torch's GRU, or step by step under tracing.

    Args:
        x_BNE: the elements, padding after the real ones.
        weights: of the direction, from `GRU.weights`.
    """
    if traced():
        return read_steps(x_BNE, *weights)
    start_1BH = x_BNE.new_zeros(1, x_BNE.shape[0], weights[1].shape[1])
    training = torch.is_grad_enabled()  # else cuDNN gives no gradients in evaluation
    return torch.gru(x_BNE, start_1BH, weights, True, 1, 0.0, training, False, True)[0]


def read_steps(
    x_BNE: Tensor, of_input_GE: Tensor, of_state_GH: Tensor, input_G: Tensor, state_G: Tensor
) -> Tensor:
    """Return the states `(B, N, H)` of one direction, in operations that all torch transforms support."""
    gates_BNG = F.linear(x_BNE, of_input_GE, input_G)
    state_BH, states = gates_BNG.new_zeros(x_BNE.shape[0], of_state_GH.shape[1]), []
    for gates_BG in gates_BNG.unbind(1):
        r_BH, z_BH, new_BH = gates_BG.chunk(3, dim=1)
        of_r_BH, of_z_BH, of_new_BH = F.linear(state_BH, of_state_GH, state_G).chunk(3, dim=1)
        new_BH = torch.tanh(new_BH + torch.sigmoid(r_BH + of_r_BH) * of_new_BH)
        state_BH = new_BH + torch.sigmoid(z_BH + of_z_BH) * (state_BH - new_BH)
        states.append(state_BH)
    return torch.stack(states, dim=1)


class _Order:
    """The elements ordered by step: the first of every set, then the second, and so on; larger sets first.

    Attributes:
        active: number of sets with an element at each step.
        set_B: the sets, larger ones first.
        rank_B: position of each set in `set_B`.
        row_RS: per direction, the index in B x N of each of the S elements of all sets.
        last_B: index in S of each set's last element.
    """

    def __init__(self, size_B: Tensor, longest: int) -> None:
        size_B = size_B.cpu()
        sorted_B, self.set_B = size_B.sort(descending=True, stable=True)
        self.rank_B = self.set_B.argsort()
        step_TB = torch.arange(int(sorted_B[0]))[:, None].expand(-1, len(size_B))
        real_TB = step_TB < sorted_B
        self.active: list[int] = real_TB.sum(dim=1).tolist()
        steps = (step_TB, sorted_B - 1 - step_TB)
        self.row_RS = torch.stack([(self.set_B * longest + step)[real_TB] for step in steps])
        first_T = torch.tensor([0, *accumulate(self.active)])
        self.last_B = first_T[size_B - 1] + self.rank_B


class _Read(torch.autograd.Function):
    """`(x_BNE, order, *weights)` -> the outputs of `GRU.forward`."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x_BNE: Tensor, order: _Order, *weights: Tensor) -> tuple[Tensor, Tensor]:
        sets, longest, inputs = x_BNE.shape
        x_AE = x_BNE.reshape(-1, inputs)
        hidden = weights[1].shape[1]
        state_ARH = x_BNE.new_zeros(len(x_AE), len(order.row_RS), hidden)
        last, kept = [], []
        for number, row_S in enumerate(order.row_RS):
            direction = Direction(order.active, *weights[4 * number : 4 * number + 4])
            state_SH, tensors = direction.read(x_AE[row_S])
            state_ARH[row_S, number] = state_SH
            last.append(state_SH[order.last_B])
            kept.append(tensors)
        ctx.order, ctx.shape, ctx.counts = order, x_BNE.shape, [len(tensors) for tensors in kept]
        ctx.save_for_backward(*weights, *(tensor for tensors in kept for tensor in tensors))
        return state_ARH.unflatten(0, (sets, longest)), torch.stack(last)

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad_BNRH: Tensor, grad_RBH: Tensor) -> tuple[Tensor | None, ...]:
        order, (sets, longest, inputs) = ctx.order, ctx.shape
        ways = len(order.row_RS)
        weights, kept = ctx.saved_tensors[: 4 * ways], iter(ctx.saved_tensors[4 * ways :])
        grad_x_AE = grad_BNRH.new_zeros(sets * longest, inputs)
        grad_weights: list[Tensor] = []
        for number, row_S in enumerate(order.row_RS):
            direction = Direction(order.active, *weights[4 * number : 4 * number + 4])
            grad_SH = grad_BNRH[:, :, number].reshape(sets * longest, -1)[row_S]
            grad_SH[order.last_B] += grad_RBH[number]
            tensors = [next(kept) for _ in range(ctx.counts[number])]
            grad_x_SE, *of_weights = direction.back(grad_SH, tensors)
            grad_x_AE.index_add_(0, row_S, grad_x_SE)
            grad_weights += of_weights
        return grad_x_AE.view(sets, longest, inputs), None, *grad_weights
