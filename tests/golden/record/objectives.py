"""Record losses, similarities and regularisers, which take the scores or the embeddings of a batch."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from recording import Family, Repository
from torch import Tensor, nn
from torch.nn.functional import normalize


def clip(repository: Repository) -> None:
    """Record CLIP's loss and SigLIP's, as functions of a matrix of scores."""
    losses = repository.load("loss")
    with repository.part("infonce", "src/open_clip/loss.py", "ClipLoss") as part:
        module, loss = nn.ParameterDict({"log_scale": torch.tensor(2.0)}), losses.ClipLoss()
        part.case(
            "pairs",
            "scores of 5 pairs",
            module,
            lambda sim: loss(sim, torch.eye(5), module["log_scale"].exp()),
            sim=part.normal(5, 5),
        )
    with repository.part("siglip", "src/open_clip/loss.py", "SigLipLoss") as part:
        start = {"log_scale": torch.tensor(2.0), "bias": torch.tensor(-3.0)}
        pair, sigmoid = nn.ParameterDict(start), losses.SigLipLoss()
        part.case(
            "pairs",
            "scores of 5 pairs",
            pair,
            lambda sim: sigmoid(sim, torch.eye(5), pair["log_scale"].exp(), pair["bias"]),
            sim=part.normal(5, 5),
        )


def pcmepp(repository: Repository) -> None:
    """Record the loss of PCME++, its distance included, and its divergence."""
    kind = repository.load("pcmepp").ClosedFormSampledDistanceLoss
    with repository.part("pcmepp", "pcmepp/criterions/pcmepp.py", "ClosedFormSampledDistanceLoss") as part:
        for name, alpha in (("pairs", 0.0), ("pseudo", 0.3)):
            module = kind(smoothness_alpha=alpha)

            def call(m: nn.Module = module, **inputs: Tensor) -> Tensor:
                sides = [{"mean": inputs[f"mean_{x}"], "std": inputs[f"log_variance_{x}"]} for x in "vt"]
                return m(*sides)[0]

            drawn = {f"{kind}_{x}": part.normal(5, 8) / 3 for kind in ("mean", "log_variance") for x in "vt"}
            for x in "vt":
                drawn[f"log_variance_{x}"] -= 4
            part.case(name, f"5 pairs, smoothness_alpha={alpha}", module, call, **drawn)
    with repository.part("vib", "pcmepp/criterions/pcmepp.py", "kl_divergence") as part:
        module = kind()

        def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
            return module.kl_divergence(mean, log_variance)

        inputs = {"mean": part.normal(5, 8), "log_variance": part.normal(5, 8)}
        part.case("one_side", "5 distributions", None, divergence, **inputs)


def pvse(repository: Repository) -> None:
    """Record the terms of PVSE's loss."""
    kind = repository.load("loss").PVSELoss
    module = kind(SimpleNamespace(num_embeds=2, max_violation=True, margin=0.3))
    with repository.part("mil", "loss.py", "PVSELoss, with max_violation") as part:

        def ranking(visual: Tensor, text: Tensor) -> Tensor:
            return module(*[normalize(x, dim=-1) for x in (visual, text)], None, None)[1]["ranking_loss"]

        inputs = {name: part.normal(5, 2, 8) for name in ("visual", "text")}
        part.case("hardest", "pairs of 2 vectors of unit length, a margin of 0.3", None, ranking, **inputs)
    with repository.part("diversity", "loss.py", "diversity_loss") as part:
        what = "5 sets of 2 vectors"
        part.case("one_side", what, None, lambda x: module.diversity_loss(x), x=part.normal(5, 2, 8))
    with repository.part("mmd", "loss.py", "mmd_rbf_loss, gamma=0.5") as part:
        inputs = {name: part.normal(6, 8) for name in ("visual", "text")}
        part.case(
            "plain",
            "6 vectors of each",
            None,
            lambda visual, text: module.mmd_rbf_loss(visual, text, 0.5),
            **inputs,
        )


def colbert(repository: Repository) -> None:
    """Record ColBERT's late interaction, in both directions."""
    without = ("ujson", "git", "faiss", "colbert.modeling.base_colbert", "colbert.search.strided_tensor")
    score = repository.load("colbert.modeling.colbert", without=without).colbert_score
    config = SimpleNamespace(total_visible_gpus=0, interaction="colbert")
    with repository.part("maxsim", "colbert/modeling/colbert.py", "colbert_score") as part:

        def side(asked: Tensor, sets: Tensor, mask: Tensor) -> Tensor:
            return torch.stack([score(x[None], sets, mask, config=config) / len(x) for x in asked])

        def call(visual: Tensor, text: Tensor) -> Tensor:
            visual, text = normalize(visual, dim=-1), normalize(text, dim=-1)
            real = [torch.ones(x.shape[:2], dtype=torch.bool) for x in (visual, text)]
            return (side(visual, text, real[1]) + side(text, visual, real[0]).T) / 2

        inputs = {"visual": part.normal(3, 5, 8), "text": part.normal(4, 2, 8)}
        what = "the mean of both directions, each over the number of vectors that ask; vectors of unit length"
        part.case("both", what, None, call, **inputs)


def main() -> None:
    """Record all."""
    family = Family("objectives")
    for name, licence, under, record in (
        ("mlfoundations/open_clip", "MIT", "src/open_clip", clip),
        ("naver-ai/pcmepp", "MIT", "pcmepp/criterions", pcmepp),
        ("yalesong/pvse", "MIT", "", pvse),
        ("stanford-futuredata/ColBERT", "MIT", "", colbert),
    ):
        with family.repository(name, licence, under=under) as repository:
            record(repository)
    family.write()


if __name__ == "__main__":
    main()
