"""A step of VSE-infinity with regions and a BiGRU in the arithmetic of its authors' code."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.pooling.gpo import usual_way
from polypool.encoders.text.bert import Bert
from polypool.encoders.visual.cnn import CNN
from polypool.infra.batches import Batch
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.run import Optim
from polypool.tasks.similarities.vectors import l2_normalise

MARGIN = 0.2


class AuthorsStep:
    """Loss, gradients, clipping and AdamW, from the weights that a model has now, which stays as it is.

    Pads go through the maps of regions and are counted by batch normalisation; the GRU of captions is torch's; pooling
    sorts along the sets and has a row of its GRU for every set; rows and columns of the scores that are not on the
    diagonal are negatives, of which the hardest counts.

    Args:
        model: of `coco_region_bigru`.
        optim: its settings.
    """

    def __init__(self, model: DualEncoder, optim: Optim) -> None:
        self.model, self.clip = copy.deepcopy(model).train(), optim.clip
        for part in self.model.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # as cuDNN wants them, and as a copy is not
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay
        )

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Change the weights; return the loss and the norm of its gradient. Features are float32, zero in pads."""
        loss = self._loss(self._images(batch) @ self._captions(batch).T)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return {"loss": loss.detach(), "gradient_norm": norm}

    def _images(self, batch: Batch) -> Tensor:
        x_BNF, mask_BN = batch["visual"], batch["visual_mask"]
        encoder = self.model.visual.encoder
        if isinstance(encoder, CNN):
            return l2_normalise(usual_way(self.model.visual.aggregator, *encoder(x_BNF, mask_BN)).vectors)
        hidden_AH = nn.BatchNorm1d.forward(encoder.norm, encoder.down(x_BNF.flatten(0, 1)))
        x_BND = encoder.fc(x_BNF) + encoder.up(hidden_AH.relu()).unflatten(0, mask_BN.shape)
        return l2_normalise(usual_way(self.model.visual.aggregator, x_BND, mask_BN).vectors)

    def _captions(self, batch: Batch) -> Tensor:
        token_BL, mask_BL = batch["text"], batch["text_mask"]
        encoder = self.model.text.encoder
        if isinstance(encoder, Bert):
            return l2_normalise(usual_way(self.model.text.aggregator, *encoder(token_BL, mask_BL)).vectors)
        packed = pack_padded_sequence(
            encoder.embed(token_BL), mask_BL.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
        )
        state_BLC, _ = pad_packed_sequence(nn.GRU.forward(encoder.rnn, packed)[0], batch_first=True)
        forward_BLD, backward_BLD = state_BLC.chunk(2, dim=-1)
        x_BLD = (forward_BLD + backward_BLD) / 2
        return l2_normalise(usual_way(self.model.text.aggregator, x_BLD, mask_BL).vectors)

    def _loss(self, sim_BB: Tensor) -> Tensor:
        pair_B = sim_BB.diag()
        own_BB = torch.eye(len(sim_BB), dtype=torch.bool, device=sim_BB.device)
        of_captions_BB = (MARGIN + sim_BB - pair_B[:, None]).clamp(min=0).masked_fill(own_BB, 0.0)
        of_images_BB = (MARGIN + sim_BB - pair_B[None]).clamp(min=0).masked_fill(own_BB, 0.0)
        return of_captions_BB.max(dim=1).values.sum() + of_images_BB.max(dim=0).values.sum()
