"""One direction of a GRU on a CPU, and its gradient.

With gates r and z and candidate n as in `torch.nn.GRU`: q = W_hn h + b_hn, n = tanh(W_in x + b_in + r q), and the next
state is n + z (h - n).

Elements are ordered by step: the first of every set, then the second of sets that have one, and so on, larger sets
first. So the sets of a step are a prefix of the previous step's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTHS = 16
"""Input widths are padded to a multiple of this: torch's products of other widths take up to 1.6 times as long."""
ROWS = 8
"""Inputs are padded to a multiple of this many rows: oneDNN compiles a kernel for each number of rows."""


class Product:
    """`x (M, K)` -> `x @ weight.T + bias`, without gradient, for one weight and many x.

    With oneDNN the weight is packed once for its kernels. torch's products pack it at every call, which for few rows
    costs as much as the product.

    Args:
        weight_NK: the weight.
        bias_N: added to every row.
    """

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        self.bias_N, self.packed = bias_N, None
        if _has_onednn(weight_NK):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK.contiguous(), 16 * ROWS)
        else:
            self.weight_KN = weight_NK.T

    def __call__(self, x_MK: Tensor, *, plus_MN: Tensor | None = None) -> Tensor:
        """Return a new tensor `(M, N)`: product, bias and `plus_MN`."""
        if self.packed is None:
            added = [part for part in (plus_MN, self.bias_N) if part is not None]
            out_MN = x_MK @ self.weight_KN if not added else torch.addmm(added[0], x_MK, self.weight_KN)
            return out_MN if len(added) < 2 else out_MN.add_(added[1])
        linear = torch.ops.mkldnn._linear_pointwise
        if plus_MN is None:
            return linear(x_MK, self.packed, self.bias_N, "none", [], "")
        return linear.binary(x_MK, plus_MN, self.packed, self.bias_N, "add")


