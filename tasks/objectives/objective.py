"""Base class of retrieval objectives: losses on a score matrix with known positives."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """A loss on the scores of the global batch, independent of the number of workers.

    The scores of V images or videos (rows) and T texts (columns) of all workers are gathered already, and every worker
    computes the same loss on the same matrix, so an objective communicates nothing.

    Learned values, such as a temperature, are `nn.Parameter`s created in `__init__`; other state is in buffers
    (`register_buffer`). The objective is a module of the model: its parameters are trained, saved with the weights as
    `objective.<name>`, moved to the device and averaged over workers, and `lr_factors` and `freeze` of a run match the
    prefix `objective.`. Each must get a gradient from `loss` in every epoch. Scoring does not need `objective.<name>`:
    a model file without it can be evaluated.

    It is called outside autocast, with scores in at least float32. Spec strings set its keyword-only parameters::

        @OBJECTIVES.register("scaled_softmax")
        class ScaledSoftmax(Objective):
            def __init__(self, *, scale: float = 10.0) -> None:
                super().__init__()
                self.log_scale = nn.Parameter(torch.tensor(scale).log())

            def forward(self, sim_VT, row_T, positive_VT, *, epoch):
                pair_T, negative_VT = pairs_and_negatives(self.log_scale.exp() * sim_VT, row_T, positive_VT)
                return {"loss": (pair_T.logaddexp(negative_VT.logsumexp(dim=0)) - pair_T).mean()}
    """

    target_gap: float = 0.0
    """Score difference that the loss aims at, such as a margin or a temperature, for detecting collapse at equal
    scores; 0 disables the check."""

    @abstractmethod
    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, all other entries are logged under their names.

        Args:
            sim_VT: scores of every image or video with every text, `(V, T)`, higher for more similar ones. Rows are
                always visual. V = T for batches of pairs, V < T for batches of items with all their texts.
            row_T: the row that each column was drawn with, `(T,)`, int64: its pair is `sim_VT[row_T[t], t]`.
            positive_VT: True where a row and a column match, `(V, T)`, bool; see `batch_positives`. Besides the pairs,
                these are other captions of an item and duplicates of items. They must not be used as negatives. A batch
                may have no negatives at all; the loss and its gradients must then be finite.
            epoch: epochs trained so far, as a fraction: 2.5 is the middle of the third.
        """


def batch_positives(item_V: Tensor, row_T: Tensor) -> Tensor:
    """Return the mask of matching rows and columns of a batch's score matrix, `(V, T)`.

    All captions of an item match every row that shows it, also a caption drawn with another row of the same item.
    Papers and their codes use only the diagonal, and push a duplicate image away from its own captions.

    Args:
        item_V: the index of each row's item in its split, `(V,)`.
        row_T: the row that each column was drawn with, `(T,)`.
    """
    return item_V[:, None] == item_V[row_T][None, :]


def pairs_and_negatives(sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor) -> tuple[Tensor, Tensor]:
    """Split the scores into pairs and negatives.

    Returns:
        Each column's score with its own row `(T,)`, and the negatives `(V, T)`, with positives set to the dtype's
        lowest number. Like -inf it does not affect maxima, hinges and exponentials, but for a batch without negatives
        it gives zero gradients instead of NaN.
    """
    pair_T = sim_VT.gather(0, row_T[None]).squeeze(0)
    return pair_T, sim_VT.masked_fill(positive_VT, lowest(sim_VT))


def lowest(x: Tensor) -> float:
    """Return the lowest finite number of a tensor's dtype."""
    return torch.finfo(x.dtype).min
