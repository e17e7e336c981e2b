"""Gradients computed in chunks equal those of the whole batch, for every kind of model and task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import make_questions
from role_batches import role_batch, role_model
from small_models import batch_of, small_model
from torch import Tensor, nn

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import average_gradients, rank
from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import TASKS
from polypool.pipelines.training.loop.optim import chunked_gradients
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.models.grad_cache import cached_passes
from polypool.tasks.similarities.vectors import Embeddings

EXACT = {"rtol": 1e-9, "atol": 1e-12}


class Retrieval:
    """Splits batches into chunks like the retrieval adapters."""

    def passes(self, model: nn.Module, batch: Batch, *, epoch: float, chunk: int):
        return cached_passes(model, batch, epoch=epoch, chunk=chunk)

    def loss(self, model: nn.Module, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        return model(batch, epoch=epoch)


def gradients(
    adapter: Any, model: nn.Module, batch: Batch, *, chunk: int, epoch: float = 2.0
) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """Return loss terms and gradients of a batch, in chunks; `chunk=0` computes it whole."""
    model.zero_grad(set_to_none=True)
    model.train()
    samples = len(batch.get("item", batch.get("target")))
    with drawn(Draws(seed=0, step=3, first=rank() * samples, samples=samples)):
        if chunk:
            no = torch.autocast("cpu", enabled=False)
            terms = chunked_gradients(adapter, model, batch, epoch=epoch, chunk=chunk, precision=no)
        else:
            terms = adapter.loss(model, batch, epoch=epoch)
            terms["loss"].backward()
            average_gradients(model.parameters())
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return {name: term.detach() for name, term in terms.items()}, found


def check(adapter: Any, model: nn.Module, batch: Batch, *, chunk: int) -> None:
    whole, cut = (gradients(adapter, model, batch, chunk=size) for size in (0, chunk))
    torch.testing.assert_close(cut[0], whole[0], **EXACT)
    assert cut[1].keys() == whole[1].keys()
    for name, expected in whole[1].items():
        assert (cut[1][name] is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(cut[1][name], expected, **EXACT, msg=name)
    assert max(float(g.abs().max()) for g in whole[1].values() if g is not None) > 1e-4


def pairs(size: int) -> Batch:
    """Random sets with captions; three items are duplicated."""
    generator = torch.Generator().manual_seed(0)
    mask_BN = torch.rand(size, 5, generator=generator) < 0.7
    mask_BN[:, 0] = True
    word_BL = torch.randint(4, 24, (size, 6), generator=generator)
    length_B = torch.randint(1, 7, (size, 1), generator=generator)
    return {
        "visual": torch.randn(size, 5, 6, generator=generator, dtype=torch.float64),
        "visual_mask": mask_BN,
        "text": word_BL,
        "text_mask": torch.arange(6) < length_B,
        "item": torch.arange(size) % (size - 3),
        "row": torch.arange(size),
    }


@pytest.mark.parametrize("chunk", [3, 20])
@pytest.mark.parametrize(
    "changes",
    [
        {"aggregator": "gpo"},
        {"aggregator": "mean", "objective": "triplet(negatives=adopt_k)"},
        {
            "aggregator": "slots(k=3)",
            "similarity": "smooth_chamfer",
            "regularisers": ("diversity(weight=0.1)",),
        },
        {"aggregator": "late", "similarity": "wti"},
        {
            "aggregator": "video_colbert(layers=1, heads=2)",
            "text_aggregator": "late",
            "similarity": "mms",
            "model": "video_colbert",
        },
        {"aggregator": "map(k=4, heads=2)", "model": "matryoshka(vectors='1 2')"},
        {"aggregator": "probabilistic", "objective": "pcmepp", "regularisers": ("vib(weight=0.1)",)},
        {"aggregator": "score_attention(k=1, heads=2)"},
        {"aggregator": "mean", "cross": "cross_modal(heads=2, dropout=0.3)"},
    ],
    ids=lambda changes: changes["aggregator"] + changes.get("cross", "") + changes.get("model", ""),
)
def test_chunked_gradients_match_for_every_model(changes, chunk):
    check(Retrieval(), small_model(**changes), batch_of(0, 7, 20, 3, 30, 12, 9, 41), chunk=chunk)


def by_items(size: int) -> Batch:
    """Items with two captions each."""
    batch = pairs(2 * size)
    for name in ("visual", "visual_mask", "item"):
        batch[name] = batch[name][:size]
    return batch | {"row": torch.arange(size).repeat_interleave(2)}


def test_chunked_gradients_match_for_items_with_captions():
    check(Retrieval(), small_model(aggregator="gpo"), by_items(5), chunk=2)


def test_chunked_gradients_match_for_hgr():
    check(Retrieval(), role_model(dropout=0.4), role_batch([0, 3, 7, 9]), chunk=3)


@pytest.mark.parametrize("side", ["visual", "text"])
def test_frozen_side_is_not_reencoded_for_gradients(side):
    model = small_model(aggregator="mean")
    getattr(model, side).requires_grad_(False)
    batch, calls = pairs(6), []
    encode = getattr(model, f"encode_{side}")
    model.__dict__[f"encode_{side}"] = lambda part: calls.append(part) or encode(part)
    check(Retrieval(), model, batch, chunk=2)
    assert len(calls) <= 1 + 3 + 1


class Noisy(DualEncoder):
    """Draws from torch's generator, like dropout in a library's attention."""

    def encode_visual(self, batch: Batch) -> Embeddings:
        embeddings = super().encode_visual(batch)
        self.seen.append(torch.rand(len(batch["visual"]), 1, dtype=torch.float64))
        return Embeddings(embeddings.vectors * self.seen[-1], None)


def test_second_pass_replays_torch_rng_and_restores_state():
    model = small_model(aggregator="mean")
    model.__class__, model.__dict__["seen"] = Noisy, []
    torch.manual_seed(5)
    gradients(Retrieval(), model, pairs(6), chunk=2)
    assert torch.equal(torch.cat(model.seen[:3]), torch.cat(model.seen[3:]))
    after = torch.rand(3)
    torch.manual_seed(5)
    torch.rand(6, dtype=torch.float64)
    assert torch.equal(after, torch.rand(3))


def vqa(folder: Path) -> tuple[Any, nn.Module, Batch]:
    run = make_questions(folder)
    adapter = TASKS.build(run.task, replace(run, visual="frames(width=8, dropout=0.3)"))
    torch.manual_seed(0)
    model = adapter.model().double()
    batch = adapter.data("train").batch(np.arange(10), seed=0, epoch=0)
    return adapter, model, {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}


def test_chunked_gradients_match_for_vqa(tmp_path):
    check(*vqa(tmp_path), chunk=3)
