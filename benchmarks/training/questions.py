"""A training step of visual question answering at the paper's sizes, against torch's own attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Measurement, Scale, Size, by_turns, seconds
from polypool.aggregators.relations.score_attention import ScoreAttention
from polypool.encoders.cross.cross_modal import CrossModal, MultiHeadAttention
from polypool.encoders.text.bigru import BiGRU
from polypool.encoders.visual.stored import Grid
from polypool.infra.batches import Batch
from polypool.infra.compute.device import best_device, on_device
from polypool.tasks.models.branch import Branch
from polypool.tasks.questions.fusions import Concat
from polypool.tasks.questions.vqa_model import VQAModel


@dataclass(frozen=True, kw_only=True)
class QuestionSize(Size):
    """Stefanini et al., section IV-B, with five vectors a modality."""

    tiny: ClassVar = {
        "batch": 4,
        "regions": 3,
        "dim": 6,
        "words": 4,
        "known": 9,
        "embedding": 4,
        "width": 8,
        "heads": 2,
        "k": 2,
        "answers": 5,
        "steps": 1,
    }
    batch: int = 64
    regions: int = 36
    dim: int = 2048
    words: int = 14
    known: int = 14_000
    embedding: int = 300
    width: int = 512
    heads: int = 8
    k: int = 5
    answers: int = 3129
    steps: int = 3


def vqa_step(scale: Scale = "full") -> list[Measurement]:
    """Measure questions a second in training, on the GPU where there is one."""
    size = QuestionSize.of(scale)
    device = best_device()
    batch = on_device(random_questions(size), device)
    ours = network(size).to(device)
    reference = PlainVQA(ours, heads=size.heads).to(device)
    with torch.inference_mode():
        torch.testing.assert_close(reference.eval()(batch), ours.eval()(batch), rtol=1e-3, atol=1e-3)
    rates = [_rate(model.train(), batch, size) for model in (ours, reference)]
    for rate in rates:
        rate(0)
    return [
        Measurement(
            name="vqa step",
            measured=(
                f"questions a second in training, {size.batch} questions of {size.words} words, {size.regions} x "
                f"{size.dim} regions, width {size.width}, {size.heads} heads, k={size.k}, on {device}"
            ),
            unit="/s",
            target=1.2,
            note="Reference: the same network of nn.MultiheadAttention, k of them for the k scores of a modality.",
            **by_turns(*rates, rounds=size.rounds).numbers(),
        )
    ]


def random_questions(size: QuestionSize) -> Batch:
    """Return random questions about random images; every question is as long as the longest."""
    generator = torch.Generator().manual_seed(0)
    target_BA = torch.zeros(size.batch, size.answers)
    target_BA[:, : min(3, size.answers)] = 0.3
    return {
        "visual": torch.randn(size.batch, size.regions, size.dim, generator=generator),
        "visual_mask": torch.ones(size.batch, size.regions, dtype=torch.bool),
        "text": torch.randint(5, size.known, (size.batch, size.words), generator=generator),
        "text_mask": torch.ones(size.batch, size.words, dtype=torch.bool),
        "target": target_BA,
    }


def network(size: QuestionSize) -> VQAModel:
    """Return the model of the recipe `vqa2_scoreattn_k5`, at these sizes."""
    torch.manual_seed(0)
    words = {"words": [f"w{number}" for number in range(size.known)]}
    encoders = (
        Grid({"dim": size.dim}, width=size.width),
        BiGRU(words, width=size.width, embedding=size.embedding),
    )
    branches = (
        Branch(encoder, ScoreAttention(size.width, k=size.k, heads=size.heads)) for encoder in encoders
    )
    cross = CrossModal(size.width, heads=size.heads)
    return VQAModel(*branches, Concat(size.width, size.width), answers=size.answers, cross=cross)


def _rate(model: nn.Module, batch: Batch, size: QuestionSize) -> Callable[[int], float]:
    """Return what measures some steps, in questions a second."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        loss = F.binary_cross_entropy_with_logits(model(batch), batch["target"], reduction="sum") / size.batch
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def steps() -> None:
        for _ in range(size.steps):
            step()
        if batch["target"].is_cuda:
            torch.cuda.synchronize()

    return lambda _: size.steps * size.batch / seconds(steps)


