"""Record poolings by transformer blocks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from recording import Family, Repository
from torch import Tensor, nn
from torch.func import functional_call


def set_transformer_pp(repository: Repository) -> None:
    """Record the Set Transformer++."""
    file = repository.load("models.set_transformer2", without=("torchvision",))
    with repository.part(
        "set_transformer_pp", "models/set_transformer2.py, models/norms.py", "SetTransformer2, set_norm"
    ) as part:
        module = file.SetTransformer2(8, 8, 2, dim_hidden=8, norm="set_norm", sample_size=7)
        isabs = (file.ISAB(8, 8, 2, 3, sample_size=7, norm="set_norm") for _ in range(2))
        module.enc = file.MySequential(*isabs, module.enc[-1])
        sab = file.SAB(8, 8, 2, norm="none", sample_size=1)
        module.dec = file.MySequential(file.PMA(8, 2, 2), sab, file.MyLinear(8, 8))

        def call(x: Tensor) -> Tensor:
            return module(x, None)

        what = "2 seeds, 3 points, 2 heads; without the first map, and without the last two of its three SABs"
        part.case("plain", what, module, call, x=part.normal(3, 7, 8))


def self_query(repository: Repository) -> None:
    """Record adaptive pooling with a query from the set."""
    repository.stand_in("pooling.nn")  # importing the package itself registers its environments
    sys.modules["pooling.nn.attention"] = repository.load("nn.attention")
    kind = repository.load("nn.pool").AdaPool
    with repository.part("self_query", "pooling/nn/pool.py, pooling/nn/attention.py", "AdaPool") as part:
        for name, at in (("mean", None), ("cls", 0)):
            module = kind(query_idx=at, dim_hidden=8, num_heads=2)
            what = f"2 heads; the {'mean' if at is None else 'first element'} asks"
            part.case(name, what, module, lambda x, m=module: m(x), x=part.normal(3, 7, 8))


def transmil(repository: Repository) -> None:
    """Record TransMIL, whose attention is exact with as many landmarks as elements.

    For this, its pseudoinverse needs float64 and many iterations.
    """
    file = repository.load("TransMIL")
    with repository.part("transmil", "models/TransMIL.py", "TransMIL") as part:
        for name, size, landmarks in (("five", 5, 10), ("seven", 7, 10), ("two", 2, 5)):
            module = file.TransMIL(2)
            module._fc1 = module._fc2 = nn.Identity()
            module.cls_token, module.norm = nn.Parameter(part.normal(1, 1, 8)), nn.LayerNorm(8)
            module.pos_layer = file.PPEG(8)
            for layer in (module.layer1, module.layer2):
                layer.norm = nn.LayerNorm(8)
                layer.attn = file.NystromAttention(8, 4, 2, landmarks, pinv_iterations=60, dropout=0.1)

            def call(x: Tensor, module: nn.Module = module) -> Tensor:
                exact = SimpleNamespace(float=lambda: x.double())
                params = {key: parameter.double() for key, parameter in module.named_parameters()}
                return functional_call(module, params, (), {"data": exact})["logits"].float()

            what = f"sets of {size} in a square, width 8, 2 heads; as many landmarks as places, in float64"
            part.case(name, what, module, call, x=part.normal(3, size, 8))


def main() -> None:
    """Record all."""
    family = Family("attentive")
    with family.repository("rajesh-lab/deep_permutation_invariant", "BSD-3-Clause") as repository:
        set_transformer_pp(repository)
    with family.repository("agbrothers/pooling", "MIT", under="pooling") as repository:
        self_query(repository)
    with family.repository("szc19990412/TransMIL", "GPL-3.0", under="models") as repository:
        transmil(repository)
    family.write()


if __name__ == "__main__":
    main()
