"""Objectives that answer yes or no for every pair: SigLIP's sigmoid loss, PCME++'s matching of distributions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.infra.fields import above, at_least, require
from polypool.infra.registry import OBJECTIVES
from polypool.tasks.objectives.objective import Objective


@OBJECTIVES.register("siglip")
class SigmoidLoss(Objective):
    """A yes or no of every image with every text, `-log(sigmoid(z * (scale * score + bias)))`; z is 1, or -1 for a no.

    Source: Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023 (SigLIP).

    The sum over the matrix is divided by the number of texts, which is that of the pairs. All of `positive_VT` are a
    yes: other captions of an image, and an image drawn twice. The paper's z knows the diagonal alone.

    Scale, as `log_scale`, and `bias` are learned. The bias begins far below zero, since nearly all of the matrix is a
    no, and without it the first steps would only correct that. Both are logged beside the loss.

    Args:
        scale: the first value of the factor on the scores; the paper's is 10.
        bias: the first value of what is added to them; the paper's is -10.
    """

    def __init__(self, *, scale: float = 10.0, bias: float = -10.0) -> None:
        super().__init__()
        require(above(0), scale=scale)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    @property
    def target_gap(self) -> float:
        return math.exp(-float(self.log_scale.detach()))

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        scale = self.log_scale.exp()
        logit_VT = scale * sim_VT + self.bias
        loss = -F.logsigmoid(logit_VT.where(positive_VT, -logit_VT)).sum() / len(row_T)
        return {"loss": loss, "scale": scale.detach(), "bias": self.bias.detach()}


@OBJECTIVES.register("pcmepp")
class PseudoPositiveMatching(Objective):
    """A yes or no of every image with every text, once by what belongs together and once by what is as near.

    Source: Chun, "Improved probabilistic image-text representations" (PCME++), ICLR 2024, sections 2.2 and 2.3, and its
    code.

    The logit of a pair is scale * score + bias, both learned; the score of `csd` is minus the distance. The loss is
    twice the mean binary cross-entropy over the whole matrix, plus `pseudo` times that of two matrices of other
    answers: for each image, and for each text, all are a yes whose scores reach that of one it belongs to. So what
    is not annotated as a match, and what the model finds as near, is pushed away less.

    Where several belong to one image, those count that reach the lowest of their scores: the paper makes a
    pseudo-positive of whatever is as near as a positive, and its code, which looks at the first of several, would have
    the order of a batch matter. The paper has the match once, and its code twice, which is what the published weight of
    the other answers goes with. Left out are mixed samples (MSDA) and the smoothed labels of the code. The third term
    of the paper, the divergence from N(0, I), is the regulariser `vib`.

    To a model that begins from nothing, half of a batch is as near as what belongs together: there a lower `pseudo`
    than the paper's, whose models begin as CLIP, can learn more.

    Scale and bias are logged beside the loss, and how many pseudo-positives an image or text had, `pseudo_positives`,
    averaged over both.

    Args:
        scale: the first value of the factor on the scores.
        bias: the first value of what is added to them.
        pseudo: weight of the answers with pseudo-positives, the paper's alpha; 0 leaves them out.
    """

    def __init__(self, *, scale: float = 5.0, bias: float = 5.0, pseudo: float = 0.1) -> None:
        super().__init__()
        require(above(0), scale=scale)
        require(at_least(0), pseudo=pseudo)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.bias = nn.Parameter(torch.tensor(float(bias)))
        self.pseudo = pseudo

    @property
    def target_gap(self) -> float:
        scale = abs(float(self.scale.detach()))
        return 1 / scale if scale else 0.0

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        logit_VT = self.scale * sim_VT + self.bias
        loss = 2 * _cross_entropy(logit_VT, positive_VT)
        terms = {"scale": self.scale.detach(), "bias": self.bias.detach()}
        if self.pseudo:
            near = [sim_VT >= _lowest_positive(sim_VT, positive_VT, dim=dim) for dim in (1, 0)]
            loss = loss + self.pseudo * sum(_cross_entropy(logit_VT, near_VT) for near_VT in near)
            found = [(near_VT & ~positive_VT).sum() / near_VT.shape[dim] for dim, near_VT in enumerate(near)]
            terms["pseudo_positives"] = (found[0] + found[1]) / 2
        return {"loss": loss, **terms}


def _cross_entropy(logit_VT: Tensor, yes_VT: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logit_VT, yes_VT.to(logit_VT.dtype))


def _lowest_positive(sim_VT: Tensor, positive_VT: Tensor, *, dim: int) -> Tensor:
    """Return the lowest score of what belongs to each row (`dim` 1) or column (`dim` 0), with that axis kept."""
    return sim_VT.detach().masked_fill(~positive_VT, torch.inf).amin(dim=dim, keepdim=True)
