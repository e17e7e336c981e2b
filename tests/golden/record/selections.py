"""Record aggregators that choose among elements, and the distribution of a set."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from flax_by_torch import PACKAGES, give
from recording import Family, Repository
from torch import Tensor, nn

CLASSIFICATION = ("classification_model", "multilabel_classification_model")


def laps(repository: Repository) -> None:
    """Record the tokens that LAPS compares with each text."""
    file = repository.load("lib.cross_net")
    options = {"embed_size": 15, "num_patches": 9, "sparse_ratio": 0.5, "aggr_ratio": 0.45}
    with repository.part("laps", "lib/cross_net.py", "CrossSparseAggrNet_v2") as part:
        module = file.CrossSparseAggrNet_v2(
            SimpleNamespace(**options, attention_weight=0.8, ratio_weight=2.0)
        )

        def call(x: Tensor, text: Tensor, text_mask: Tensor) -> Tensor:
            tokens = []

            def compare(img_embs: Tensor, cap_i_expand: Tensor) -> Tensor:
                tokens.append(img_embs)
                return img_embs.sum(dim=(1, 2))[:, None]

            file.mask_xattn_one_text = compare
            module(x, text, text_mask.sum(dim=1).tolist())
            return torch.stack(tokens, dim=1)

        text, text_mask = part.sets(6, 3, dim=15)
        inputs = {"x": part.normal(3, 9, 15), "text": text, "text_mask": text_mask}
        what = "9 elements, of which 5 become 2 and 4 one, each of length 1; all texts with all sets, (Q, G, K + 1, D)"
        part.case("pairs", what, module, call, **inputs)


def ts2(repository: Repository) -> None:
    """Record the scores of TS2-Net."""
    kind = repository.load("modules.differential_topk").PredictorLG
    with repository.part("ts2_select", "modules/differential_topk.py", "PredictorLG") as part:
        module = kind(8)
        what = "scores (B, N) of a token of the whole, which comes first, and elements"
        part.case("scores", what, module, lambda x: module(x).squeeze(2), x=part.normal(3, 7, 8))


def probabilistic(repository: Repository) -> None:
    """Record the log-variance of PCME++."""
    without = ("torchvision.models", "pkg_resources", "ftfy", "regex", "pcmepp.modules.clip")
    kind = repository.load("pcmepp.models.img_encoder", without=without).EncoderImageAggr
    with repository.part("probabilistic", "pcmepp/models/img_encoder.py", "EncoderImageAggr") as part:
        module = kind(8, 8, "none", no_imgnorm=True)
        x, mask = part.sets(7, 4, 1, dim=8)
        what = "what its code calls std: a linear map and GPO"
        part.case("variance", what, module, lambda x, mask: module(x, mask.sum(dim=1)), x=x, mask=mask)


def tokenlearner(repository: Repository) -> None:
    """Record TokenLearner, with Flax's functions computed by torch."""
    module = nn.ModuleList([nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 5), nn.Linear(5, 3)])
    scenic = [
        f"scenic.{name}"
        for name in (
            *(f"model_lib.base_models.{kind}" for kind in ("base_model", *CLASSIFICATION)),
            *("projects.baselines.vit", "projects.vivit.model", "projects.vivit.model_utils"),
        )
    ]
    repository.stand_in(*PACKAGES, *scenic)
    give(iter(module))
    kind = repository.load("scenic.projects.token_learner.model").TokenLearnerModuleV11

    def call(x: Tensor) -> Tensor:
        give(iter(module))
        return kind(num_tokens=3, bottleneck_dim=5)(x, deterministic=True)

    files = "scenic/projects/token_learner/model.py, scenic/model_lib/layers/attention_layers.py"
    with repository.part("tokenlearner", files, "TokenLearnerModuleV11, Flax computed by torch") as part:
        part.case(
            "exact", "3 tokens, a hidden width of 5, the exact GELU", module, call, x=part.normal(3, 7, 8)
        )


def agc(repository: Repository) -> None:
    """Record attention-guided clustering; the attention that its language model returns is computed here."""
    without = (
        "scipy.cluster",
        "peft",
        "transformers",
        "transformers.file_utils",
        "accelerate.utils",
        "src.utils",
    )
    kind = repository.load("src.encoder.select_encoder", without=without).AttentionSelectEncoder
    with repository.part("agc", "src/encoder/select_encoder.py", "_encode_passage_with_selection") as part:
        for name, sizes, k, what in (
            ("whole", (9, 9, 9), 4, "4 vectors of 9 elements, by 3 queries with 2 heads"),
            ("masked", (9, 6, 4), 4, "the same, and masked elements; no set is smaller than 4"),
        ):
            module = kind.__new__(kind)
            nn.Module.__init__(module)
            module.num_proxy_tokens, module.num_select_tokens, module.normalize = 3, k, True
            module.use_cluster_pooling = module.use_attn_weight_cluster_pooling = True
            module.query, module.key = nn.Parameter(part.normal(3, 8)), nn.Linear(8, 8, bias=False)

            def call(x: Tensor, mask: Tensor, m: nn.Module = module) -> Tensor:
                query_QHE, key_BNHE = m.query.unflatten(1, (2, 4)), m.key(x).unflatten(2, (2, 4))
                logit_BHQN = torch.einsum("qhe,bnhe->bhqn", query_QHE, key_BNHE) / 2
                weight_BHQN = logit_BHQN.masked_fill(~mask[:, None, None], -torch.inf).softmax(dim=3)
                rows_BHSS = F.pad(weight_BHQN, (0, 3, x.shape[1], 0))  # the queries follow the elements
                both_BS = F.pad(mask, (0, 3), value=True).long()
                vectors, real = m._encode_passage_with_selection(F.pad(x, (0, 0, 0, 3)), rows_BHSS, both_BS)
                assert real.all()
                return vectors[torch.arange(len(x))[:, None], vectors[..., 0].argsort(dim=1)]

            x, mask = part.sets(*sizes, dim=8)
            part.case(name, f"{what}; sorted by the first channel", module, call, x=x, mask=mask)


def main() -> None:
    """Record all."""
    family = Family("selections")
    with family.repository("hanxiangqin/omni-col-press", "MIT") as repository:
        agc(repository)
    with family.repository("CrossmodalGroup/LAPS", "none stated") as repository:
        laps(repository)
    with family.repository("yuqi657/ts2_net", "none stated") as repository:
        ts2(repository)
    with family.repository("naver-ai/pcmepp", "MIT") as repository:
        probabilistic(repository)
    with family.repository("google-research/scenic", "Apache-2.0") as repository:
        tokenlearner(repository)
    family.write()


if __name__ == "__main__":
    main()
