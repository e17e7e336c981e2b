"""Loss and gradient of a global batch are the same for two workers and for one."""

import itertools
import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from polypool.infra.compute.dist import rank, world
from polypool.infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.models.dual_encoder import DualEncoder
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import Embeddings, l2_normalise

IMAGES, CAPTIONS, K, WIDTH = 6, 2, 3, 8
SIMILARITY_SPECS = (
    "aligned_mean",
    "chamfer",
    "match_probability",
    "max_match",
    "maxsim",
    "mil",
    "mms",
    "smooth_chamfer",
    "wti",
)
OBJECTIVE_SPECS = (
    "triplet(warmup_epochs=0)",
    "triplet(negatives=all, reduction=mean)",
    "triplet(negatives=semi_hard, warmup_epochs=0)",
    "infonce",
    "triplet(negatives=adopt_k, warmup_epochs=0)",
    "infonce(temperature=0.07, learned=True)",
    "infonce(negatives=hard(k=3), margin=0.1)",
    "siglip",
    "pcmepp",
    "adopt",
    "adopt(rule=paper, margin=0, positive_in_denominator=False, halve=False)",
)
REGULARISER_SPECS = ("mmd", "diversity", "uniformity", "intra_set_divergence", "global_discriminative")
CASES = [
    *((similarity, "triplet(warmup_epochs=0)", "") for similarity in SIMILARITY_SPECS),
    *itertools.product(["cosine"], OBJECTIVE_SPECS, [""]),
    *(("smooth_chamfer", "infonce", f"{regulariser}(weight=1)") for regulariser in REGULARISER_SPECS),
    ("smooth_chamfer", "infonce", "uniformity(weight=1, on=embedding)"),
    *itertools.product(["csd"], ("pcmepp", "infonce"), ("", "vib(weight=1)")),
]


class Projection(nn.Module):
    """Stub branch: a linear map of sets; returns their mean for single vectors, and Gaussians for `csd`."""

    def __init__(self, similarity: str) -> None:
        super().__init__()
        self.similarity = similarity
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator))

    def forward(self, x_BKD: Tensor, mask_BK: Tensor) -> Embeddings:
        residual_BKD = x_BKD @ self.weight
        vector_BKD = residual_BKD + x_BKD.mean(dim=1, keepdim=True)
        if not mask_BK.all():  # padded to this worker's largest set
            size = int(mask_BK.sum(dim=1).max())
            return Embeddings(l2_normalise((vector_BKD * mask_BK[..., None])[:, :size]))
        if self.similarity == "csd":
            mean_BD = l2_normalise(vector_BKD.mean(dim=1))
            return Embeddings(torch.stack((mean_BD, residual_BKD[:, 0] - 2), dim=1))
        single = self.similarity == "cosine"
        vectors = l2_normalise(vector_BKD.mean(dim=1) if single else vector_BKD)
        return Embeddings(vectors, residual_BKD, x_BKD.mean(dim=1))


def of_worker(case: tuple[str, str, str]) -> dict[str, Tensor]:
    """Return the loss terms of the global batch and all gradients, from this worker's share of it."""
    similarity, objective, regulariser = case
    torch.manual_seed(0)  # similarities may have random initial weights
    generator = torch.Generator().manual_seed(0)
    share = IMAGES // world()
    mine = slice(rank() * share, (rank() + 1) * share)
    images = torch.randn(IMAGES, K, WIDTH, generator=generator)[mine]
    captions = torch.randn(IMAGES, CAPTIONS, K, WIDTH, generator=generator)[mine].flatten(0, 1)
    sizes = [1, 2, 2, 3, 1, 2] if similarity in ("maxsim", "mms", "wti") else [K] * IMAGES
    size_V = torch.tensor(sizes)[mine]
    batch = {
        "visual": images,
        "visual_mask": torch.arange(K) < size_V[:, None],
        "text": captions,
        "text_mask": torch.arange(K) < size_V.repeat_interleave(CAPTIONS)[:, None],
        "item": torch.tensor([3, 1, 4, 1, 5, 9])[mine],  # image 1 is on both workers
        "row": torch.arange(share).repeat_interleave(CAPTIONS),
    }
    branch, added = Projection(similarity), [REGULARISERS.build(regulariser)] if regulariser else []
    model = DualEncoder(
        branch, branch, Similarity.build(similarity, WIDTH), OBJECTIVES.build(objective), added
    )
    parallel = DistributedDataParallel(model, broadcast_buffers=False) if world() > 1 else model
    terms = parallel(batch, epoch=0.0)
    terms["loss"].backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    return {name: term.detach() for name, term in terms.items()} | gradients


def worker(folder: str) -> None:
    torch.save([of_worker(case) for case in CASES], f"{folder}/{rank()}.pt")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory) -> list[list[dict[str, Tensor]]]:
    folder = str(tmp_path_factory.mktemp("workers"))
    run_workers(worker, folder)
    return [torch.load(os.path.join(folder, f"{number}.pt"), weights_only=True) for number in range(2)]


def test_cases_cover_all_built_in_parts():
    for which, registry in enumerate((SIMILARITIES, OBJECTIVES, REGULARISERS)):
        built_in = {
            name for name in registry.names() if registry.get(name).__module__.startswith(registry.package)
        }
        assert built_in == {case[which].split("(")[0] for case in CASES} - {""}


@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(filter(None, case)) for case in CASES])
def test_two_workers_match_loss_and_gradients_of_one(number, two_workers):
    expected = of_worker(CASES[number])
    gradients = {name: x.abs().max() for name, x in expected.items() if name.startswith("gradient of")}
    assert min(gradients.values()) > 1e-4, gradients
    for found in two_workers:
        torch.testing.assert_close(found[number], expected, atol=1e-5, rtol=1e-5)
