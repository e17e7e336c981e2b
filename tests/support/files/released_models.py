"""VSE-infinity's models as its authors save them, and their embeddings written out from the saved weights."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
import torch.nn.functional as F
from corpora import NOUNS
from formulas import resnet_of
from torch import Tensor, nn

from polypool.encoders.visual import cnn
from polypool.encoders.visual.resnet import ResNet

WORDS = [
    *["<pad>", "<start>", "<end>", "<unk>", "a", "the", "and", "one", ","],
    *NOUNS[:-1],
]  # one noun stays unknown
WIDTH, DIM, EMBEDDING, HIDDEN = 16, 10, 8, 6


def gpool() -> nn.Module:
    gru = nn.GRU(4, HIDDEN, batch_first=True, bidirectional=True)
    return nn.ModuleDict({"gru": gru, "linear": nn.Linear(HIDDEN, 1, bias=False)})


def regions() -> nn.Module:
    mlp = {
        "layers": nn.ModuleList([nn.Linear(DIM, WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH)]),
        "bns": nn.ModuleList([nn.BatchNorm1d(WIDTH // 2), nn.BatchNorm1d(WIDTH)]),
    }
    return nn.ModuleDict({"fc": nn.Linear(DIM, WIDTH), "mlp": nn.ModuleDict(mlp), "gpool": gpool()})


def grid() -> nn.Module:
    """The authors' extractor holds its network twice, in parts and whole, with a classifier."""
    network = ResNet(**cnn.NETWORKS["resnet101_caffe"])
    network.pool, network.relu, network.fc = nn.Identity(), nn.ReLU(), nn.Linear(network.width, 3)
    names = ("conv1", "bn1", "relu", "pool", "layer1", "layer2", "layer3")
    base = nn.Sequential(*(getattr(network, name) for name in names))
    network.bn1.register_buffer("num_batches_tracked", torch.tensor(7))
    backbone = {"resnet": network, "base": base, "top": nn.Sequential(network.layer4)}
    encoder = {"fc": nn.Linear(network.width, WIDTH), "gpool": gpool()}
    return nn.ModuleDict({"backbone": nn.ModuleDict(backbone), "image_encoder": nn.ModuleDict(encoder)})


def bigru() -> nn.Module:
    rnn = nn.GRU(EMBEDDING, WIDTH, batch_first=True, bidirectional=True)
    return nn.ModuleDict({"embed": nn.Embedding(len(WORDS) + 1, EMBEDDING), "rnn": rnn, "gpool": gpool()})


def bert(folder: str) -> nn.Module:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder)
    model.embeddings.register_buffer("position_ids", torch.arange(64)[None])
    return nn.ModuleDict({"bert": model, "linear": nn.Linear(8, WIDTH), "gpool": gpool()})


def options(**changes: object) -> Namespace:
    given = {"data_name": "coco_precomp", "margin": 0.2, "num_epochs": 25, "batch_size": 128, "lr_update": 15}
    given |= {"learning_rate": 5e-4, "grad_clip": 2.0, "vse_mean_warmup_epochs": 1, "resume": None}
    given |= {"no_imgnorm": False, "no_txtnorm": False, "precomp_enc_type": "basic", "input_scale_factor": 1}
    return Namespace(**(given | {"backbone_source": "detector", "backbone_path": ""} | changes))


def save(
    path: Path, image: nn.Module, text: nn.Module, *, old: bool = False, parallel: bool = False, **changes
) -> dict[str, Tensor]:
    """Write `model_best.pth` as the old or the new torch.save does; return its weights, both encoders' together."""
    generator = torch.Generator().manual_seed(0)
    for name, x in image.state_dict().items():
        if x.is_floating_point():
            x.copy_(0.3 * torch.randn(x.shape, generator=generator) + ("bn" in name))
        if "var" in name:
            x.abs_().add_(0.5)
    weights = {f"img_enc.{name}": x for name, x in image.state_dict().items()}
    weights |= {f"txt_enc.{name}": x for name, x in text.state_dict().items()}
    if parallel:
        image, text = nn.ModuleDict({"module": image}), nn.ModuleDict({"module": text})
    held = {
        "epoch": 17,
        "model": [image.state_dict(), text.state_dict()],
        "best_rsum": 412.5,
        "opt": options(**changes),
        "Eiters": 1000,
    }
    torch.save(held, path, _use_new_zipfile_serialization=not old)
    return weights


def state(module: nn.Module, weights: dict[str, Tensor], prefix: str) -> nn.Module:
    module.load_state_dict({k.removeprefix(prefix): x for k, x in weights.items() if k.startswith(prefix)})
    return module


def pooled(x_ND: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    """The authors' pooling of one set, and its unit length."""
    gru = state(nn.GRU(4, HIDDEN, batch_first=True, bidirectional=True), weights, f"{prefix}.gru.")
    n = torch.arange(len(x_ND))[:, None]
    angle = n / 10_000 ** (torch.tensor([0.0, 2.0]) / 4)
    code = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
    states = gru(code[None])[0][0]
    score = (states[:, :HIDDEN] + states[:, HIDDEN:]) / 2 @ weights[f"{prefix}.linear.weight"][0]
    vector = (x_ND.sort(dim=0, descending=True).values * (score / 0.1).softmax(0)[:, None]).sum(0)
    return vector / vector.norm()


def region_code(x_ND: Tensor, w: dict[str, Tensor]) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"img_enc.{name}.weight"], w[f"img_enc.{name}.bias"])

    of_bn = (w[f"img_enc.mlp.bns.0.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
    hidden = F.batch_norm(linear("mlp.layers.0", x_ND), *of_bn)
    return pooled(linear("fc", x_ND) + linear("mlp.layers.1", hidden.relu()), w, "img_enc.gpool")


def grid_code(pixels_3SS: Tensor, w: dict[str, Tensor]) -> Tensor:
    parts = {"base.0": "conv1", "base.1": "bn1", "base.4": "layer1", "base.5": "layer2", "base.6": "layer3"}
    named = {}
    for theirs, ours in (parts | {"top.0": "layer4"}).items():
        start = f"img_enc.backbone.{theirs}."
        named |= {f"{ours}.{k.removeprefix(start)}": x for k, x in w.items() if k.startswith(start)}
    cells_ND = resnet_of(named, pixels_3SS[None], caffe=True)[0].flatten(1).T
    fc = "img_enc.image_encoder.fc"
    return pooled(F.linear(cells_ND, w[f"{fc}.weight"], w[f"{fc}.bias"]), w, "img_enc.image_encoder.gpool")


def bigru_code(caption: str, w: dict[str, Tensor]) -> Tensor:
    numbers = [WORDS.index(word) if word in WORDS else 3 for word in caption.split()]
    rnn = state(nn.GRU(EMBEDDING, WIDTH, batch_first=True, bidirectional=True), w, "txt_enc.rnn.")
    states = rnn(w["txt_enc.embed.weight"][[1, *numbers, 2]][None])[0][0]
    return pooled((states[:, :WIDTH] + states[:, WIDTH:]) / 2, w, "txt_enc.gpool")
