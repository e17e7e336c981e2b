"""Record aggregators that relate elements to each other or to a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from recording import Family, Part, Repository
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize


def vsrn(repository: Repository) -> None:
    """Record VSRN's layers and GRU, with elements normalised before and after the layers."""
    kind = repository.load("GCN_lib.Rs_GCN").Rs_GCN
    with repository.part("gcn", "GCN_lib/Rs_GCN.py", "Rs_GCN without batch norm") as part:
        module = nn.ModuleList(kind(8, 8, bn_layer=False) for _ in range(2))
        module.append(nn.GRU(8, 8, batch_first=True))

        def elements(x: Tensor) -> Tensor:
            reasoned = module[1](module[0](normalize(x, dim=-1).transpose(1, 2)))
            return normalize(reasoned.transpose(1, 2), dim=-1)

        what = "2 layers between norms that divide elements by their length; the mean of the elements"
        part.case("mean", what, module[:2], lambda x: elements(x).mean(dim=1), x=part.normal(3, 7, 8))
        what = "the same, then the last state of a GRU"
        part.case("gru", what, module, lambda x: module[2](elements(x))[1][0], x=part.normal(3, 7, 8))


def liwe(repository: Repository) -> None:
    """Record LIWE's self-attention."""
    kind = repository.load("attention").SelfAttention
    with repository.part("self_attention", "lavse/model/layers/attention.py", "SelfAttention") as part:
        module = kind(8, nn.ReLU(), k=1)

        def call(x: Tensor) -> Tensor:
            scaled = {f"query_conv.{name}": p * 8**-0.5 for name, p in module.query_conv.named_parameters()}
            return functional_call(module, scaled, (x.transpose(1, 2),)).mean(dim=2)

        what = "queries as wide as the elements and divided by sqrt(D), the mean of what comes out"
        part.case("plain", what, module, call, x=part.normal(3, 7, 8))


def clip4clip(repository: Repository) -> None:
    """Record both sequential headers of CLIP4Clip."""
    modeling = repository.load("modules.modeling", without=("boto3", "botocore.exceptions", "ftfy", "regex"))

    def similarity(header: str, module: nn.Module) -> Any:
        model = modeling.CLIP4Clip

        def call(x: Tensor, mask: Tensor) -> Tensor:
            own = SimpleNamespace(
                training=False,
                clip=SimpleNamespace(logit_scale=torch.zeros(())),
                lstm_visual=getattr(module, "lstm", None),
                frame_position_embeddings=getattr(module, "positions", None),
                transformerClip=getattr(module, "transformer", None),
            )
            own._mean_pooling_for_similarity_visual = lambda *args: model._mean_pooling_for_similarity_visual(
                own, *args
            )
            texts = torch.eye(x.shape[-1])[:, None]
            return model._loose_similarity(own, texts, x, texts[..., 0], mask.float(), header).T

        return call

    what = "one vector of unit length for each set: scores of texts that are axes"
    with repository.part("sequential", "modules/modeling.py, modules/module_cross.py", "seqTransf") as part:
        for name, scale in (("masked", 1.0), ("faint", 0.003)):
            module = nn.Module()
            module.positions = nn.Embedding(9, 8, _weight=0.3 * scale * part.normal(9, 8))
            module.transformer = modeling.TransformerClip(width=8, layers=2, heads=2)
            x, mask = part.sets(7, 4, 1, dim=8)
            part.case(
                name,
                f"2 layers, 2 heads; elements of a deviation of {scale}; {what}",
                module,
                similarity("seqTransf", module),
                still=("positions.weight",),
                x=scale * x,
                mask=mask,
            )
    with repository.part("seq_lstm", "modules/modeling.py", "seqLSTM") as part:
        module = nn.Module()
        module.lstm = nn.LSTM(8, 8, batch_first=True)
        x, mask = part.sets(7, 4, 1, dim=8)
        part.case("masked", what, module, similarity("seqLSTM", module), x=x, mask=mask)


def xpool(repository: Repository) -> None:
    """Record X-Pool and the text-conditioned poolings that it is compared with."""
    transformer = repository.load("modules.transformer")
    settings = {"embed_dim": 8, "transformer_dropout": 0.0}
    with repository.part("xpool", "modules/transformer.py", "Transformer") as part:
        for heads in (1, 2):
            module = transformer.Transformer(SimpleNamespace(**settings, num_mha_heads=heads))
            what = f"{heads} heads; all texts with all sets, (Q, G, D)"
            inputs = {"x": part.normal(3, 5, 8), "text": part.normal(2, 8)}
            part.case(f"heads{heads}", what, module, lambda x, text, m=module: m(text, x), **inputs)
    pooling = repository.load("modules.baseline_pooling").BaselinePooling
    for name, kind in (("text_topk", "topk"), ("text_softmax", "attention")):
        with repository.part(name, "modules/baseline_pooling.py", f"BaselinePooling({kind})") as part:
            by_text(part, pooling(kind, SimpleNamespace(k=2, attention_temperature=0.1)))


def by_text(part: Part, module: nn.Module) -> None:
    """Record a text-conditioned pooling; texts and elements are normalised first, as its code expects."""

    def call(x: Tensor, text: Tensor) -> Tensor:
        return module(normalize(text, dim=-1), normalize(x, dim=-1))

    what = "all texts with all sets, (Q, G, D)"
    part.case("pairs", what, module, call, x=part.normal(3, 5, 8), text=part.normal(2, 8))


def main() -> None:
    """Record all."""
    family = Family("relations")
    with family.repository("KunpengLi1994/VSRN", "Apache-2.0") as repository:
        vsrn(repository)
    with family.repository("jwehrmann/lavse", "none stated", under="lavse/model/layers") as repository:
        liwe(repository)
    with family.repository("ArrowLuo/CLIP4Clip", "MIT") as repository:
        clip4clip(repository)
    with family.repository("layer6ai-labs/xpool", "none stated") as repository:
        xpool(repository)
    family.write()


if __name__ == "__main__":
    main()