def _has_onednn(weight_NK: Tensor) -> bool:
    return bool(
        weight_NK.device.type == "cpu"
        and weight_NK.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class Direction:
    """The recurrence with one set of weights.

    Args:
        active: number of sets with an element at each of the T steps; S elements in all.
        of_input_GE, of_state_GH: weights; G concatenates r, z and n, H each.
        input_bias_G, state_bias_G: biases.
    """

    def __init__(
        self,
        active: Sequence[int],
        of_input_GE: Tensor,
        of_state_GH: Tensor,
        input_bias_G: Tensor,
        state_bias_G: Tensor,
    ) -> None:
        self.active, self.hidden, self.inputs = active, of_state_GH.shape[1], of_input_GE.shape[1]
        self.of_input_GE = F.pad(of_input_GE, (0, -self.inputs % WIDTHS))
        self.of_state_GH, self.input_bias_G, self.state_bias_G = of_state_GH, input_bias_G, state_bias_G

    def read(self, x_SE: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the states `(S, H)`, and the tensors that `back` needs."""
        gates, real = slice(2 * self.hidden), len(x_SE)
        x_SE = F.pad(x_SE, (0, -self.inputs % WIDTHS, 0, ROWS))
        of_gates_EG, of_n_EH = self.of_input_GE[gates].T, self.of_input_GE[gates.stop :].T
        gate_bias_G = self.input_bias_G[gates] + self.state_bias_G[gates]
        gate_SG = torch.addmm(gate_bias_G, x_SE, of_gates_EG)
        n_SH = torch.addmm(self.input_bias_G[gates.stop :], x_SE, of_n_EH)
        to_gates = Product(self.of_state_GH[gates])
        state_bias_q = self.state_bias_G[gates.stop :]
        to_q = Product(self.of_state_GH[gates.stop :], state_bias_q)
        state_SH = torch.zeros_like(n_SH)
        kept = []
        past = None
        for here, rows in self._steps():
            if past is None:
                gate_AG, q_AH = gate_SG[rows].sigmoid(), state_bias_q.expand(rows.stop, -1)
            else:
                past_AH = state_SH[past.start : past.start + rows.stop - rows.start]
                gate_AG, q_AH = to_gates(past_AH, plus_MN=gate_SG[rows]).sigmoid_(), to_q(past_AH)
            count = here.stop - here.start
            r_AH, z_AH = gate_AG[:count].chunk(2, dim=1)
            n_AH = n_SH[here].addcmul_(r_AH, q_AH[:count]).tanh_()
            if past is None:
                torch.addcmul(n_AH, z_AH, n_AH, value=-1, out=state_SH[here])
            else:
                torch.lerp(n_AH, past_AH[:count], z_AH, out=state_SH[here])
            kept += [gate_AG, q_AH]
            past = here
        return state_SH[:real], [x_SE, n_SH, state_SH, *kept]

    def _steps(self) -> list[tuple[slice, slice]]:
        """Return each step's rows, and these extended into the next step to a multiple of ROWS."""
        steps, start = [], 0
        for count in self.active:
            steps.append((slice(start, start + count), slice(start, start + count + -count % ROWS)))
            start += count
        return steps

    def back(self, grad_SH: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the gradients of the elements, the weights and the biases."""
        x_SE, n_SH, state_SH, *kept = kept
        hidden, real = self.hidden, len(grad_SH)
        grad_SH = F.pad(grad_SH, (0, 0, 0, ROWS))
        grad_n_SH = torch.empty_like(grad_SH)
        grad_state_SG = grad_SH.new_empty(len(grad_SH), 3 * hidden)  # of r, z, q
        grad_state_SG[real:] = 0  # the padding of the last step's rows
        to_past = Product(self.of_state_GH.T)
        steps = self._steps()
        for number in reversed(range(len(steps))):
            here, rows = steps[number]
            gate_AG, q_AH = kept[2 * number : 2 * number + 2]
            count = here.stop - here.start
            r_AH, z_AH = gate_AG.chunk(2, dim=1)
            n_AH = n_SH[here]
            through_AH = grad_SH[rows] * z_AH
            grad_n_AH = grad_n_SH[here]
            grad_r, grad_z, grad_q = grad_state_SG[here].chunk(3, dim=1)
            torch.sub(grad_SH[here], through_AH[:count], out=grad_n_AH)  # grad (1 - z)
            if number:
                past = steps[number - 1][0]
                torch.sub(state_SH[past][:count], n_AH, out=grad_z)
            else:
                torch.neg(n_AH, out=grad_z)
            grad_z.mul_(grad_n_AH).mul_(z_AH[:count])
            torch.ops.aten.tanh_backward.grad_input(grad_n_AH, n_AH, grad_input=grad_n_AH)
            torch.mul(grad_n_AH, r_AH[:count], out=grad_q)
            torch.mul(grad_n_AH, q_AH[:count], out=grad_r)
            torch.ops.aten.sigmoid_backward.grad_input(grad_r, r_AH[:count], grad_input=grad_r)
            if number:
                carry_AH = to_past(grad_state_SG[rows], plus_MN=through_AH)
                grad_SH[past][:count] += carry_AH[:count]
        return self._gradients(x_SE[:real], state_SH, grad_n_SH[:real], grad_state_SG[:real])

    def _gradients(
        self, x_SE: Tensor, state_SH: Tensor, grad_n_SH: Tensor, grad_state_SG: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the results of `back` from the gradients of n, and of r, z and q."""
        hidden, first = self.hidden, self.active[0]
        grad_gate_SG = grad_state_SG[:, : 2 * hidden]
        grad_x_SE = torch.addmm(
            grad_n_SH @ self.of_input_GE[2 * hidden :], grad_gate_SG, self.of_input_GE[: 2 * hidden]
        )
        of_input = torch.cat((grad_gate_SG.T @ x_SE, grad_n_SH.T @ x_SE))
        of_state = grad_state_SG[first:].T @ state_SH[self._past()]
        state_bias = grad_state_SG.sum(dim=0)
        input_bias = torch.cat((state_bias[: 2 * hidden], grad_n_SH.sum(dim=0)))
        return grad_x_SE[:, : self.inputs], of_input[:, : self.inputs], of_state, input_bias, state_bias

    def _past(self) -> Tensor:
        """Return the row of each element's predecessor, except for the first element of every set."""
        active_T = torch.tensor(self.active)
        step_S = torch.repeat_interleave(active_T)
        return torch.arange(self.active[0], len(step_S)) - active_T[step_S[self.active[0] :] - 1]
