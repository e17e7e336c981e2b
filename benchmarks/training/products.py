"""The matrix products of a training step alone."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.batches import Batch
from polypool.infra.compute.gru import GRU
from polypool.tasks.models.dual_encoder import DualEncoder


class Products:
    """The products of a step of `coco_region_bigru`, forward and backward, of the shapes that a batch asks for.

    Pads have no part in them. Inputs are random; those of one shape are one tensor.

    Args:
        model: whose widths they have.
        batch: whose sets they have the sizes of.
        tensors: made before, by shape; new ones are added.
    """

    def __init__(self, model: DualEncoder, batch: Batch, tensors: dict[tuple[int, int], Tensor]) -> None:
        self.tensors = tensors
        self.work: list[tuple[Tensor, Tensor, Tensor]] = []
        encoder, (region_B, word_B) = (
            model.visual.encoder,
            (batch[f"{name}_mask"].sum(dim=1) for name in ("visual", "text")),
        )
        regions = int(region_B.sum())
        for linear in (encoder.fc, encoder.down):
            self._linear(regions, *linear.weight.T.shape, back=False)  # stored features need no gradient
        self._linear(regions, *encoder.up.weight.T.shape)
        self._gru(model.text.encoder.rnn, word_B)
        for branch, size_B in ((model.visual, region_B), (model.text, word_B)):
            self._gpo(branch.aggregator, size_B.unique())
        self._linear(len(region_B), model.visual.width, len(word_B))  # the scores

    def __call__(self) -> None:
        """Multiply."""
        for left_MK, right_KN, out_MN in self.work:
            torch.mm(left_MK, right_KN, out=out_MN)

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return sum(2 * left_MK.numel() * right_KN.shape[1] for left_MK, right_KN, _ in self.work)

    def _linear(
        self, rows: int, inputs: int, outputs: int, *, back: bool = True, weight: bool = True
    ) -> None:
        """Add a linear map and its gradients: of the `weight`, and with `back` of the inputs."""
        x_RI, g_RO, w_OI = (
            self._new(*shape) for shape in ((rows, inputs), (rows, outputs), (outputs, inputs))
        )
        self._add(x_RI, w_OI.T)
        if weight:
            self._add(g_RO.T, x_RI)
        if back:
            self._add(g_RO, w_OI)

    def _gru(self, gru: GRU, size_B: Tensor) -> None:
        """Add the maps of all inputs, step by step those of the states, and all gradients of their weights at once."""
        active = [int((size_B > step).sum()) for step in range(int(size_B.max()))]
        inputs, hidden, elements = gru.input_size, gru.hidden_size, sum(active)
        for _ in gru.weights:
            self._linear(elements, inputs, 3 * hidden)
            for count in active[1:]:
                self._linear(count, hidden, 3 * hidden, weight=False)
            later = elements - active[0]
            self._add(self._new(later, 3 * hidden).T, self._new(later, hidden))

    def _gpo(self, gpo: GPO, size_S: Tensor) -> None:
        self._gru(gpo.gru, size_S)
        self._linear(int(size_S.sum()), *gpo.linear.weight.T.shape)

    def _new(self, rows: int, columns: int) -> Tensor:
        return self.tensors.setdefault((rows, columns), torch.randn(rows, columns))

    def _add(self, left_MK: Tensor, right_KN: Tensor) -> None:
        self.work.append((left_MK, right_KN, torch.empty(len(left_MK), right_KN.shape[1])))
