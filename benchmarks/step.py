"""A training step of `coco_region_bigru`, forward to optimiser, against the arithmetic of VSE-infinity's code.

In that code, pads pass through the maps of regions and count in batch normalisation, the GRU of captions is torch's,
pooling sorts along the sets and runs its GRU on a row for every set, and AdamW is torch's default: not fused, and on a
CPU one tensor after another.
"""

from __future__ import annotations

import copy
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.gpo import usual_way
from benchmarks.random_data import image_run
from benchmarks.side_by_side import compare, milliseconds, run
from polypool.infra.batches import Batch
from polypool.infra.compute.device import on_device
from polypool.infra.registry import TASKS
from polypool.pipelines.recipes.load import derive
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.tasks.run import Optim, Run
from polypool.tasks.similarities.vectors import l2_normalise

MARGIN, CPU = 0.2, torch.device("cpu")
TINY = {"images": 24, "regions": 5, "dim": 16, "words": 20, "visual": "regions(width=8)"}
TINY |= {"text": "bigru(width=8, embedding=4, min_count=1)", "optim": {"batch": 8}}
FULL = {"images": 768, "regions": 36, "dim": 2048, "words": 11_000, "optim": {"batch": 128}}


class AuthorsStep:
    """Loss, gradients, clipping and AdamW on a copy of a dual encoder's weights."""

    def __init__(self, model: Any, optim: Optim) -> None:
        self.model, self.clip = copy.deepcopy(model).train(), optim.clip
        for part in self.model.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # cuDNN needs one block, which a copy is not
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay
        )

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the weights; return the loss and the norm of its gradient. Features are float32, zero in pads."""
        loss = self._loss(self._images(batch) @ self._captions(batch).T)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return {"loss": loss.detach(), "gradient_norm": norm}

    def _images(self, batch: Batch) -> Tensor:
        x_BNF, mask_BN, encoder = batch["visual"], batch["visual_mask"], self.model.visual.encoder
        hidden_AH = nn.BatchNorm1d.forward(encoder.norm, encoder.down(x_BNF.flatten(0, 1)))
        x_BND = encoder.fc(x_BNF) + encoder.up(hidden_AH.relu()).unflatten(0, mask_BN.shape)
        return l2_normalise(usual_way(self.model.visual.aggregator, x_BND, mask_BN).vectors)

    def _captions(self, batch: Batch) -> Tensor:
        token_BL, mask_BL, encoder = batch["text"], batch["text_mask"], self.model.text.encoder
        packed = pack_padded_sequence(
            encoder.embed(token_BL), mask_BL.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False
        )
        state_BLC, _ = pad_packed_sequence(nn.GRU.forward(encoder.rnn, packed)[0], batch_first=True)
        x_BLD = sum(state_BLC.chunk(2, dim=-1)) / 2
        return l2_normalise(usual_way(self.model.text.aggregator, x_BLD, mask_BL).vectors)

    def _loss(self, sim_BB: Tensor) -> Tensor:
        pair_B, own_BB = sim_BB.diag(), torch.eye(len(sim_BB), dtype=torch.bool, device=sim_BB.device)
        of_captions_BB = (MARGIN + sim_BB - pair_B[:, None]).clamp(min=0).masked_fill(own_BB, 0.0)
        of_images_BB = (MARGIN + sim_BB - pair_B[None]).clamp(min=0).masked_fill(own_BB, 0.0)
        return of_captions_BB.max(dim=1).values.sum() + of_images_BB.max(dim=0).values.sum()


def past_warm_up(run: Run, device: torch.device) -> Trainer:
    """Return the trainer of a run at its second epoch, the first in which a triplet loss takes hardest negatives."""
    quiet = {"log": None, "report": lambda metrics, folder: None, "bar": lambda **_: None}
    trainer = Trainer(run, TASKS.build(run.task, run), device=device, **quiet)
    trainer.progress.samples = trainer.order.epoch_samples
    trainer.model.train()
    return trainer


def check(run: Run, device: torch.device, size: int) -> None:
    """Compare a step of both from the same weights, on distinct images whose sets have no pads."""
    trainer = past_warm_up(derive(run, data={"visual_augment": ""}), device)
    authors = AuthorsStep(trainer.model, run.optim)
    _, first_I = np.unique(trainer.data.owner_T, return_index=True)
    batch = on_device(trainer.data.batch(first_I[:size], seed=0, epoch=1), device)
    theirs = authors({**batch, "visual": batch["visual"].float()})
    ours = trainer.train_step(batch)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name].detach(), expected, rtol=1e-4, atol=1e-4)


def made(folder: str, *, quick: bool) -> Run:
    """Return a run on random data of the sizes of COCO's regions."""
    run = image_run(Path(folder), **({"text": "bigru(min_count=1)"} | (TINY if quick else FULL)))
    return derive(run, optim={"precision": "float32"})


def main(*, quick: bool = False, device: torch.device = CPU) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = made(folder, quick=quick)
        trainer, size = past_warm_up(settings, device), settings.optim.batch
        check(settings, device, size)
        batch = on_device(trainer.data.batch(next(iter(trainer.order.batches(0))), seed=0, epoch=1), device)
    authors, wide = AuthorsStep(trainer.model, settings.optim), {**batch, "visual": batch["visual"].float()}
    compare(
        f"step / the authors' arithmetic, {size} sets on {device.type}",
        milliseconds(partial(trainer.train_step, batch)),
        milliseconds(partial(authors, wide)),
        rounds=1 if quick else 7,
    )


if __name__ == "__main__":
    run(main)
