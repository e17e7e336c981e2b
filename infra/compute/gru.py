"""A GRU over sets of different sizes: cuDNN's on a GPU, and on a CPU one that takes little more than its products.

torch's GRU on a CPU goes through the two directions one after the other, and on its way back adds to the gradient of
every weight at every step, which for recurrent weights of 3 x 1024 x 1024 costs as much as the products themselves.
Here the directions go side by side, and each weight's gradient is one product over all steps.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class GRU(nn.GRU):
    """One layer of `torch.nn.GRU`, batch first, whose parameters have the same names, for padded sets.

    Args:
        inputs: width E of the elements.
        hidden: width H of the states of each direction.
        bidirectional: whether a second direction reads from the end.
    """

    def __init__(self, inputs: int, hidden: int, *, bidirectional: bool = True) -> None:
        super().__init__(inputs, hidden, batch_first=True, bidirectional=bidirectional)

    def forward(self, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        """Read every set.

        Args:
            x_BNE: the sets' elements, real ones first.
            size_B: how many are real, at least one of each set; on any device.

        Returns:
            The states `(B, N, R, H)` of R directions, zero in the pads, and each direction's last `(R, B, H)`.
        """
        plain = x_BNE.is_cuda or torch.is_autocast_enabled(x_BNE.device.type)
        if plain or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self._packed(x_BNE, size_B)
        sets, longest, _ = x_BNE.shape
        order = _Order(size_B, longest, directions=len(self.weights))
        read_RSE = x_BNE.reshape(sets * longest, -1).index_select(0, order.row_RS.flatten())
        weights = [weight for direction in self.weights for weight in direction]
        state_RSH = _Recurrence.apply(read_RSE.unflatten(0, order.row_RS.shape), order.active, *weights)
        state_RAH = torch.zeros_like(x_BNE[..., :1]).expand(-1, -1, self.hidden_size)
        state_RAH = state_RAH.reshape(1, sets * longest, -1).repeat(len(state_RSH), 1, 1)
        state_RAH = state_RAH.scatter(1, order.row_RS[..., None].expand_as(state_RSH), state_RSH)
        return state_RAH.unflatten(1, (sets, longest)).permute(1, 2, 0, 3), state_RSH[:, order.last_B]

    @property
    def weights(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Weights and biases of the inputs and of the states, of each direction."""
        ends = ("l0", "l0_reverse")[: 1 + self.bidirectional]
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [tuple(getattr(self, f"{name}_{end}") for name in names) for end in ends]

    def _packed(self, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x_BNE, size_B.cpu(), batch_first=True, enforce_sorted=False)
        states, last_RBH = super().forward(packed)
        state_BNC, _ = pad_packed_sequence(states, batch_first=True, total_length=x_BNE.shape[1])
        return state_BNC.unflatten(-1, (-1, self.hidden_size)), last_RBH


class _Order:
    """The order in which elements are read: first of every set, then second, ...; longer sets first.

    Attributes:
        active: how many sets have an element at each step.
        row_RS: for each direction, where the S elements of all sets lie among B x N.
        last_B: which of the S is each set's last.
    """

    def __init__(self, size_B: Tensor, longest: int, *, directions: int) -> None:
        size_B = size_B.cpu()
        sorted_B, order_B = size_B.sort(descending=True, stable=True)
        step_TB = torch.arange(int(sorted_B[0]))[:, None].expand(-1, len(size_B))
        real_TB = step_TB < sorted_B
        self.active: list[int] = real_TB.sum(dim=1).tolist()
        steps = (step_TB, sorted_B - 1 - step_TB)[:directions]
        self.row_RS = torch.stack([(order_B * longest + step)[real_TB] for step in steps])
        first_T = torch.tensor([0, *accumulate(self.active)])
        self.last_B = first_T[size_B - 1] + order_B.argsort()


