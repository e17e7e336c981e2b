"""Record aggregators that are weighted sums of elements."""

from __future__ import annotations

import torch
from recording import Family, Repository
from torch import Tensor, nn
from torch.nn.functional import pad


def as_grid(x_BND: Tensor) -> Tensor:
    """Return sets as grids of one row, `(B, D, 1, N)`."""
    return x_BND.transpose(1, 2)[:, :, None]


class First(nn.Module):
    """The first channels of each row."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :8]


def abmilp(authors: Repository, probes: Repository) -> None:
    """Record gated attention, and attention without a gate."""
    with authors.part("abmilp", "model.py", "GatedAttention behind its convolutions") as part:
        module = authors.load("model").GatedAttention()
        module.feature_extractor_part1, module.feature_extractor_part2 = nn.Identity(), First()
        module.attention_V[0], module.attention_U[0] = nn.Linear(8, 4), nn.Linear(8, 4)
        module.attention_w, module.classifier = nn.Linear(4, 1), nn.Identity()

        def call(x: Tensor) -> Tensor:
            return torch.cat([module(pad(bag, (0, 792))[None])[0] for bag in x])

        part.case("gated", "8 channels, an inner width of 4", module, call, x=part.normal(3, 7, 8))
    without = ("timm.models.vision_transformer",)
    with probes.part("abmilp_probe", "poolings/abmilp.py", "ABMILPHead") as part:
        module = probes.load("poolings.abmilp", without=without).ABMILPHead(8)
        part.case("plain", "without a gate", module, lambda x: module(x), x=part.normal(3, 7, 8))


def logsumexp(repository: Repository) -> None:
    """Record log-sum-exp pooling with its mean."""
    kind = repository.load("poolings.other_pool").LSEPool
    with repository.part("logsumexp", "poolings/other_pool.py", "LSEPool") as part:
        for name, sharpness in (("one", 1.0), ("sharp", 10.0)):
            module = kind(sharpness, learnable=False)
            what = f"a sharpness of {sharpness}"
            part.case(name, what, None, lambda x, m=module: m(as_grid(x)).flatten(1), x=part.normal(3, 7, 8))


def esa(repository: Repository) -> None:
    """Record ESA's image branch."""
    encoders = repository.load(
        "lib.encoders", without=("torchvision.models", "torchtext", "lib.modules.resnet")
    )
    with repository.part("esa", "ESA_BIGRU/lib/encoders.py", "EncoderImageAggr behind its map") as part:
        module = encoders.EncoderImageAggr(8, 8, "none", no_imgnorm=True)
        module.fc = nn.Identity()
        part.case("plain", "as at evaluation", module, lambda x: module(x, None), x=part.normal(3, 7, 8))


def lip(repository: Repository) -> None:
    """Record local importance pooling of a whole set."""
    file = repository.load("lip_resnet")
    with repository.part("lip", "imagenet/lip_resnet.py", "lip2d, and the logit of SimplifiedLIP") as part:
        module = file.SimplifiedLIP(8).logit
        module.conv = file.conv1x1(8, 8)

        def call(x: Tensor) -> Tensor:
            grid, size = as_grid(x), (1, x.shape[1])
            return file.lip2d(grid, module(grid), kernel=size, stride=size, padding=0).flatten(1)

        what = "a 1x1 convolution in the place of the 3x3, a window of all elements"
        part.case("plain", what, module, call, x=part.normal(3, 7, 8))


def gem(repository: Repository) -> None:
    """Record generalised-mean pooling."""
    pool = repository.load("functional").gem
    with repository.part("gem", "cirtorch/layers/functional.py", "gem") as part:
        module = nn.ParameterDict({"log_p": torch.tensor(3.0).log()})
        what = "p = exp(log_p); half of the values are below the epsilon"
        part.case(
            "signed",
            what,
            module,
            lambda x: pool(as_grid(x), p=module["log_p"].exp()).flatten(1),
            x=part.normal(3, 7, 8),
        )


def hgr(repository: Repository) -> None:
    """Record the attention of HGR's global branch."""
    ops = repository.load("framework.ops")
    file = repository.load("t2vretrieval.encoders.mlvideo")
    file.framework.ops = ops
    with repository.part(
        "attention", "t2vretrieval/encoders/mlvideo.py", "MultilevelEncoder, its first"
    ) as part:
        config = file.MultilevelEncoderConfig()
        config.dim_fts, config.dim_embed = [8], 8
        module = file.MultilevelEncoder(config)
        module.level_embeds = nn.ModuleList(nn.Identity() for _ in range(3))
        x, mask = part.sets(7, 4, 1, dim=8)
        what = "without its map of features"
        part.case("masked", what, module, lambda x, mask: module(x, mask.sum(dim=1))[0], x=x, mask=mask)


def kmax(repository: Repository) -> None:
    """Record k-max pooling."""
    file = repository.load("lib.encoders", without=("lib.modules.resnet",))
    with repository.part("kmax", "lib/encoders.py", "maxk_pool1d_var") as part:
        x, mask = part.sets(7, 5, 2, dim=8)
        what = "k = 3; a smaller set last, since its size bounds the k of all that follow"
        part.case(
            "masked",
            what,
            None,
            lambda x, mask: file.maxk_pool1d_var(x, 1, 3, mask.sum(dim=1)),
            x=x,
            mask=mask,
        )


def main() -> None:
    """Record all."""
    family = Family("averages")
    with (
        family.repository("AMLab-Amsterdam/AttentionDeepMIL", "MIT") as authors,
        family.repository("billpsomas/efficient-probing", "Apache-2.0") as probes,
    ):
        abmilp(authors, probes)
        logsumexp(probes)
    for name, licence, under, record in (
        ("KevinLight831/ESA", "MIT", "ESA_BIGRU", esa),
        ("sebgao/LIP", "MIT", "imagenet", lip),
        ("filipradenovic/cnnimageretrieval-pytorch", "MIT", "cirtorch/layers", gem),
        ("cshizhe/hgr_v2t", "MIT", "", hgr),
        ("woodfrog/vse_infty", "MIT", "", kmax),
    ):
        with family.repository(name, licence, under=under) as repository:
            record(repository)
    family.write()


if __name__ == "__main__":
    main()
