"""What the retrieval tasks share: a dual encoder, its loss on the global batch, its evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator
from encoders.base import Encoder
from infra.dist import gather
from tasks.objectives.base import Objective
from tasks.similarity import cosine, l2_normalise

Batch = dict[str, Tensor]


class Branch(nn.Module):
    """One modality: inputs -> set -> vector of unit length.

    Args:
        encoder: makes the set.
        aggregator: makes the vector.
    """

    def __init__(self, encoder: Encoder, aggregator: Aggregator) -> None:
        super().__init__()
        self.encoder = encoder
        self.aggregator = aggregator

    def forward(self, x: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, D)` codes."""
        return l2_normalise(self.aggregator(*self.encoder(x, mask_BN)))


class DualEncoder(nn.Module):
    """Two branches that meet in one space.

    Batches hold `visual`, `visual_mask`, `text` and `text_mask`; any of the two pairs may be missing when
    only the other modality is encoded.
    """

    def __init__(self, visual: Branch, text: Branch) -> None:
        super().__init__()
        self.visual = visual
        self.text = text

    def encode_visual(self, batch: Batch) -> Tensor:
        """Return the `(B, D)` codes of images or videos."""
        return self.visual(batch["visual"], batch["visual_mask"])

    def encode_text(self, batch: Batch) -> Tensor:
        """Return the `(B, D)` codes of captions."""
        return self.text(batch["text"], batch["text_mask"])

    def similarity(self, visual_QD: Tensor, text_GD: Tensor) -> Tensor:
        """Return the `(Q, G)` scores of codes."""
        return cosine(visual_QD, text_GD)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the codes of both modalities."""
        return self.encode_visual(batch), self.encode_text(batch)


def retrieval_loss(
    model: nn.Module,
    batch: Batch,
    *,
    objective: Objective,
    similarity: Callable[[Tensor, Tensor], Tensor],
    epoch: float,
) -> dict[str, Tensor]:
    """Score the pairs of the global batch, where pairs of one image (`item`) are never negatives."""
    visual_BD, text_BD = (gather(code) for code in model(batch))
    item_B = gather(batch["item"])
    with torch.autocast(visual_BD.device.type, enabled=False):
        sim_QG = similarity(visual_BD.float(), text_BD.float())
    row_G = torch.arange(len(item_B), device=item_B.device)
    positive_QG = item_B[:, None] == item_B[None, :]
    loss = objective(sim_QG, row_G, positive_QG, epoch=epoch)
    with torch.no_grad():
        pair = sim_QG.diagonal().mean()
        other = sim_QG.masked_fill(positive_QG, 0.0).sum() / (~positive_QG).sum().clamp(min=1)
    return {"loss": loss, "positive_similarity": pair, "negative_similarity": other}


@torch.inference_mode()
def encode(
    encode_batch: Callable[[Batch], Tensor], batches: Iterable[Batch], *, device: torch.device
) -> Tensor:
    """Encode batch after batch and return all codes."""
    return torch.cat([encode_batch({key: x.to(device) for key, x in batch.items()}) for batch in batches])
