"""Record how the states of causal text encoders are pooled."""

from __future__ import annotations

import torch
from recording import Family, Repository
from torch import Tensor, nn


def sentence_pooling(repository: Repository) -> None:
    """Record the last token, and the mean weighted by positions."""
    repository.stand_in("sentence_transformers", "sentence_transformers.models.Module")
    pooling = repository.load("Pooling").Pooling
    for ours, mode in (("last", "lasttoken"), ("position_mean", "weightedmean")):
        with repository.part(ours, "sentence_transformers/models/Pooling.py", f"Pooling by {mode}") as part:
            module = pooling(8, mode)

            def call(x: Tensor, mask: Tensor, module: nn.Module = module) -> Tensor:
                features = {"token_embeddings": x, "attention_mask": mask.long()}
                return module(features)["sentence_embedding"]

            x, mask = part.sets(7, 4, 1, dim=8)
            part.case("right", "pads on the right", None, call, x=x, mask=mask)
            if ours == "last":
                x, mask = part.sets(7, 4, 1, dim=8)
                part.case("left", "pads on the left", None, call, x=x, mask=mask.flip(1))


def latent_attention(repository: Repository) -> None:
    """Record the pooling of NV-Embed."""
    package = repository.root.name  # the file has relative imports, so it needs a package
    without = ("datasets", f"{package}.configuration_nvembed")
    file = repository.load(f"{package}.modeling_nvembed", without=without)
    with repository.part("latent_attention", "modeling_nvembed.py", "LatentAttentionModel") as part:
        for name, latents, heads, width in (("few", 5, 2, 3), ("wide", 3, 2, 8)):
            module = file.LatentAttentionModel.__new__(file.LatentAttentionModel)
            nn.Module.__init__(module)
            attention = file.Attention(8, 8, heads=heads, dim_head=width)
            blocks = file.PreNorm(8, attention, context_dim=8), file.PreNorm(8, file.FeedForward(8))
            module.cross_attend_blocks = nn.ModuleList(blocks)
            module.latents = nn.Parameter(torch.randn(latents, 8))
            module.output_normalize = False
            x, mask = part.sets(7, 4, 1, dim=8)
            what = f"{latents} latents, {heads} heads of width {width}"
            part.case(name, what, module, lambda x, mask, m=module: m(x, mask), x=x, mask=mask)


def main() -> None:
    """Record all."""
    family = Family("causal")
    with family.repository(
        "UKPLab/sentence-transformers", "Apache-2.0", under="sentence_transformers/models"
    ) as repository:
        sentence_pooling(repository)
    # has a copy of the file of nvidia/NV-Embed-v2 on the Hugging Face hub
    name = "The-X-School/Filtering-Techniques"
    with family.repository(name, "CC-BY-NC-4.0", under="..") as repository:
        latent_attention(repository)
    family.write()


if __name__ == "__main__":
    main()