class PlainVQA(nn.Module):
    """The same network, of torch's own attention; its weights are copies.

    Args:
        model: whose network it is.
        heads: of every attention.
    """

    def __init__(self, model: VQAModel, *, heads: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        layer = self.model.cross.layers[0]
        self.crossing = nn.ModuleList(
            PlainAttention(part, heads=heads)
            for part in (layer.v_cross, layer.t_cross, layer.v_self, layer.t_self)
        )
        branches = self.model.visual, self.model.text
        self.scoring = nn.ModuleList(PlainScores(branch.aggregator, heads=heads) for branch in branches)
        del self.model.cross
        for branch in branches:
            del branch.aggregator

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits of all answers."""
        model = self.model
        v_BND, v_mask = model.visual.encoder(batch["visual"], batch["visual_mask"])
        t_BMD, t_mask = model.text.encoder(batch["text"], batch["text_mask"])
        v_cross, t_cross, v_self, t_self = self.crossing
        v_BND, t_BMD = v_cross(v_BND, t_BMD, t_mask), t_cross(t_BMD, v_BND, v_mask)
        v_BND, t_BMD = v_self(v_BND, v_BND, v_mask), t_self(t_BMD, t_BMD, t_mask)
        v_BD = self.scoring[0](v_BND, v_mask, t_BMD, t_mask)
        t_BD = self.scoring[1](t_BMD, t_mask, v_BND, v_mask)
        return model.classifier(model.fusion(model.visual_feed(v_BD), model.text_feed(t_BD)))


class PlainAttention(nn.Module):
    """`LayerNorm(x + dropout(attention))` by `nn.MultiheadAttention`."""

    def __init__(self, part: MultiHeadAttention, *, heads: int) -> None:
        super().__init__()
        self.attention = _attention([part.query, part.key, part.value], part.out, heads=heads)
        self.dropout, self.norm = part.dropout, part.norm

    def forward(self, x_BND: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        """Let each element look at the context."""
        seen_BND, _ = self.attention(
            x_BND, context_BMD, context_BMD, key_padding_mask=~context_mask_BM, need_weights=False
        )
        return self.norm(x_BND + self.dropout(seen_BND))


class PlainScores(nn.Module):
    """The mean of k weighted sums, each by an `nn.MultiheadAttention` and a map to a score of its own."""

    def __init__(self, part: ScoreAttention, *, heads: int) -> None:
        super().__init__()
        self.attentions, self.scores = nn.ModuleList(), nn.ModuleList()
        width = part.query.in_features
        for k in range(part.num_embeddings):
            rows = slice(k * width, (k + 1) * width)
            maps = [nn.Linear(width, width) for _ in range(4)]
            with torch.no_grad():
                for own, source in zip(maps, (part.query, part.key, part.value), strict=False):
                    own.weight.copy_(source.weight[rows])
                    own.bias.copy_(source.bias[rows]) if source.bias is not None else own.bias.zero_()
                nn.init.eye_(maps[3].weight)
                nn.init.zeros_(maps[3].bias)
                self.scores.append(nn.Linear(width, 1))
                self.scores[-1].weight.copy_(part.score[k])
            self.attentions.append(_attention(maps[:3], maps[3], heads=heads))

    def forward(self, x_BND: Tensor, mask_BN: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        """Return the mean vector of each set, `(B, D)`."""
        vectors = []
        for attention, score in zip(self.attentions, self.scores, strict=True):
            seen_BND, _ = attention(
                x_BND, context_BMD, context_BMD, key_padding_mask=~context_mask_BM, need_weights=False
            )
            score_BN = score(seen_BND).squeeze(-1).masked_fill(~mask_BN, float("-inf"))
            vectors.append((score_BN.softmax(dim=1)[:, None] @ x_BND).squeeze(1))
        return torch.stack(vectors, dim=1).mean(dim=1)


def _attention(maps: list[nn.Linear], out: nn.Linear, *, heads: int) -> nn.MultiheadAttention:
    """Return torch's attention with the weights of these maps: queries, keys, values."""
    attention = nn.MultiheadAttention(out.out_features, heads, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([linear.weight for linear in maps]))
        attention.in_proj_bias.copy_(torch.cat([linear.bias for linear in maps]))
        attention.out_proj.load_state_dict(out.state_dict())
    return attention
