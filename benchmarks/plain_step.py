"""A step of VSE-infinity in plain torch, for a GPU: padded sets throughout, without the project's parts.

It has the size of `coco_region_bigru` and one shape of batch, and copies no value to the host, so that the whole step
can be one CUDA graph. `python -m benchmarks.gpu` measures it next to the project's step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, MARGIN, TEMPERATURE, CLIP = 300, 0.2, 0.1, 2.0


def turned(x_BND: Tensor, size_B: Tensor) -> Tensor:
    """Return sets with their elements in reverse order; pads stay where they are, with any value."""
    place_N = torch.arange(x_BND.shape[1], device=x_BND.device)
    place_BN = (size_B[:, None] - 1 - place_N).clamp(min=0)
    return x_BND.gather(1, place_BN[..., None].expand(-1, -1, x_BND.shape[2]))


class TwoWays(nn.Module):
    """The mean of two GRUs, one for each direction."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.there, self.back = (nn.GRU(inputs, hidden, batch_first=True) for _ in range(2))

    def forward(self, x_BND: Tensor, size_B: Tensor) -> Tensor:
        back_BND = turned(self.back(turned(x_BND, size_B))[0], size_B)
        return (self.there(x_BND)[0] + back_BND) / 2


class PlainGPO(nn.Module):
    """Generalised pooling by torch's sort; weights are computed for every size and looked up."""

    def __init__(self, longest: int, positions: int = 32) -> None:
        super().__init__()
        angle_NC = torch.arange(longest)[:, None] / 10_000 ** (torch.arange(0, positions, 2) / positions)
        self.register_buffer("code_NC", torch.stack((angle_NC.sin(), angle_NC.cos()), dim=2).flatten(1))
        self.gru, self.linear = TwoWays(positions, positions), nn.Linear(positions, 1, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        size_S = torch.arange(1, len(self.code_NC) + 1, device=x_BND.device)
        state_SNC = self.gru(self.code_NC.expand(len(size_S), -1, -1), size_S)
        beyond_SN = torch.arange(len(size_S), device=x_BND.device) >= size_S[:, None]
        score_SN = self.linear(state_SNC).squeeze(-1).float() / TEMPERATURE
        weight_SN = score_SN.masked_fill(beyond_SN, -torch.inf).softmax(dim=1)
        weight_BN1 = weight_SN[mask_BN.sum(dim=1) - 1, :, None].to(x_BND.dtype)
        pad_BN1 = ~mask_BN[..., None]
        sorted_BND = x_BND.masked_fill(pad_BN1, -10_000.0).sort(dim=1, descending=True).values
        return (sorted_BND.masked_fill(pad_BN1, 0.0) * weight_BN1).sum(dim=1)


class PlainModel(nn.Module):
    """Regions through a linear map and an MLP, captions through a BiGRU, GPO on both sides."""

    def __init__(self, *, regions: int, dim: int, words: int, length: int, width: int) -> None:
        super().__init__()
        self.fc, self.down, self.up = (
            nn.Linear(dim, width),
            nn.Linear(dim, width // 2),
            nn.Linear(width // 2, width),
        )
        self.norm, self.embed, self.gru = (
            nn.BatchNorm1d(width // 2),
            nn.Embedding(words, WORDS),
            TwoWays(WORDS, width),
        )
        self.visual, self.text = PlainGPO(regions), PlainGPO(length)

    def forward(self, x_BND: Tensor, mask_BN: Tensor, token_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the loss of hardest negatives."""
        hidden_BNH = self.norm(self.down(x_BND).flatten(0, 1)).relu().unflatten(0, mask_BN.shape)
        image_BD = F.normalize(self.visual(self.fc(x_BND) + self.up(hidden_BNH), mask_BN).float(), dim=-1)
        state_BLD = self.gru(self.embed(token_BL), mask_BL.sum(dim=1))
        sim_BB = image_BD @ F.normalize(self.text(state_BLD, mask_BL).float(), dim=-1).T
        pair_B, own_BB = sim_BB.diag(), torch.eye(len(sim_BB), dtype=torch.bool, device=sim_BB.device)
        costs = ((MARGIN + sim_BB - pair_B[:, None]).relu(), (MARGIN + sim_BB - pair_B).relu())
        return sum(
            cost.masked_fill(own_BB, 0.0).amax(dim=axis).sum()
            for axis, cost in zip((1, 0), costs, strict=True)
        )


def plain_step(
    device: torch.device,
    *,
    bfloat16: bool,
    batch: int,
    regions: int,
    dim: int,
    words: int,
    length: int,
    width: int,
) -> Callable[[], Tensor]:
    """Return a training step on one random batch; it returns the loss."""
    torch.manual_seed(0)
    model = PlainModel(regions=regions, dim=dim, words=words, length=length, width=width).to(device).train()
    gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-4, fused=True, capturable=gpu)
    x_BND = torch.randn(batch, regions, dim, device=device)
    token_BL = torch.randint(words, (batch, length), device=device)
    mask_BN, mask_BL = (
        torch.arange(most, device=device) < torch.randint(most // 2, most + 1, (batch, 1), device=device)
        for most in (regions, length)
    )

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss = model(x_BND, mask_BN, token_BL, mask_BL)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.detach()

    return step
