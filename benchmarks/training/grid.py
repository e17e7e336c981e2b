"""A training step of a ResNet's grid features, fine-tuned from pixels, against transformers' network in plain torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.measure import Measurement, Scale, Size, by_turns
from benchmarks.training.authors import AuthorsStep
from benchmarks.training.paper import per_step
from polypool.encoders.visual.cnn import NETWORKS, STRIDE
from polypool.infra.batches import Batch
from polypool.infra.process.memory import keep_freed_memory
from polypool.infra.registry import ENCODERS
from polypool.pipelines.training.loop.optim import make_optimizer
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.parts import Parts, retrieval_model
from polypool.tasks.run import Data, Optim, Run

NETWORK = "resnet152"


@dataclass(frozen=True, kw_only=True)
class GridSize(Size):
    """Images of `pixels` x `pixels`, and a caption of `words` for each."""

    tiny: ClassVar = {"batch": 2, "pixels": 32, "words": 3, "known": 9, "width": 8, "rounds": 1}
    batch: int = 8
    pixels: int = 256
    words: int = 12
    known: int = 11_000
    width: int = 1024
    rounds: int = 3


class PlainResNet(nn.Module):
    """transformers' ResNet of the same depth, whose statistics stay as they are, as the authors have it."""

    def __init__(self) -> None:
        from transformers import ResNetConfig, ResNetModel

        super().__init__()
        self.net = ResNetModel(ResNetConfig(depths=list(NETWORKS[NETWORK]["depths"])))

    def forward(self, pixels_B3SS: Tensor) -> Tensor:
        """Return the last map `(B, C, H, W)`."""
        return self.net(pixels_B3SS).last_hidden_state

    def train(self, mode: bool = True) -> PlainResNet:
        """Stay in evaluation, which only batch normalisation knows."""
        return super().train(False)


def grid_step(scale: Scale = "full") -> list[Measurement]:
    """Measure forward to optimiser, from pixels that are ready."""
    size = GridSize.of(scale)
    keep_freed_memory()  # as training's workers do; it serves both sides here
    model, batch = _model(size), _batch(size)
    plain = copy.deepcopy(model)
    plain.visual.encoder.cnn = PlainResNet()
    own, other = (sum(p.numel() for p in each.visual.encoder.cnn.parameters()) for each in (model, plain))
    assert own == other, f"{NETWORK} has {own:,} weights, and the reference {other:,}"
    optim = Optim(lr=1e-5, clip=2.0)
    optimizer = make_optimizer(model, optim)

    def step(one: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        model(one, epoch=1.0)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()

    ours, theirs = (per_step(each, [batch]) for each in (step, AuthorsStep(plain, optim)))
    for side in (ours, theirs):
        side(0)
    return [
        Measurement(
            name="grid step / transformers' ResNet",
            measured=f"forward to optimiser, {size.batch} images of {size.pixels} x {size.pixels} through {NETWORK}, "
            f"captions of {size.words} words, float32, on the CPU",
            unit="ms",
            note="Reference: VSE-infinity's arithmetic around transformers' network of as many weights.",
            **by_turns(ours, theirs, rounds=size.rounds).numbers(invert=True),
        )
    ]


def _model(size: GridSize) -> DualEncoder:
    torch.manual_seed(0)
    run = Run(
        data=Data(dataset="random", corpus=""),
        visual=f"cnn(name={NETWORK}, width={size.width}, size={size.pixels})",
        text=f"bigru(width={size.width})",
        aggregator="gpo",
        objective="triplet(margin=0.2)",
        protocol="whole",
    )
    words = {"words": [f"w{number}" for number in range(size.known)]}
    parts = Parts(
        run,
        visual=lambda: ENCODERS.build(run.visual, {}),
        text=lambda: ENCODERS.build(run.text, words),
    )
    model = retrieval_model(run, parts).train()
    assert isinstance(model, DualEncoder)
    return model


def _batch(size: GridSize) -> Batch:
    generator = torch.Generator().manual_seed(0)
    cells = (size.pixels // STRIDE) ** 2
    return {
        "visual": torch.randn(size.batch, 3, size.pixels, size.pixels, generator=generator),
        "visual_mask": torch.ones(size.batch, cells, dtype=torch.bool),
        "text": torch.randint(4, size.known, (size.batch, size.words), generator=generator),
        "text_mask": torch.ones(size.batch, size.words, dtype=torch.bool),
        "item": torch.arange(size.batch),
        "row": torch.arange(size.batch),
    }
