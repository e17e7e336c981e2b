"""Record aggregators by queries."""

from __future__ import annotations

import torch
import transformers.modeling_utils
import transformers.pytorch_utils
from recording import Family, Repository
from torch import Tensor, nn


def probes(repository: Repository) -> None:
    """Record the attentive probes that efficient probing compares."""
    without = ("timm.models.vision_transformer", "timm.layers")
    with repository.part("ep", "poolings/ep.py", "EfficientProbing") as part:
        module = repository.load("poolings.ep").EfficientProbing(12, num_queries=4)
        part.case("plain", "4 queries", module, lambda x: module(x), x=part.normal(3, 7, 12))
    with repository.part("aim", "poolings/aim.py", "AttentionPoolingClassifier") as part:
        kind = repository.load("poolings.aim").AttentionPoolingClassifier
        for name, training in (("kept", False), ("training", True)):
            module = kind(12, num_heads=3)
            what = f"statistics of {'the batch' if training else 'training'}"
            part.case(
                name, what, module, lambda x, m=module: m(x), x=part.normal(3, 7, 12), training=training
            )
    with repository.part(
        "map", "poolings/clip/attention_pool.py", "AttentionPoolLatent, SigLIP's head"
    ) as part:
        kind = repository.load("poolings.clip.attention_pool").AttentionPoolLatent
        module = kind(12, num_heads=3, norm_layer=lambda dim: nn.LayerNorm(dim, eps=1e-6))
        part.case(
            "plain", "3 heads, with its layer norm", module, lambda x: module(x), x=part.normal(3, 7, 12)
        )
    with repository.part("cait", "poolings/other_pool.py", "CAPooling") as part:
        module = repository.load("poolings.other_pool", without=without).CAPooling(
            12, num_heads=3, iterations=2
        )
        module.norm.eps = 1e-6
        what = "2 layers, 3 heads, all norms with an epsilon of 1e-6"
        part.case("plain", what, module, lambda x: module(x), x=part.normal(3, 7, 12))
    with repository.part("dino_block", "poolings/dinov2_layers/block.py", "Block") as part:
        block = repository.load("poolings.dinov2_layers.block").Block
        module = nn.ParameterDict({"query": part.normal(12)})
        module.block = block(
            12, num_heads=3, qkv_bias=True, norm_layer=lambda dim: nn.LayerNorm(dim, eps=1e-6)
        )

        def call(x: Tensor) -> Tensor:
            return module.block(torch.cat((module["query"].expand(3, 1, 12), x), dim=1))[:, 0]

        part.case("first", "the row of a query before the elements", module, call, x=part.normal(3, 7, 12))


def simpool(repository: Repository) -> None:
    """Record SimPool."""
    kind = repository.load("sp").SimPool
    with repository.part("simpool", "sp.py", "SimPool") as part:
        for name, gamma, count in (("plain", None, 3), ("power", 2.0, 1), ("power_125", 1.25, 1)):
            module = kind(12, gamma=gamma)
            what = f"gamma={gamma}, of {count} sets; a power takes the smallest number of the batch"
            part.case(
                name, what, module, lambda x, m=module, n=count: m(x).view(n, 12), x=part.normal(count, 7, 12)
            )


def set_transformer(repository: Repository) -> None:
    """Record the Set Transformer and its decoder's pooling."""
    modules = repository.load("modules")
    with repository.part("pma", "modules.py", "PMA, with layer norms") as part:
        module = modules.PMA(12, 3, 2, ln=True)
        part.case("plain", "2 seeds, 3 heads", module, lambda x: module(x), x=part.normal(3, 7, 12))
    with repository.part("set_transformer", "models.py", "SetTransformer, with layer norms") as part:
        kind = repository.load("models").SetTransformer
        module = kind(8, 2, 8, num_inds=3, dim_hidden=8, num_heads=2, ln=True)
        module.dec = nn.Sequential(module.dec[0], module.dec[1], module.dec[3])
        what = "2 seeds, 3 points, 2 heads; without the second of its two SABs"
        part.case("plain", what, module, lambda x: module(x), x=part.normal(3, 7, 8))


def boq(repository: Repository) -> None:
    """Record the bag of queries."""
    boq = repository.load("src.boq")
    with repository.part("boq", "src/boq.py", "BoQ behind its convolution") as part:
        module = boq.BoQ(64, 64, num_queries=3, num_layers=2, row_dim=2)
        module.proj_c = nn.Identity()
        module.norm_input = nn.LayerNorm(8)
        module.boqs = nn.ModuleList(boq.BoQBlock(8, 3, nheads=2) for _ in range(2))

        def call(x: Tensor) -> Tensor:
            return module(x.transpose(1, 2)[..., None])[0]

        what = "width 8, 2 heads, 2 layers of 3 queries, 2 rows; one vector of unit length, (D, K) flattened"
        part.case("plain", what, module, call, x=part.normal(3, 7, 8))


def qformer(repository: Repository) -> None:
    """Record the Q-Former."""
    for name in ("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer"):
        setattr(transformers.modeling_utils, name, getattr(transformers.pytorch_utils, name, None))
    file = repository.load("Qformer", without=("transformers.file_utils",))
    settings = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 48, "encoder_width": 12}
    config = file.BertConfig(
        **settings, num_hidden_layers=2, add_cross_attention=True, cross_attention_freq=1
    )
    config.query_length, config._attn_implementation = 2, "eager"
    with repository.part("qformer", "lavis/models/blip2_models/Qformer.py", "BertLayer of queries") as part:
        module = nn.ParameterDict({"queries": part.normal(1, 2, 12)})
        module.norm = nn.LayerNorm(12, eps=config.layer_norm_eps)
        module.layers = nn.ModuleList(file.BertLayer(config, i) for i in range(2))
        for layer in module.layers:
            del layer.intermediate, layer.output  # used only for texts

        def call(x: Tensor, mask: Tensor) -> Tensor:
            hidden = module.norm(module["queries"]).expand(len(x), -1, -1)
            pads = (1.0 - mask[:, None, None].float()) * -10000.0
            for layer in module.layers:
                hidden = layer(
                    hidden,
                    attention_mask=torch.zeros(len(x), 1, 1, 2),
                    encoder_hidden_states=x,
                    encoder_attention_mask=pads,
                    query_length=2,
                )[0]
            return hidden

        x, mask = part.sets(7, 4, 1, dim=12)
        what = "2 normed queries in 2 layers, each of which attends to the elements; 3 heads"
        part.case("plain", what, module, call, x=x, mask=mask)


def main() -> None:
    """Record all."""
    family = Family("queries")
    with family.repository("billpsomas/efficient-probing", "Apache-2.0") as repository:
        probes(repository)
    with family.repository("billpsomas/simpool", "Apache-2.0") as repository:
        simpool(repository)
    with family.repository("juho-lee/set_transformer", "MIT") as repository:
        set_transformer(repository)
    with family.repository("amaralibey/Bag-of-Queries", "MIT") as repository:
        boq(repository)
    with family.repository(
        "salesforce/LAVIS", "BSD-3-Clause", under="lavis/models/blip2_models"
    ) as repository:
        qformer(repository)
    family.write()


if __name__ == "__main__":
    main()
