"""Record aggregators of multiple instance learning."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from recording import Family, Repository
from torch import Tensor, nn


def clam(repository: Repository) -> None:
    """Record CLAM's attention with and without a gate."""
    file = repository.load("model_clam")
    with repository.part("abmilp_clam", "models/model_clam.py", "CLAM_SB behind its first layer") as part:
        for name, gate in (("gated", True), ("plain", False)):
            module = file.CLAM_SB(gate=gate, embed_dim=8)
            kind = file.Attn_Net_Gated if gate else file.Attn_Net
            module.attention_net = kind(L=8, D=4)
            module.classifiers = nn.Identity()

            def call(x: Tensor, module: nn.Module = module) -> Tensor:
                return torch.cat([module(bag, return_features=True)[-1]["features"] for bag in x])

            what = f"8 channels, an inner width of 4{'' if gate else ', without a gate'}"
            part.case(name, what, module, call, x=part.normal(3, 7, 8))


def dsmil(repository: Repository) -> None:
    """Record both streams of DSMIL."""
    file = repository.load("dsmil")
    with repository.part("dsmil", "dsmil.py", "MILNet") as part:
        module = file.MILNet(file.FCLayer(8, 3), file.BClassifier(8, 3))
        module.b_classifier.q[0], module.b_classifier.q[2] = nn.Linear(8, 4), nn.Linear(4, 4)

        def call(x: Tensor) -> Tensor:
            vectors, linear = [], module.i_classifier.fc[0]
            for bag in x:
                classes, _, _, attended = module(bag)
                best = classes.amax(dim=0) - linear.bias
                along = best[:, None] * linear.weight / linear.weight.square().sum(dim=1, keepdim=True)
                vectors.append((attended[0] + along) / 2)
            return torch.stack(vectors)

        what = (
            "3 classes, queries of width 4; the mean of what the second stream makes of a bag, and of the first "
            "stream's best score, less its bias, along the direction of its weights"
        )
        part.case("plain", what, module, call, x=part.normal(3, 7, 8))


def acmil(repository: Repository) -> None:
    """Record the bag features of ACMIL."""
    file = repository.load("architecture.transformer", without=("einops",))
    with repository.part("acmil", "architecture/transformer.py", "ACMIL_GA.forward_feature") as part:
        sizes = SimpleNamespace(D_feat=8, D_inner=8, n_class=2, n_token=3)
        for name, masked in (("plain", 0), ("masked", 2)):
            module = file.ACMIL_GA(sizes, D=4, n_token=3, n_masked_patch=masked, mask_drop=1.0)
            module.dimreduction = nn.Identity()

            def call(x: Tensor, module: nn.Module = module, masked: int = masked) -> Tensor:
                return torch.cat([module.forward_feature(bag[None], masked > 0) for bag in x])

            what = f"3 branches, an inner width of 4{', the best 2 elements masked' if masked else ''}"
            part.case(name, what, module, call, x=part.normal(3, 7, 8), training=masked > 0)


def main() -> None:
    """Record all."""
    family = Family("instances")
    with family.repository("mahmoodlab/CLAM", "GPL-3.0", under="models") as repository:
        clam(repository)
    with family.repository("binli123/dsmil-wsi", "MIT") as repository:
        dsmil(repository)
    with family.repository("dazhangyu123/ACMIL", "MIT") as repository:
        acmil(repository)
    family.write()


if __name__ == "__main__":
    main()
