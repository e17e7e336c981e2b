"""Reference implementations of networks, computed from their weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polypool.aggregators.relations.score_attention import ScoreAttention


def resnet_of(weights: dict[str, Tensor], x: Tensor, *, caffe: bool, groups: int = 1) -> Tensor:
    """Return the ResNet's output for `x`, computed from its weights."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    def conv(name: str, x: Tensor, **options: int) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], **options)

    x = norm("bn1", conv("conv1", x, stride=2, padding=3)).relu()
    # the caffe stem pools windows that start at 0, 2, 4, ...; torchvision's start one pixel earlier
    x = F.pad(x, (0, 1, 0, 1) if caffe else (1, 0, 1, 0), value=-torch.inf)
    x = x.unfold(2, 3, 2).unfold(3, 3, 2).amax((-2, -1))
    for block in sorted({name.rsplit(".", 2)[0] for name in weights if name.endswith("bn3.weight")}):
        stride = 2 if block.endswith(".0") and block != "layer1.0" else 1
        first, second = (stride, 1) if caffe else (1, stride)
        y = norm(f"{block}.bn1", conv(f"{block}.conv1", x, stride=first)).relu()
        y = norm(f"{block}.bn2", conv(f"{block}.conv2", y, stride=second, padding=1, groups=groups)).relu()
        y = norm(f"{block}.bn3", conv(f"{block}.conv3", y))
        if f"{block}.downsample.0.weight" in weights:
            x = norm(f"{block}.downsample.1", conv(f"{block}.downsample.0", x, stride=stride))
        x = (x + y).relu()
    return x


def _attend(state: dict, name: str, heads: int, x_ND: torch.Tensor, y_MD: torch.Tensor) -> torch.Tensor:
    """Return one sample's `LayerNorm(x + attention(x, y))`, element by element."""

    def linear(part, z):
        return state[f"{name}.{part}.weight"] @ z + state[f"{name}.{part}.bias"]

    width, rows = x_ND.shape[1], []
    size = width // heads
    for x in x_ND:
        seen = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            score = torch.stack(
                [linear("query", x)[own] @ linear("key", y)[own] / math.sqrt(size) for y in y_MD]
            )
            weight = score.exp() / score.exp().sum()
            seen.append(sum(w * linear("value", y)[own] for w, y in zip(weight, y_MD, strict=True)))
        z = x + linear("out", torch.cat(seen))
        z = (z - z.mean()) / torch.sqrt(((z - z.mean()) ** 2).mean() + 1e-5)
        rows.append(z * state[f"{name}.norm.weight"] + state[f"{name}.norm.bias"])
    return torch.stack(rows)


def cross_modal_of(state: dict, heads: int, layers: int, v: torch.Tensor, t: torch.Tensor):
    for layer in range(layers):
        at = f"layers.{layer}"
        v, t = (_attend(state, f"{at}.v_cross", heads, v, t), _attend(state, f"{at}.t_cross", heads, t, v))
        v, t = _attend(state, f"{at}.v_self", heads, v, v), _attend(state, f"{at}.t_self", heads, t, t)
    return v, t


def score_attention_of(module: ScoreAttention, x_ND: torch.Tensor, z_MD: torch.Tensor) -> torch.Tensor:
    """Compute Eq. 1 to 4 of the paper for one pair of sets, in loops."""
    out, width = [], module.head_width
    for scorer in range(module.num_embeddings):
        score = []
        for x_D in x_ND:
            heads = []
            for head in range(module.heads):
                start = (scorer * module.heads + head) * width
                part = slice(start, start + width)
                q = module.query.weight[part] @ x_D + module.query.bias[part]
                logits = torch.stack([q @ (module.key.weight[part] @ z_D) / math.sqrt(width) for z_D in z_MD])
                attention = logits.exp() / logits.exp().sum()
                heads.append(
                    sum(a * (module.value.weight[part] @ z_D) for a, z_D in zip(attention, z_MD, strict=True))
                )
            score.append(torch.cat(heads) @ module.score[scorer])
        weight = torch.stack(score).exp() / torch.stack(score).exp().sum()
        out.append(sum(w * x_D for w, x_D in zip(weight, x_ND, strict=True)))
    return torch.stack(out)
