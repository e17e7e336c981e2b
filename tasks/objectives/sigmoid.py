"""Binary objectives over all pairs: SigLIP's sigmoid loss, PCME++'s matching of distributions."""

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
    """Binary cross-entropy of every image with every text, `-log(sigmoid(z * (scale * score + bias)))`, z = 1 or -1.

    Source: Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023 (SigLIP).

    The sum over the matrix is divided by the number of texts, which equals the number of pairs. All of `positive_VT`
    have z = 1: other captions of an image, and duplicates of an image, too. In the paper only the diagonal has.

    Scale, as `log_scale`, and `bias` are learned. The bias starts far below zero because nearly all entries are
    negative, and the first steps would otherwise only correct that. Both are logged.

    Args:
        scale: initial factor on the scores; 10 in the paper.
        bias: initial bias of the scores; -10 in the paper.
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
    """Binary cross-entropy of every image with every text, for matches and for pseudo-positives.

    Source: Chun, "Improved probabilistic image-text representations" (PCME++), ICLR 2024, sections 2.2 and 2.3, and its
    code.

    The logit of a pair is scale * score + bias, both learned; the score of `csd` is the negative distance. The loss is
    twice the mean binary cross-entropy over the whole matrix, plus `pseudo` times the mean for each of two matrices of
    pseudo-labels: for each image, and for each text, all entries with at least the score of a match are positive. So
    unannotated matches, which the model finds similar, are pushed away less.

    With several matches of one image, the threshold is the lowest of their scores: the paper makes everything as near
    as a positive a pseudo-positive, and its code, which uses the first of several, would depend on the order of a
    batch. The paper has the matching term once, its code twice, to which the published weight of the pseudo-labels
    refers. Omitted are mixed samples (MSDA) and the code's smoothed labels. The paper's third term, the divergence from
    N(0, I), is the regulariser `vib`.

    For an untrained model half of a batch scores as high as the matches; such a model can train better with a lower
    `pseudo` than the paper's, whose models start from CLIP.

    Scale, bias, and the mean number of pseudo-positives of an image or text (`pseudo_positives`) are logged.

    Args:
        scale: initial factor on the scores.
        bias: initial bias of the scores.
        pseudo: weight of the pseudo-labels, the paper's alpha; 0 disables them.
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
            match_VT = sim_VT.detach().masked_fill(~positive_VT, torch.inf)
            near = [sim_VT >= match_VT.amin(dim=dim, keepdim=True) for dim in (1, 0)]  # by row, by column
            loss = loss + self.pseudo * sum(_cross_entropy(logit_VT, near_VT) for near_VT in near)
            found = [(near_VT & ~positive_VT).sum() / near_VT.shape[dim] for dim, near_VT in enumerate(near)]
            terms["pseudo_positives"] = (found[0] + found[1]) / 2
        return {"loss": loss, **terms}


def _cross_entropy(logit_VT: Tensor, yes_VT: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logit_VT, yes_VT.to(logit_VT.dtype))
