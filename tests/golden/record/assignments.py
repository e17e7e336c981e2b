"""Record aggregators that assign elements to learned centres."""

from __future__ import annotations

import sys

import torch
from recording import Family, Repository
from tensorflow_by_torch import imports_of_youtube8m, tensorflow
from torch import Tensor, nn
from torch.nn.functional import normalize


def netvlad(repository: Repository) -> None:
    """Record NetVLAD."""
    kind = repository.load("loupe").NetVLAD
    with repository.part("netvlad", "loupe.py", "NetVLAD") as part:
        module = kind(3, 8)
        with torch.no_grad():
            module.batch_norm.running_var.fill_(1 - module.batch_norm.eps)
        norm = ("batch_norm.weight", "batch_norm.running_mean", "batch_norm.running_var")
        what = "3 clusters, elements of unit length; a batch norm that only adds a bias; (D, K) flattened, of length 1"
        part.case(
            "plain", what, module, lambda x: module(normalize(x, dim=-1)), x=part.normal(3, 7, 8), still=norm
        )


def salad(repository: Repository) -> None:
    """Record SALAD."""
    kind = repository.load("models.aggregators.salad").SALAD
    with repository.part("salad", "models/aggregators/salad.py", "SALAD") as part:
        module = kind(8, 3, 8, 8)
        module.token_features[0], module.token_features[2] = nn.Linear(8, 6), nn.Linear(6, 8)
        for layers, width in ((module.cluster_features, 8), (module.score, 3)):
            layers[0], layers[3] = nn.Conv2d(8, 6, 1), nn.Conv2d(6, width, 1)

        def call(x: Tensor, **token: Tensor) -> Tensor:
            return module((x.transpose(1, 2)[..., None], token["global"]))

        inputs = {"x": part.normal(3, 9, 8), "global": part.normal(3, 8)}
        what = "3 clusters as wide as the elements, hidden layers of 6; the token, then (D, K) flattened, of length 1"
        part.case("plain", what, module, call, **inputs)


def otke(repository: Repository) -> None:
    """Record the optimal transport kernel embedding."""
    kind = repository.load("otk.layers").OTKernel
    with repository.part("otke", "otk/layers.py, otk/sinkhorn.py", "OTKernel") as part:
        for name, log_domain in (("plain", False), ("log", True)):
            module = kind(8, 3, eps=0.5, max_iter=10, log_domain=log_domain)
            x, mask = part.sets(7, 4, 1, dim=8)
            what = f"3 references, elements of unit length{', in the logarithm' if log_domain else ''}"
            part.case(
                name, what, module, lambda x, mask, m=module: m(normalize(x, dim=-1), mask), x=x, mask=mask
            )


def nextvlad(repository: Repository) -> None:
    """Record NeXtVLAD, with TensorFlow's functions computed by torch."""
    sys.modules["frame_level_models"] = imports_of_youtube8m()
    file = repository.load("nextvlad")
    with repository.part(
        "nextvlad", "nextvlad.py", "NeXtVLAD, TensorFlow's functions computed by torch"
    ) as part:
        for name, training in (("kept", False), ("training", True)):
            module = nn.ParameterDict(
                {
                    "cluster_weights": part.normal(16, 8) / 4,
                    "cluster_weights2": part.normal(1, 4, 2),
                    "hidden1_weights": part.normal(8, 8),
                    "hidden1_biases": part.normal(8),
                }
            )
            module.fully_connected, module.fully_connected_1 = nn.Linear(8, 16), nn.Linear(16, 4)
            module.cluster_bn, module.vlad_bn = (nn.BatchNorm1d(8, eps=1e-3) for _ in range(2))

            def call(x: Tensor, mask: Tensor, module: nn.Module = module) -> Tensor:
                file.tf = tensorflow(module, (module.fully_connected, module.fully_connected_1))
                file.slim = file.tf.slim
                vlad = file.NeXtVLAD(8, x.shape[1], 2, groups=4).forward(x, mask.float())
                return vlad @ module["hidden1_weights"] + module["hidden1_biases"]

            x, mask = part.sets(*((7, 7, 7) if training else (7, 4, 1)), dim=8)
            what = f"2 clusters, 4 groups, statistics of {'the batch' if training else 'training'}; then a linear map"
            part.case(name, what, module, call, x=x, mask=mask, training=training)


def main() -> None:
    """Record all."""
    family = Family("assignments")
    with family.repository("antoine77340/Mixture-of-Embedding-Experts", "Apache-2.0") as repository:
        netvlad(repository)
    with family.repository("serizba/salad", "GPL-3.0") as repository:
        salad(repository)
    with family.repository("claying/OTK", "none stated") as repository:
        otke(repository)
    with family.repository("linrongc/youtube-8m", "Apache-2.0") as repository:
        nextvlad(repository)
    family.write()


if __name__ == "__main__":
    main()
