"""Record the pooling of several layers."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from recording import Family, Repository
from torch import Tensor, nn


def layer_fusion(repository: Repository) -> None:
    """Record attentive layer fusion."""
    package = ModuleType("src.tasks")  # without its `__init__`, which imports all tasks
    package.__path__ = [str(repository.root / "src/tasks")]
    sys.modules["src.tasks"] = package
    without = ("loguru", "timm.models.layers", "src.models.thingsvision", "src.tasks.linear_probe")
    file = repository.load("src.tasks.attentive_probe", without=without)
    with repository.part("layer_fusion", "src/tasks/attentive_probe.py", "AttentiveProbeModel") as part:
        for name, training in (("kept", False), ("training", True)):
            module = file.AttentiveProbeModel(12, 3, 5)
            what = (
                f"what its classifier reads, 3 heads, statistics of {'the batch' if training else 'training'}"
            )

            def call(x: Tensor, module: nn.Module = module) -> Tensor:
                return module(x, return_feature_repr=True)[1]

            part.case(name, what, module, call, x=part.normal(4, 7, 12), training=training)


def perceiver(repository: Repository) -> None:
    """Record trainable pooling of the last layer and of all layers."""
    with repository.part(
        "perceiver", "pooling_layers/*LayersTrainablePooling.py", "PerceiverResampler"
    ) as part:
        for name, file, more in (("last", "Last", {}), ("multi", "Multi", {"layers": 9})):
            kind = repository.load(f"pooling_layers.{file}LayersTrainablePooling").PerceiverResampler
            widths = {"hidden_dim": 12, "latent_dim": 12, "cross_dim_head": 5, "num_cross_heads": 3}
            module = kind(dim=12, num_latents_value=4, **widths, **more)
            module.normalize = False
            what = "4 latents, 3 heads of width 5" + (", 9 positions" if more else "")
            part.case(name, what, module, lambda x, m=module: m(x), x=part.normal(3, 7, 12))


def main() -> None:
    """Record both."""
    torch.backends.cuda.sdp_kernel = lambda **_: torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH
    )
    family = Family("layers")
    with family.repository("lciernik/attentive-layer-fusion", "MIT") as repository:
        layer_fusion(repository)
    with family.repository("yixuantt/PoolingAndAttn", "none stated") as repository:
        perceiver(repository)
    family.write()


if __name__ == "__main__":
    main()
