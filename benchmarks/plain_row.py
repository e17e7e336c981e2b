"""`python -m benchmarks.plain_row FOLDER`: a row of a comparison as a careful user would write it in torch.

It trains the model of `coco_mini_dinov2_minilm` with mean pooling, keeps the best epoch on the validation split, scores
the test split with it, and prints the sum of its recalls; without a registry, a store, a log or a restart.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

EPOCHS, BATCH, WIDTH, WARMUP, RATE = 6, 128, 384, 50, 2e-3


class Sets:
    """Sets of vectors in a file: `(P, F)` float16, one set after another, and the first row of each."""

    def __init__(self, path: Path) -> None:
        stored = np.load(path)
        self.x_PF, self.first_S = torch.from_numpy(stored["x"]), stored["first"]

    def padded(self, set_B: np.ndarray, keep: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return `(B, N, F)` and the mask `(B, N)` of some sets; `keep`: probability of keeping a vector."""
        rows = [torch.arange(self.first_S[s], self.first_S[s + 1]) for s in set_B]
        if keep < 1:
            kept = [row[torch.rand(len(row)) < keep] for row in rows]
            rows = [some if len(some) else row for some, row in zip(kept, rows, strict=True)]
        row_BN = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        mask_BN = row_BN >= 0
        return self.x_PF[row_BN.clamp(min=0)].float(), mask_BN


class Model(nn.Module):
    """VSE-infinity's image encoder on standardised features, a linear map of texts, and means."""

    def __init__(self, mean_F: Tensor, std_F: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean_F", mean_F)
        self.register_buffer("std_F", std_F)
        self.fc, self.text = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down, self.norm = nn.Linear(WIDTH, WIDTH // 2), nn.BatchNorm1d(WIDTH // 2)
        self.up = nn.Linear(WIDTH // 2, WIDTH)

    def images(self, x_BNF: Tensor, mask_BN: Tensor) -> Tensor:
        x_RF = (x_BNF[mask_BN] - self.mean_F) / self.std_F
        return pooled(self.fc(x_RF) + self.up(self.norm(self.down(x_RF)).relu()), mask_BN)

    def texts(self, x_BLF: Tensor, mask_BL: Tensor) -> Tensor:
        return pooled(self.text(x_BLF[mask_BL]), mask_BL)


def pooled(x_RD: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the means `(B, D)` of the sets whose elements are `(R, D)`, scaled to length 1."""
    set_R = mask_BN.nonzero()[:, 0]
    total_BD = x_RD.new_zeros(len(mask_BN), x_RD.shape[1]).index_add_(0, set_R, x_RD)
    return nn.functional.normalize(total_BD / mask_BN.sum(dim=1, keepdim=True), dim=1)


@torch.inference_mode()
def recall_sum(model: Model, images: Sets, texts: Sets, image_S: np.ndarray, image_T: np.ndarray) -> float:
    """Return the sum of R@1, 5 and 10 of both directions, in percent.

    Args:
        model: the model.
        images, texts: all sets.
        image_S: the images of the split.
        image_T: the image of each text.
    """
    model.eval()
    text_C = np.flatnonzero(np.isin(image_T, image_S))
    of_C = torch.from_numpy(np.searchsorted(image_S, image_T[text_C]))
    image_SD, text_CD = (
        torch.cat([encode(*sets.padded(some_B)) for some_B in np.array_split(every, -(-len(every) // 256))])
        for encode, sets, every in ((model.images, images, image_S), (model.texts, texts, text_C))
    )
    sim_SC = image_SD @ text_CD.T
    own_C = sim_SC[of_C, torch.arange(len(of_C))]
    of_text_C = (sim_SC > own_C).sum(dim=0)
    best_S = torch.full((len(image_S),), -math.inf).scatter_reduce(0, of_C, own_C, "amax")
    of_image_S = (sim_SC > best_S[:, None]).sum(dim=1)
    ranks = (of_image_S, of_text_C)
    return sum(100 * float((rank < k).float().mean()) for rank in ranks for k in (1, 5, 10))


def main() -> None:
    """Train, validate after each epoch, and test the best."""
    folder = Path(sys.argv[1])
    images, texts, splits = (
        Sets(folder / "images.npz"),
        Sets(folder / "texts.npz"),
        np.load(folder / "splits.npz"),
    )
    image_T = splits["image"]
    trained_T = np.flatnonzero(np.isin(image_T, splits["train"]))
    x_PF = images.x_PF[: images.first_S[splits["train"][-1] + 1]].float()
    torch.manual_seed(0)
    model, best = Model(x_PF.mean(dim=0), x_PF.std(dim=0)), -math.inf
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, fused=True)
    steps, step = EPOCHS * (len(trained_T) // BATCH), 0
    for _ in range(EPOCHS):
        model.train()
        order = torch.randperm(len(trained_T)).numpy()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            text_B = trained_T[order[start : start + BATCH]]
            rate = RATE * min(1.0, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate
            sim_BB = (
                model.images(*images.padded(image_T[text_B], 0.8)) @ model.texts(*texts.padded(text_B, 0.8)).T
            )
            of_B = torch.arange(BATCH)
            loss = sum(nn.functional.cross_entropy(each / 0.1, of_B) for each in (sim_BB, sim_BB.T)) / 2
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            step += 1
        score = recall_sum(model, images, texts, splits["val"], image_T)
        if score > best:
            best = score
            torch.save(model.state_dict(), folder / "best.pt")
        torch.save([model.state_dict(), optimizer.state_dict()], folder / "last.pt")
        print(f"val {score:.1f}", flush=True)
    model.load_state_dict(torch.load(folder / "best.pt"))
    print(f"test {recall_sum(model, images, texts, splits['test'], image_T):.1f}")


if __name__ == "__main__":
    main()