class _Recurrence(torch.autograd.Function):
    """`(x_RSE, active, *weights)` -> the states `(R, S, H)`, in the order of reading.

    With r, z the gates and n the candidate of a step, as `torch.nn.GRU` has them: q = W_hn h + b_hn,
    n = tanh(W_in x + b_in + r q), and the next state is n + z (h - n).
    """

    @staticmethod
    def forward(ctx: Any, x_RSE: Tensor, active: list[int], *weights: Tensor) -> Tensor:
        """Read all elements; everything that does not wait for a state is one product."""
        of_input, of_state, input_bias, state_bias = (weights[kind::4] for kind in range(4))
        hidden = of_state[0].shape[1]
        gate_RSG = torch.stack(
            [
                torch.addmm(bias, x_SE, weight.T)
                for bias, x_SE, weight in zip(input_bias, x_RSE, of_input, strict=True)
            ]
        )
        bias_RG = torch.stack(state_bias)
        gate_RSG[..., : 2 * hidden] += bias_RG[:, None, : 2 * hidden]
        q_RSH = bias_RG[:, None, 2 * hidden :].repeat(1, x_RSE.shape[1], 1)
        of_state_RHG = torch.stack(of_state).transpose(1, 2)
        state_RSH = torch.empty_like(q_RSH)
        start, before_RAH = 0, None
        for count in active:
            here = slice(start, start + count)
            gate_RAG, q_RAH, state_RAH = gate_RSG[:, here], q_RSH[:, here], state_RSH[:, here]
            if before_RAH is not None:
                before_RAH = before_RAH[:, :count]
                product_RAG = torch.bmm(before_RAH, of_state_RHG)
                gate_RAG[..., : 2 * hidden] += product_RAG[..., : 2 * hidden]
                q_RAH += product_RAG[..., 2 * hidden :]
            r_RAH, z_RAH, n_RAH = gate_RAG.chunk(3, dim=-1)
            gate_RAG[..., : 2 * hidden].sigmoid_()
            n_RAH.addcmul_(r_RAH, q_RAH).tanh_()
            if before_RAH is None:
                torch.addcmul(n_RAH, z_RAH, n_RAH, value=-1, out=state_RAH)
            else:
                torch.lerp(n_RAH, before_RAH, z_RAH, out=state_RAH)
            start, before_RAH = start + count, state_RAH
        ctx.active = active
        ctx.save_for_backward(x_RSE, gate_RSG, q_RSH, state_RSH, *of_input, *of_state)
        return state_RSH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RSH: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through the steps for the gradients of all gates, then form those of each weight at once."""
        x_RSE, gate_RSG, q_RSH, state_RSH, *weights = ctx.saved_tensors
        of_input, of_state = weights[: len(x_RSE)], weights[len(x_RSE) :]
        hidden = q_RSH.shape[2]
        of_state_RGH = torch.stack(of_state)
        # of n, r, z, q: what inputs made is the first three of them, what states made the last three
        grad_gate_RSC = torch.empty(*q_RSH.shape[:2], 4 * hidden, dtype=q_RSH.dtype)
        end, carry_RAH = q_RSH.shape[1], None
        for step in reversed(range(len(ctx.active))):
            count = ctx.active[step]
            here, before = slice(end - count, end), end - count - ctx.active[step - 1]
            grad_RAH = grad_RSH[:, here].clone()
            if carry_RAH is not None:
                grad_RAH[:, : carry_RAH.shape[1]] += carry_RAH
            r_RAH, z_RAH, n_RAH = gate_RSG[:, here].chunk(3, dim=-1)
            grad_n, grad_r, grad_z, grad_q = grad_gate_RSC[:, here].chunk(4, dim=-1)
            past_RAH = state_RSH[:, before : before + count] if step else torch.zeros_like(grad_RAH)
            through_RAH = grad_RAH * z_RAH
            torch.sub(grad_RAH, through_RAH, out=grad_n)  # grad (1 - z)
            torch.sub(past_RAH, n_RAH, out=grad_z).mul_(grad_n).mul_(z_RAH)
            grad_n.addcmul_(grad_n * n_RAH, n_RAH, value=-1)
            torch.mul(grad_n, r_RAH, out=grad_q)
            torch.sub(1, r_RAH, out=grad_r).mul_(grad_q).mul_(q_RSH[:, here])
            if step:
                carry_RAH = torch.baddbmm(through_RAH, grad_gate_RSC[:, here, hidden:], of_state_RGH)
            end -= count
        return _of_weights(ctx.active, x_RSE, state_RSH, grad_gate_RSC, of_input)


def _of_weights(
    active: list[int], x_RSE: Tensor, state_RSH: Tensor, grad_gate_RSC: Tensor, of_input: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_Recurrence`, from those of n, r, z and q."""
    hidden, first = state_RSH.shape[2], active[0]
    step_S = torch.repeat_interleave(torch.tensor(active))
    past_P = torch.arange(first, len(step_S)) - torch.tensor(active)[step_S[first:] - 1]  # a step before
    grad_x, grad_weights = [], []
    for x_SE, state_SH, grad_SC, weight in zip(x_RSE, state_RSH, grad_gate_RSC, of_input, strict=True):
        grad_input_SG = grad_SC[:, : 3 * hidden]  # n, r, z, where the weights have r, z, n
        grad_x.append(grad_input_SG @ weight.roll(hidden, dims=0))
        grad_weight = (grad_input_SG.T @ x_SE).roll(-hidden, dims=0)
        grad_state_SG = grad_SC[:, hidden:]
        of_states = grad_state_SG[first:].T @ state_SH[past_P]
        bias = grad_SC.sum(dim=0)
        grad_weights += [grad_weight, of_states, bias[: 3 * hidden].roll(-hidden), bias[hidden:]]
    return torch.stack(grad_x), None, *grad_weights
