"""Record aggregators that weight ranks in slices (projections) of the space."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from recording import Family, Repository
from torch import Tensor
from torchinterp1d import Interp1d


def fsw(repository: Repository) -> None:
    """Record the Fourier sliced-Wasserstein embedding."""
    kind = repository.load("fsw_embedding").FSWEmbedding
    with repository.part("fsw", "src/fswlib/fsw_embedding/fsw_embedding.py", "FSWEmbedding") as part:
        module = kind(8, 8, learnable_slices=True, frequency_init="even", enable_bias=False)
        x, mask = part.sets(7, 4, 1, dim=8)
        part.case(
            "even",
            "even frequencies, learned slices, no bias",
            module,
            lambda x, mask: module(x, mask.float()),
            still=("frequencies",),
            x=x,
            mask=mask,
        )


def pswe(repository: Repository) -> None:
    """Record pooling by sliced-Wasserstein embedding."""
    file = repository.load("pswe")
    untaped = SimpleNamespace(save_for_backward=lambda *tensors: None)
    file.Interp1d = lambda: partial(Interp1d.forward, untaped)  # autograd instead of its custom backward
    with repository.part("pswe", "pswe.py", "PSWE") as part:
        for name, points in (("fewer", 4), ("as_many", 7), ("more", 12)):
            module = file.PSWE(8, points, 8)
            x = part.normal(3, 7, 8)
            still = ("reference", "theta.weight_g")
            part.case(
                name,
                f"{points} points in order, sets of 7",
                module,
                lambda x, m=module: m(x),
                still=still,
                x=x,
            )
        module = file.PSWE(8, 4, 8)
        with torch.no_grad():
            module.reference.copy_(module.reference.flip(0))

        def call(x: Tensor) -> Tensor:
            return module(x)

        part.case("turned", "4 points, the last first", module, call, still=still, x=part.normal(3, 7, 8))


def main() -> None:
    """Record all."""
    family = Family("ranks")
    with family.repository("tal-amir/fswlib", "BSD-3-Clause", under="src/fswlib/fsw_embedding") as repository:
        fsw(repository)
    with family.repository("navid-naderi/PSWE", "none stated") as repository:
        pswe(repository)
    family.write()


if __name__ == "__main__":
    main()
