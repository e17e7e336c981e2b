"""The loss of a global batch that two workers share is that of one worker, in value and gradient."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
import torch.distributed as dist
from workers import run_workers

from infra.dist import gather, rank, world
from infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from tasks.models.embeddings import Embeddings, l2_normalise

IMAGES, CAPTIONS, K, WIDTH = 6, 2, 3, 8
SIMILARITY_SPECS = ("aligned_mean", "chamfer", "match_probability", "mil", "smooth_chamfer")
OBJECTIVE_SPECS = (
    "triplet(warmup_epochs=0)",
    "triplet(negatives=all, reduction=mean)",
    "triplet(negatives=semi_hard, warmup_epochs=0)",
    "infonce",
    "adopt",
    "adopt(rule=paper, margin=0, positive_in_denominator=False, halve=False)",
)
REGULARISER_SPECS = (
    "mmd(weight=1)",
    "diversity(weight=1)",
    "uniformity(weight=1)",
    "uniformity(weight=1, on=embedding)",
)
CASES = [
    *((similarity, "triplet(warmup_epochs=0)", "") for similarity in SIMILARITY_SPECS),
    *(
        (similarity, objective, "")
        for similarity, objective in itertools.product(("cosine", "smooth_chamfer"), OBJECTIVE_SPECS)
    ),
    *(("smooth_chamfer", "infonce", regulariser) for regulariser in REGULARISER_SPECS),
]


def of_worker(case: tuple[str, str, str]) -> dict[str, torch.Tensor]:
    """Return the loss of the global batch and the gradients that DDP would give, from this worker's share of it."""
    similarity, objective, regulariser = case
    generator = torch.Generator().manual_seed(0)
    share = IMAGES // world()
    mine = slice(rank() * share, (rank() + 1) * share)
    images = torch.randn(IMAGES, K, WIDTH, generator=generator)[mine]
    captions = torch.randn(IMAGES, CAPTIONS, K, WIDTH, generator=generator)[mine].flatten(0, 1)
    item = torch.tensor([3, 1, 4, 1, 5, 9])[mine]  # the second and the fourth are one image, on two workers
    weight = torch.randn(WIDTH, WIDTH, generator=generator).requires_grad_()
    scorer = SIMILARITIES.build(similarity)

    def encode(x_BKD: torch.Tensor) -> Embeddings:
        residual = x_BKD @ weight
        embedding = residual + x_BKD.mean(dim=1, keepdim=True)
        embedding = embedding.mean(dim=1) if similarity == "cosine" else embedding
        return Embeddings(gather(l2_normalise(embedding)), gather(residual))

    visual, text = encode(images), encode(captions)
    row_G = gather(torch.arange(share).repeat_interleave(CAPTIONS) + rank() * share)
    item_Q = gather(item)
    terms = OBJECTIVES.build(objective)(
        scorer(visual.embedding, text.embedding), row_G, item_Q[:, None] == item_Q[row_G], epoch=0.0
    )
    if regulariser:
        terms["loss"] = terms["loss"] + REGULARISERS.build(regulariser)(visual, text)
    terms["loss"].backward()
    gradients = {"weight": weight.grad} | {name: p.grad for name, p in scorer.named_parameters()}
    for gradient in gradients.values():
        if world() > 1:
            dist.all_reduce(gradient)
            gradient /= world()
    return {name: term.detach() for name, term in terms.items()} | {
        f"gradient of {name}": gradient for name, gradient in gradients.items()
    }


def worker(folder: str) -> None:
    torch.save([of_worker(case) for case in CASES], f"{folder}/{rank()}.pt")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory) -> list[list[dict[str, torch.Tensor]]]:
    folder = str(tmp_path_factory.mktemp("workers"))
    run_workers(worker, folder)
    return [torch.load(os.path.join(folder, f"{number}.pt"), weights_only=True) for number in range(2)]


def test_every_part_is_among_the_cases():
    for which, registry in enumerate((SIMILARITIES, OBJECTIVES, REGULARISERS)):
        built_in = {
            name for name in registry.names() if registry.get(name).__module__.startswith(registry.package)
        }
        assert built_in == {case[which].split("(")[0] for case in CASES} - {""}


@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(filter(None, case)) for case in CASES])
def test_two_workers_find_what_one_finds(number, two_workers):
    expected = of_worker(CASES[number])
    assert expected["gradient of weight"].abs().max() > 1e-4
    for found in two_workers:
        torch.testing.assert_close(found[number], expected, atol=1e-5, rtol=1e-5)
