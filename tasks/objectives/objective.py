"""The base class of retrieval objectives: losses of a score matrix, given which of its entries belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """What training minimises: a function of the scores of a batch, written once for all workers.

    An objective sees the global batch. V images or videos and T texts of all workers have been scored, row by column,
    and every worker computes the same loss of the same matrix; so an objective gathers nothing.

    What it learns, such as a temperature, is a `nn.Parameter` made in `__init__`, and what it only keeps is a buffer
    (`register_buffer`). It is a module of the model: its parameters are trained, saved with the weights as
    `objective.<name>`, moved to the device and averaged over workers, and `lr_factors` and `freeze` of a run take the
    prefix `objective.`. Each of them must get a gradient from `loss` in every epoch. `objective.<name>` is not needed
    to score: a model file without it can still be evaluated.

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
    """The difference of scores that the loss aims at, such as a margin or a temperature; 0 if training does not get
    stuck at equal scores, which is then not checked."""

    @abstractmethod
    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return scalars: `loss` is minimised, every other entry is logged under its name.

        Args:
            sim_VT: scores of every image or video with every text, `(V, T)`, higher for what is more alike. Rows are
                always visual. Where a batch is made of pairs, V = T; where of items with all their texts, V < T.
            row_T: the row that each column was drawn with, `(T,)`, int64: its pair is `sim_VT[row_T[t], t]`.
            positive_VT: True where a row and a column belong together, `(V, T)`, bool; see `batch_positives`. Beside
                the pairs, these are the other captions of an item and items that were drawn twice. Such an entry is
                never to be treated as a negative. There may be no negatives at all, and then the loss and its
                gradients must still be finite.
            epoch: epochs trained so far, as a fraction: 2.5 is the middle of the third.
        """


def batch_positives(item_V: Tensor, row_T: Tensor) -> Tensor:
    """Return which rows and columns of a batch's score matrix belong together, `(V, T)`, True where they do.

    All captions of an item belong to every row that shows it, and so does a caption that is drawn with another row of
    the same item: they are never negatives of each other. Papers and their codes know the diagonal alone, and push an
    image that was drawn twice away from its own captions.

    Args:
        item_V: the number of each row's item in its split, `(V,)`.
        row_T: the row that each column was drawn with, `(T,)`.
    """
    return item_V[:, None] == item_V[row_T][None, :]


def pairs_and_negatives(sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor) -> tuple[Tensor, Tensor]:
    """Split the scores by the batch's pairs.

    Returns:
        Each column's score with its own row `(T,)`, and the negatives `(V, T)`, in which positives have become the
        dtype's lowest number. That counts for nothing in maxima, hinges and exponentials, as -inf does, but where a
        batch has no negatives at all it leaves gradients zero and not NaN.
    """
    pair_T = sim_VT.gather(0, row_T[None]).squeeze(0)
    return pair_T, sim_VT.masked_fill(positive_VT, lowest(sim_VT))


def lowest(x: Tensor) -> float:
    """Return the lowest finite number of a tensor's dtype."""
    return torch.finfo(x.dtype).min
